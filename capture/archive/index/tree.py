"""Reads the versions of an index: each is named by its root."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from capture.archive.index.page import (
    Entry,
    Page,
    Ref,
    decode,
    decode_set,
    make_damage,
    page_path,
    place_of,
    ref_of,
)
from capture.archive.index.version import Name, Place, Version
from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import ManifestError, NotStoredError
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from capture.stores.recent import MOST_BYTES, Recent
from natty.wire.background import Ahead, map_concurrently

_FIELDS = Stored.__struct_fields__

Look = Callable[[str, Sequence[Entry]], Awaitable[None]]
"""Takes the path and the entries of a leaf."""

T = TypeVar("T")
Result = TypeVar("Result")

AHEAD = 8
"""Pages that a scan reads ahead."""


@dataclass(frozen=True)
class Sizes:
    """The target bytes of a leaf and of a page above, before compression, and what stands elsewhere.

    Smaller pages cost less to change, and more requests to read; `tests/bench/bench_index.py` has figures. A set of
    more than `apart` bytes has a page of its own. A root that is a leaf stands in the document if it has at most
    `inline` bytes as stored: a small archive has no pages.
    """

    leaf: int = 128 << 10
    inner: int = 32 << 10
    apart: int = 16 << 10
    inline: int = 16 << 10

    def target(self, level: int) -> int:
        """Return the target of pages at a level."""
        return self.inner if level else self.leaf


SIZES = Sizes()


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which entries to find: of a stream, intervals from `since` to before `until`, times and sequences.

    `times` (Unix nanoseconds) and `sequences` are ranges, both ends included: an entry is found if it may hold one.
    """

    stream: str | None = None
    since: int = -MAXIMUM
    until: int = MAXIMUM
    times: tuple[int, int] = (0, MAXIMUM)
    sequences: tuple[int, int] = (0, MAXIMUM)

    def admits(self, one: Ref) -> bool:
        """Return whether there may be such entries below this child."""
        if self.stream is not None:
            if not one.low[0] <= self.stream <= one.high[0]:
                return False
            if one.low[:2] >= (self.stream, self.until) or one.high[:2] < (self.stream, self.since):
                return False
        return self._overlaps(one.min_ns, one.max_ns, one.first, one.last)

    def finds(self, one: Stored) -> bool:
        """Return whether this is such an entry."""
        return (
            (self.stream is None or one.stream == self.stream)
            and self.since <= one.interval < self.until
            and self._overlaps(one.min_ns, one.max_ns or MAXIMUM, one.first, one.last)
        )

    def _overlaps(self, min_ns: int, max_ns: int, first: int, last: int) -> bool:
        timely = min_ns <= self.times[1] and max_ns >= self.times[0]
        return timely and first <= self.sequences[1] and last >= self.sequences[0]


ALL = Where()


