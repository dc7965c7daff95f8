"""Finds in the indexes what retention removes, without reading the others: the oldest objects of each rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from capture.archive.index.page import Entry
from capture.archive.index.tree import Index, Where
from capture.archive.index.version import Version
from capture.archive.manifest import Stored
from capture.archive.retention import Retention

KEYS = -1
"""The rule of a stream's object depends on its key."""

Source = tuple[Index, Version]


@dataclass(frozen=True)
class Expiring:
    """What retention removes of each source, and the bytes of what it keeps, by the number of the rule that decides."""

    objects: list[list[Stored]]
    elsewhere: Mapping[int, int]


async def find_expiring(
    retention: Retention,
    sources: Sequence[Source],
    now: float,
    *,
    adding: Sequence[Stored] = (),
    left_out: Sequence[Stored] = (),
) -> Expiring:
    """Return which objects of the sources, together, retention removes at `now` (Unix seconds).

    `adding` are objects that count as well; those of `left_out` do not. A rule with a pattern for keys reads all
    entries of its streams, other rules the oldest ones. ManifestError; StoreError.
    """
    if not retention.rules:
        return Expiring([[] for _ in sources], {})
    finding = _Finding(retention, now, {one.path for one in left_out})
    finding.count(left_out, -1)
    streams = sorted({stream for _, version in sources for stream in version.streams})
    for stream in streams:
        for index, version in sources:
            await finding.add_up(index, version, stream)
    for number, rule in enumerate(retention.rules):
        if rule.keep_bytes is not None:
            more = sum(one.bytes for one in adding if retention.number_of(one) == number)
            mine = [stream for stream in streams if deciding(retention, stream) == number]
            await finding.take_oldest(number, sources, mine, finding.total[number] + more - rule.keep_bytes)
    return await finding.result(sources, adding)


def deciding(retention: Retention, stream: str) -> int | None:
    """Return the number of the rule that decides about all objects of a stream; KEYS: it depends; None: no rule."""
    for number, rule in enumerate(retention.rules):
        if fnmatchcase(stream, rule.stream):
            return number if rule.key == "*" else KEYS
    return None


class _Finding:
    """Objects that may expire, with their index, and the bytes of all objects by the number of their rule."""

    def __init__(self, retention: Retention, now: float, left_out: set[str]) -> None:
        self.retention, self.now, self.left_out = retention, now, left_out
        self.total: Counter[int] = Counter()
        self.found: dict[str, tuple[int, Index, Entry]] = {}

    def count(self, objects: Iterable[Stored], sign: int = 1) -> None:
        for one in objects:
            if (number := self.retention.number_of(one)) is not None and deciding(self.retention, one.stream) != KEYS:
                self.total[number] += sign * one.bytes

    async def add_up(self, index: Index, version: Version, stream: str) -> None:
        """Add up the bytes of a stream, and find objects that are too old."""
        number, total = deciding(self.retention, stream), version.streams.get(stream)
        if number is None or total is None:
            return
        where = Where(stream=stream)
        if number != KEYS:
            self.total[number] += total.bytes
            if (older_than := self.retention.rules[number].older_than) is None:
                return
            where = Where(stream=stream, times=(0, max(0, round((self.now - older_than) * 1e9))))
        async for part in index.scan(version, where):
            for one in part:
                if one.path not in self.left_out:
                    self._take(index, one, number == KEYS)

    def _take(self, index: Index, one: Entry, adds_up: bool) -> None:
        number = self.retention.number_of(one)
        if number is None:
            return
        self.total[number] += one.bytes if adds_up else 0
        by_size = adds_up and self.retention.rules[number].keep_bytes is not None
        if by_size or self.retention.is_older(one, number, self.now):
            self.found[one.path] = number, index, one

    async def take_oldest(self, number: int, sources: Sequence[Source], streams: list[str], excess: int) -> None:
        """Find the oldest objects of these streams that have so many bytes together, and the rest of their interval."""
        scans = [
            _Scan(index, index.scan(version, Where(stream=stream)))
            for stream in streams
            for index, version in sources
            if stream in version.streams
        ]
        try:
            while excess > 0 and (heads := [one for one in scans if await one.fill()]):
                interval = min(one.interval for one in heads)
                for scan in heads:
                    async for one in scan.take(interval):
                        if one.path not in self.left_out:
                            self.found[one.path] = number, scan.index, one
                            excess -= one.bytes
        finally:
            for scan in scans:
                await scan.close()

    async def result(self, sources: Sequence[Source], adding: Sequence[Stored]) -> Expiring:
        """Return those that expire, with their sequences, by source."""
        light = Counter[int]()
        for number, _, one in self.found.values():
            light[number] += one.bytes
        candidates = [*(one for _, _, one in self.found.values()), *adding]
        expired = self.retention.find_expired(candidates, self.now, elsewhere=self.total - light)
        gone = [self.found[one.object.path] for one in expired if one.object.path in self.found]
        elsewhere = Counter(self.total)
        for number, _, one in gone:
            elsewhere[number] -= one.bytes
        objects = [await source.wholes([one for _, index, one in gone if index is source]) for source, _ in sources]
        return Expiring(objects, elsewhere)


class _Scan:
    """The entries of a stream in order, an interval at a time."""

    def __init__(self, index: Index, parts: AsyncIterator[list[Entry]]) -> None:
        self.index, self._parts, self._ready = index, parts, list[Entry]()

    @property
    def interval(self) -> int:
        return self._ready[0].interval

    async def fill(self) -> bool:
        """Return whether there are more."""
        while not self._ready:
            part = await anext(self._parts, None)
            if part is None:
                return False
            self._ready = part
        return True

    async def take(self, interval: int) -> AsyncIterator[Entry]:
        """Yield those of this interval, if they are next."""
        while await self.fill() and self.interval == interval:
            yield self._ready.pop(0)

    async def close(self) -> None:
        await self._parts.aclose()  # type: ignore[attr-defined]
