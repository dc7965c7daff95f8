"""Decides which object gives which of the selected messages, from the records of the objects. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from capture.archive.index.tree import Where
from capture.archive.manifest import TABLE, Stored
from capture.archive.sequences import MAXIMUM, Sequences
from capture.archive.stored_formats import format_of
from capture.errors import FormatError

if TYPE_CHECKING:  # a command line that plans what to read starts without it
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The selected messages: from the first to the last sequence, both included, that the stream stored at or after
    `since_ns` and before `until_ns` (Unix nanoseconds).

    `subjects` are filters with wildcards, one of which must match; () selects every subject.
    """

    start_sequence: int = 1
    end_sequence: int = MAXIMUM
    since_ns: int | None = None
    until_ns: int | None = None
    subjects: tuple[str, ...] = ()

    def among(self, sequences: Sequences) -> Sequences:
        """Return the sequences that are selected by `start_sequence` and `end_sequence`."""
        if not sequences or (self.start_sequence <= sequences.first and sequences.last <= self.end_sequence):
            return sequences
        first, last = max(self.start_sequence, sequences.first), min(self.end_sequence, sequences.last)
        return sequences.within(first, last)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns, besides the sequence, that decide whether a message is selected."""
        timed = self.since_ns is not None or self.until_ns is not None
        return frozenset([*(["time_ns"] if timed else []), *(["subject"] if self.subjects else [])])

    @property
    def where(self) -> Where:
        """Which objects may hold selected messages."""
        until = MAXIMUM if self.until_ns is None else self.until_ns - 1
        return Where(times=(self.since_ns or 0, until), sequences=(self.start_sequence, self.end_sequence))

    def may_be_in(self, stored: Stored) -> bool:
        """Return whether an object may hold messages of these times. Not every record has the times."""
        return not stored.max_ns or (
            (self.since_ns is None or stored.max_ns >= self.since_ns)
            and (self.until_ns is None or stored.min_ns < self.until_ns)
        )

    def takes_all_of(self, stored: Stored) -> bool:
        """Return whether the record of an object proves that all of its messages are selected."""
        return not self.columns or (
            not self.subjects
            and stored.max_ns > 0
            and (self.since_ns is None or stored.min_ns >= self.since_ns)
            and (self.until_ns is None or stored.max_ns < self.until_ns)
        )

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose time and subject are selected."""
        import pyarrow.compute as pc

        masks = []
        if self.since_ns is not None:
            masks.append(pc.greater_equal(batch.column("time_ns"), _clamp(self.since_ns)))
        if self.until_ns is not None:
            masks.append(pc.less(batch.column("time_ns"), _clamp(self.until_ns)))
        if self.subjects:
            masks.append(pc.match_substring_regex(batch.column("subject"), self._pattern))
        for mask in masks[1:]:
            masks[0] = pc.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch

    @cached_property
    def _pattern(self) -> str:
        return "|".join("^" + r"\.".join(map(_token, one.split("."))) + "$" for one in self.subjects)


def _clamp(time_ns: int) -> int:
    """Return the nearest time that 64 bits of nanoseconds hold: the years 1678 to 2261."""
    return max(-(2**63), min(time_ns, 2**63 - 1))


def _token(token: str) -> str:
    return {"*": r"[^.]+", ">": r"(?s:.+)"}.get(token) or re.escape(token)


EVERYTHING = Selection()


@dataclass(frozen=True)
class Share:
    """The part of one object that is read: `given`, without `withheld`. Together they are what it holds."""

    stored: Stored
    given: Sequences
    withheld: Sequences

    @property
    def is_whole(self) -> bool:
        """Whether all rows of the object are given, and none of them repeats another one."""
        return not self.withheld and self.stored.count == len(self.given)

    def only(self, wanted: Sequences) -> Share:
        """Return the share with the wanted sequences only."""
        given = self.given & wanted
        return Share(self.stored, given, self.withheld | (self.given - given))


def narrow(plan: Iterable[Share], wanted: Sequences) -> list[Share]:
    """Return a plan with the wanted sequences only, sorted as by `shares`."""
    mine = [share for one in plan if (share := one.only(wanted)).given]
    return sorted(mine, key=lambda share: (share.given.first, share.stored.path))


def shares(objects: Iterable[Stored], selection: Selection = EVERYTHING) -> list[Share]:
    """Decide which object gives which of the selected sequences, each once. Sorted by their first sequences.

    Files of the table are preferred to blocks, and formats that keep whole messages to those that do not. FormatError
    if a record does not name the sequences of its object.
    """
    sets = [(one, parse_sequences(one)) for one in objects if selection.may_be_in(one)]
    lost = settle(sets, Sequences.find_repeated(mine for _, mine in sets))
    plan = [share_of(one, mine, lost.get(one.path), selection) for one, mine in sets]
    return sorted((share for share in plan if share.given), key=lambda share: (share.given.first, share.stored.path))


def share_of(
    stored: Stored, mine: Sequences, lost: Sequences | None = None, selection: Selection = EVERYTHING
) -> Share:
    """Return what an object gives that holds these sequences, of which other objects give the `lost` ones."""
    its = selection.among(mine if lost is None else mine - lost)
    return Share(stored, its, mine - its)


def settle(sets: Iterable[tuple[Stored, Sequences]], contested: Sequences) -> dict[str, Sequences]:
    """Return by path what an object does not give since another one does; `contested` are at least these sequences."""
    disputes = [(one, disputed) for one, mine in sets if (disputed := mine & contested)]
    disputes.sort(key=lambda of: (not keeps_whole(of[0].format), not of[0].path.startswith(TABLE), of[0].path))
    claimed, lost = Sequences(), {}
    for one, disputed in disputes:
        if taken := disputed & claimed:
            lost[one.path] = taken
        claimed |= disputed
    return lost


@lru_cache(maxsize=64)  # asked for each object
def keeps_whole(format: str) -> bool:
    """Return whether a format, as in a record, keeps messages whole."""
    return format_of(format).restorable


def plan_shares(objects: Iterable[Stored]) -> list[Share]:
    """Return the shares of the objects of all streams. FormatError."""
    by_stream: dict[str, list[Stored]] = defaultdict(list)
    for one in objects:
        by_stream[one.stream].append(one)
    return [share for mine in by_stream.values() for share in shares(mine)]


def parse_sequences(stored: Stored) -> Sequences:
    """Return the sequences in the record of an object. FormatError if it names none."""
    try:
        if found := Sequences.from_bytes(stored.sequences):
            return found
    except ValueError:
        pass
    raise FormatError(f"the record of {stored.path} has no readable sequences")


def sequences_of(objects: Iterable[Stored], selection: Selection = EVERYTHING) -> Sequences:
    """Return the sequences of these objects that are selected, without regard to times and subjects. FormatError."""
    return selection.among(Sequences.union_of(map(parse_sequences, objects)))