class Index:
    """Reads the versions of an index in a store, whose pages are in one folder."""

    def __init__(self, store: Store, folder: str, *, cache_bytes: int = MOST_BYTES, sizes: Sizes | None = None) -> None:
        self.sizes = sizes or SIZES
        self.store, self._folder = store, folder
        self._cache = Recent[Name](cache_bytes)  # pages as they are stored
        self._kept: dict[Name, bytes] = {}
        self._requests = asyncio.Semaphore(REQUESTS_AT_ONCE)

    def __repr__(self) -> str:
        return f"Index({self.store.url}, {self._folder}, {len(self._cache)} pages in memory)"

    def path(self, name: Name) -> str:
        """Return the path of a page."""
        return page_path(self._folder, name)

    async def page(self, name: bytes, level: int | None = None) -> Page:
        """Return a page, which is at this level. StoreError.

        DamagedIndexError if it is missing or was changed; ManifestError if it is unreadable, of a newer format, or at
        another level: so a way down a tree has an end.
        """
        page = self.read_page(name, await self._bytes(name))
        if level not in (None, page.level):
            raise ManifestError(f"{self.path(name)} is damaged: it is at level {page.level}, its parent says {level}")
        return page

    def read_page(self, name: Name, data: bytes) -> Page:
        """Return the page that these bytes are. ManifestError as `page`."""
        return decode(data, self.path(name))

    def admit(self, version: Version) -> None:
        """Keep the root of a version in memory if it stands in the document itself: the store does not have it."""
        if version.leaf:
            self.remember({version.root: version.leaf})

    async def _bytes(self, name: bytes) -> bytes:
        if (kept := self._kept.get(name)) is not None:
            return kept
        if (cached := self._cache.get(name)) is not None:
            return cached
        try:
            async with self._requests:
                data = await self.store.get(self.path(name))
        except NotStoredError as error:
            raise make_damage(self.path(name), f"is missing from {self.store.url}, and the index names it") from error
        self.remember({name: data})
        return data

    def keep(self, pages: Mapping[Name, bytes]) -> None:
        """Keep these pages in memory without a limit: the store does not have them."""
        self._kept.update(pages)

    def remember(self, pages: Mapping[bytes, bytes]) -> None:
        """Keep these pages in memory, as far as there is room: those of a change that was just stored."""
        for name, data in pages.items():
            self._cache.add(name, data)

    async def whole(self, one: Entry) -> Stored:
        """Return the record with its sequences, which may be in a page of their own. ManifestError; StoreError."""
        fields = {name: getattr(one, name) for name in _FIELDS}
        if one.apart:
            fields["sequences"] = (await self.set_page(one.apart)).to_bytes()
        return Stored(**fields)

    async def wholes(self, some: Sequence[Entry]) -> list[Stored]:
        """Return these records with their sequences, read side by side. Raises as `whole`."""
        return await map_concurrently(some, self.whole, at_once=REQUESTS_AT_ONCE)

    async def set_page(self, name: bytes) -> Sequences:
        """Return the set of sequences that has a page of its own. ManifestError; StoreError."""
        page = decode_set(await self._bytes(name), self.path(name))
        try:
            return Sequences.from_bytes(page.sequences)
        except ValueError as error:
            raise ManifestError(f"{self.path(name)} is damaged: {error}") from error

    # --- reading ------------------------------------------------------------------------------------------------------

    async def scan(self, version: Version, where: Where = ALL) -> AsyncIterator[list[Entry]]:
        """Yield the entries of a version, leaf by leaf, in order; a few leaves are read ahead. ManifestError."""
        self.admit(version)
        async for page in self._leaves(version.root, where):
            if found := page.entries if where == ALL else [one for one in page.entries if where.finds(one)]:
                yield found

    async def _leaves(self, name: bytes, where: Where, level: int | None = None) -> AsyncIterator[Page]:
        if not name:
            return
        page = await self.page(name, level)
        if not page.level:
            yield page
        wanted = [one.page for one in page.children if where.admits(one)]
        if page.level == 1:
            async for _, leaf in Ahead(wanted, lambda name: self.page(name, 0), most=AHEAD):
                yield leaf
            return
        for child in wanted:
            async for leaf in self._leaves(child, where, page.level - 1):
                yield leaf

    async def find(self, version: Version, places: Iterable[Place]) -> dict[Place, Entry]:
        """Return the entries at these places, as far as there are any. ManifestError."""
        wanted, found = sorted(set(places)), dict[Place, Entry]()
        self.admit(version)
        if version.root and wanted:
            await self._find(version.root, wanted, found)
        return found

    async def _find(
        self, name: bytes, places: list[Place], found: dict[Place, Entry], level: int | None = None
    ) -> None:
        page = await self.page(name, level)
        if not page.level:
            held = {place_of(one): one for one in page.entries}
            found.update((place, held[place]) for place in places if place in held)
            return
        shares = [(child.page, part) for child, part in share_out(page, places) if part]
        await a_few_at_a_time(shares, lambda one: self._find(*one, found, page.level - 1))

    async def reach(self, version: Version) -> set[Name]:
        """Return the names of all stored pages of a version, those of sets too. ManifestError; StoreError.

        Leaves are opened only where there are sets with pages of their own.
        """
        self.admit(version)
        seen: set[Name] = set()

        async def look(name: Name) -> list[Name]:
            page = await self.page(name)
            seen.update(one.apart for one in page.entries if one.apart)
            seen.update(one.page for one in page.children if page.level == 1 and not one.apart)
            return [one.page for one in page.children if page.level > 1 or one.apart]

        waiting = {version.root} - {b""}
        while waiting := waiting - seen:
            seen |= waiting
            found = await a_few_at_a_time(sorted(waiting), look)
            waiting = {one for part in found for one in part}
        held = {name for one in version.streams.values() for name in one.held.apart.values()}
        return seen - ({version.root} if version.leaf else set()) | held

    async def differ(self, old: Version, new: Version) -> tuple[list[Entry], list[Entry]]:
        """Return the entries that only the old, and that only the new version has; shared pages are not opened."""
        self.admit(old)
        self.admit(new)
        sides = ({old.root} - {b""}, {new.root} - {b""})
        found: tuple[dict[Place, Entry], dict[Place, Entry]] = ({}, {})
        while sides[0] | sides[1]:
            opened: list[list[tuple[bytes, Page]]] = []
            for side, other in (sides, sides[::-1]):
                names = sorted(side - other)
                opened.append(list(zip(names, await a_few_at_a_time(names, self.page), strict=True)))
            top = max((page.level for part in opened for _, page in part), default=0)
            sides = (set(), set())
            for side, part, entries in zip(sides, opened, found, strict=True):
                for name, page in part:
                    side |= {one.page for one in page.children} if page.level == top else {name}  # lower ones wait
                    if top == 0:
                        entries |= {place_of(one): one for one in page.entries}
            if top == 0:
                break
        gone, came = found
        only_old = [one for place, one in sorted(gone.items()) if came.get(place) != one]
        return only_old, [one for place, one in sorted(came.items()) if gone.get(place) != one]

    async def verify(self, version: Version, look: Look | None = None) -> int:
        """Return the number of entries of a version. ManifestError unless each page is what its parent says.

        `look` gets the path and the entries of each leaf, in any order.
        """
        self.admit(version)
        return await self._verify(version.root, None, None, look) if version.root else 0

    async def _verify(self, name: Name, told: Ref | None, level: int | None, look: Look | None) -> int:
        page = await self.page(name, level)
        path, items = self.path(name), page.items
        lows = [one.low if isinstance(one, Ref) else place_of(one) for one in items]
        highs = [one.high if isinstance(one, Ref) else place_of(one) for one in items]
        if any(high >= low for high, low in zip(highs, lows[1:], strict=False)):
            raise ManifestError(f"{path} is damaged: its entries are out of order")
        if told is not None and told != ref_of(name, page):
            raise ManifestError(f"{path} is not what its parent says about it")
        if look is not None and not page.level:
            await look(path, page.entries)
        counts = await a_few_at_a_time(page.children, lambda one: self._verify(one.page, one, page.level - 1, look))
        return sum(counts) if page.level else len(page.entries)


def share_out(page: Page, places: list[Place]) -> list[tuple[Ref, list[Place]]]:
    """Return each child of a page with the sorted places that belong below it."""
    shares: list[tuple[Ref, list[Place]]] = []
    done = 0
    for number, child in enumerate(page.children, start=1):
        last = number == len(page.children)
        end = len(places) if last else bisect_left(places, page.children[number].low, done)
        shares.append((child, places[done:end]))
        done = end
    return shares


async def a_few_at_a_time(things: Sequence[T], call: Callable[[T], Awaitable[Result]]) -> list[Result]:
    """Return what `call` returns for each thing, in their order, with as many requests at a time as a store allows."""
    return await map_concurrently(things, call, at_once=REQUESTS_AT_ONCE)
