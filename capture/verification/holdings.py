"""Adds up what an archive holds of each stream, from the finding about each of its objects. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from capture.archive.manifest import TABLE, Stored
from capture.archive.sequences import MOST_WAITING, MOST_WAITING_BYTES, GrowingSet, Sequences
from capture.archive.stored_formats import format_of
from capture.archive.trust import NO_CHECKS, Trust
from capture.verification.verdict import Holdings

UNDECODABLE_KEY = "_undecodable"  # the same as `capture.partitioners.UNDECODABLE`; a user's key has another text


class State(Enum):
    """The state of an object."""

    SOUND = "sound"  # matches its record
    UNCHECKED = "unchecked"  # exists, and no more could be checked
    WRONG = "wrong"  # whole, but does not match its record
    DAMAGED = "damaged"  # changed or cut off: it holds nothing
    GONE = "gone"


BROKEN = frozenset({State.WRONG, State.DAMAGED, State.GONE})


@dataclass(frozen=True)
class Finding:
    """The result of checking one object, and a sentence about its problem.

    `held` and `rows` are set only if they differ from its record, so that thousands of findings take little memory.
    """

    state: State
    sentence: str = ""
    held: Sequences | None = None
    rows: int = 0


SOUND = Finding(State.SOUND)


def recorded_sequences(record: Stored) -> Sequences:
    """Return the sequences that a record says its object holds; none if they can't be read."""
    try:
        return Sequences.from_bytes(record.sequences)
    except ValueError:
        return Sequences()


class Kind(NamedTuple):
    """Objects that count alike: of the table, under the undecodable key, proven, and not keeping messages whole.

    `partly` is the name of the format if it does not keep messages whole, otherwise None.
    """

    table: bool
    undecodable: bool
    proven: bool
    partly: str | None


class Held(NamedTuple):
    """An object that was checked: its record, the sequences in the record, and the finding."""

    record: Stored
    recorded: Sequences
    finding: Finding
    adopted: bool

    def find(self) -> Sequences:
        """Return the sequences that the object holds."""
        if self.finding is SOUND or self.finding.state not in BROKEN:
            return self.recorded
        return self.finding.held or Sequences()


class Sums:
    """The holdings of each stream, added up a part at a time: memory grows with the sets and with what is not sound.

    `deep`: every sound object was read again. Undecodable messages are only under the undecodable key; proven ones are
    in an adopted object that was just read in full.
    """

    def __init__(self, *, deep: bool, trust: Trust = NO_CHECKS) -> None:
        self._deep, self._trust = deep, trust
        self._streams: dict[str, _Sum] = defaultdict(_Sum)
        self._waiting = self._waiting_bytes = 0

    def __repr__(self) -> str:
        return f"Sums({', '.join(sorted(self._streams))})"

    def add(self, part: Iterable[Held]) -> None:
        """Add objects that were checked."""
        for one in part:
            stream, kind = self._streams[one.record.stream], self._kind_of(one)
            found = one.find()
            stream.waiting[kind].append(found)
            stream.count(one, found, in_table=kind.table)
            if self._trust.encrypted_only:
                stream.refused += self._trust.list_refused([one.record])
            self._waiting += 1
            self._waiting_bytes += len(one.record.sequences)
        if self._waiting >= MOST_WAITING or self._waiting_bytes >= MOST_WAITING_BYTES:
            for stream in self._streams.values():
                stream.join()
            self._waiting = self._waiting_bytes = 0

    def _kind_of(self, one: Held) -> Kind:
        return _make_kind(
            one.record.path.startswith(TABLE),
            one.record.key == UNDECODABLE_KEY,
            self._deep and one.adopted and one.finding.state is State.SOUND,
            one.record.format,
        )

    def total(self, removed: Mapping[str, Sequences]) -> dict[str, Holdings]:
        """Return the holdings of each stream. `removed` is what retention has removed (`Picture.removed`)."""
        streams = sorted({*self._streams, *removed})
        return {name: self._streams[name].total(removed.get(name, Sequences())) for name in streams}


@lru_cache(maxsize=256)  # asked for each object
def _make_kind(table: bool, undecodable: bool, reread: bool, recorded: str) -> Kind:
    """Return the kind of objects in a recorded format. CSV does not keep messages whole: it has no payloads."""
    partly = None if format_of(recorded).restorable else recorded.partition(".")[0]
    return Kind(table=table, undecodable=undecodable, proven=reread and partly is None, partly=partly)


@dataclass
class _Sum:
    """The sum of one stream."""

    sets: dict[Kind, GrowingSet] = field(default_factory=lambda: defaultdict(GrowingSet))
    failed: list[Held] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    waiting: dict[Kind, list[Sequences]] = field(default_factory=lambda: defaultdict(list))
    rows: int = 0
    objects: int = 0
    bytes: int = 0

    def join(self) -> None:
        """Add the waiting sets to the whole ones: together, since the work for each addition grows with the whole."""
        for kind, sets in self.waiting.items():
            self.sets[kind].add(Sequences.union_of(sets))
            self.sets[kind].compact()
        self.waiting.clear()

    def count(self, one: Held, found: Sequences, *, in_table: bool) -> None:
        self.objects += 1
        self.bytes += one.record.bytes
        if in_table and found:
            self.rows += one.finding.rows or one.record.count
        if one.finding is SOUND:
            return
        if one.finding.state in BROKEN:
            self.failed.append(one)
        elif one.finding.state is State.UNCHECKED:
            self.unchecked.append(one.finding.sentence)

    def total(self, removed: Sequences) -> Holdings:
        self.join()
        sets = {kind: union.all for kind, union in self.sets.items()}
        stored = Sequences.union_of(sets.values())
        table = Sequences.union_of(one for kind, one in sets.items() if kind.table)
        dangling = [one for one in self.failed if one.finding.state is State.GONE and not one.adopted]
        broken = [one for one in self.failed if one.finding.state is not State.GONE or one.adopted]
        lost = Sequences.union_of(one.recorded for one in broken) - stored
        return Holdings(
            stored=stored,
            table=table,
            undecodable=stored - Sequences.union_of(one for kind, one in sets.items() if not kind.undecodable),
            incomplete=dict(_find_incomplete(sets)),
            proven=Sequences.union_of(one for kind, one in sets.items() if kind.proven),
            removed=removed - stored - lost,
            lost=lost,
            dangling={one.finding.sentence: one.recorded - stored - removed for one in dangling},
            duplicates=self.rows - len(table),
            problems=tuple(one.finding.sentence for one in broken),
            unchecked=tuple(self.unchecked),
            refused=tuple(self.refused),
            objects=self.objects,
            bytes=self.bytes,
        )


def _find_incomplete(sets: Mapping[Kind, Sequences]) -> Iterator[tuple[str, Sequences]]:
    """Yield the sequences that are in no object of a format that keeps messages whole, by the name of their format."""
    whole = Sequences.union_of(one for kind, one in sets.items() if kind.partly is None)
    for name in sorted({kind.partly for kind in sets if kind.partly is not None}):
        yield name, Sequences.union_of(one for kind, one in sets.items() if kind.partly == name) - whole
