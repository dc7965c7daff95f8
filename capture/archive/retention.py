"""Retention: which objects to remove, by age or by size, and the record of removed ones.

Each leader removes its own objects: the sweep's leader blocks, the compaction's leader table files. Both call the same
pure function on the same picture, so together they remove the oldest objects of either kind.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from capture.archive.manifest import Removed, Stored
from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import CaptureError, ManifestError

LONGEST = 1e10  # seconds: three hundred years


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long to keep some blocks and table files: one `[[retention]]` of the file. Seconds and bytes.

    It applies to the objects whose stream and key match its patterns (`*`, `?`, `[…]`) and that no earlier rule
    matches. They are removed `older_than` after the stream stored their latest message, and, the oldest first, while
    there are more than `keep_bytes` of them. With neither, the rule keeps them without end.
    """

    older_than: Annotated[float, msgspec.Meta(gt=0, le=LONGEST)] | None = None
    keep_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None
    stream: str = "*"
    key: str = "*"

    def decides(self, one: Stored) -> bool:
        """Return whether the object matches."""
        return fnmatchcase(one.stream, self.stream) and fnmatchcase(one.key, self.key)


@dataclass(frozen=True)
class Expired:
    """An object that a rule removes, and the reason."""

    object: Stored
    reason: str


NOTHING: Mapping[int, int] = {}


@dataclass(frozen=True)
class Retention:
    """The rules, and the length of an interval in seconds: its end counts if the latest message is not recorded."""

    rules: Sequence[Rule] = ()
    interval: float = 0.0

    def number_of(self, one: Stored) -> int | None:
        """Return the number of the rule that decides about this object; None if there is none."""
        return next((number for number, rule in enumerate(self.rules) if rule.decides(one)), None)

    def is_older(self, one: Stored, number: int, now: float) -> bool:
        """Return whether the rule of this number removes the object at `now` for its age."""
        rule = self.rules[number]
        return rule.older_than is not None and self._latest(one) < now - rule.older_than

    def find_expired(
        self, objects: Iterable[Stored], now: float, *, elsewhere: Mapping[int, int] = NOTHING
    ) -> list[Expired]:
        """Return which of the archive's objects to remove at `now` (Unix seconds), the oldest of each rule first; pure.

        `objects` are all blocks and table files of a picture: their sizes are added up. Or they are the oldest ones,
        and `elsewhere` has the bytes of the others by the number of their rule.
        """
        if not self.rules:
            return []
        decided: dict[int, list[Stored]] = defaultdict(list)
        for one in objects:
            if (number := self.number_of(one)) is not None:
                decided[number].append(one)
        return [
            gone
            for number, mine in sorted(decided.items())
            for gone in self._apply_rule(number, mine, now, elsewhere.get(number, 0))
        ]

    def _apply_rule(self, number: int, objects: list[Stored], now: float, elsewhere: int) -> list[Expired]:
        rule, gone = self.rules[number], []
        ordered = sorted(objects, key=lambda one: (one.interval, one.first, one.path))
        if rule.older_than is not None:
            reason = f"rule {number + 1}, older_than"
            gone = [Expired(one, reason) for one in ordered if self.is_older(one, number, now)]
            ordered = [one for one in ordered if not self.is_older(one, number, now)]
        left = sum(one.bytes for one in ordered) + elsewhere
        for one in ordered:
            if rule.keep_bytes is None or left <= rule.keep_bytes:
                break
            gone.append(Expired(one, f"rule {number + 1}, keep_bytes"))
            left -= one.bytes
        return gone

    def _latest(self, one: Stored) -> float:
        return one.max_ns / 1e9 if one.max_ns else one.interval + self.interval


EVERYTHING = Retention()
"""Without rules, everything is kept."""


def record_removed(removed: Iterable[Removed], objects: Iterable[Stored], at: float) -> list[Removed]:
    """Return the record of what retention has removed, with these objects added; pure."""
    record = {one.stream: one for one in removed}
    added: dict[str, list[Stored]] = defaultdict(list)
    for one in objects:
        added[one.stream].append(one)
    for stream, gone in added.items():
        before = record.get(stream) or Removed(stream=stream, sequences="", objects=0, bytes=0, at=at)
        sets = [Sequences.from_text(before.sequences), *(Sequences.from_bytes(one.sequences) for one in gone)]
        record[stream] = Removed(
            stream=stream,
            sequences=Sequences.union_of(sets).to_text(),
            objects=before.objects + len(gone),
            bytes=before.bytes + sum(one.bytes for one in gone),
            at=at,
            below=before.below,
        )
    return sorted(record.values(), key=lambda one: one.stream)


def sum_up(removed: Iterable[Removed], below: Mapping[str, int], at: float) -> list[Removed]:
    """Return the record with the exact sequences below each stream's number in `below` replaced by that number; pure.

    An exact set of them would grow with the stream's age, wherever sequences of other subjects are between them.
    """
    record = {one.stream: one for one in removed}
    for stream, first in below.items():
        before = record.get(stream) or Removed(stream=stream, sequences="", objects=0, bytes=0, at=at)
        if first > max(1, before.below):
            left = Sequences.from_text(before.sequences).within(first, MAXIMUM)
            record[stream] = msgspec.structs.replace(before, sequences=left.to_text(), below=first)
    return sorted(record.values(), key=lambda one: one.stream)


def removed_sequences(*records: Iterable[Removed]) -> Mapping[str, Sequences]:
    """Return, by stream, the removed sequences according to one or more records. ManifestError."""
    sets: dict[str, list[Sequences]] = defaultdict(list)
    for one in (one for record in records for one in record):
        try:
            sets[one.stream] += [Sequences.from_text(one.sequences), Sequences.from_range(1, one.below - 1)]
        except (ValueError, CaptureError) as error:
            raise ManifestError(f"the record of what was removed of {one.stream} is damaged: {error}") from error
    return {stream: Sequences.union_of(held) for stream, held in sets.items()}
