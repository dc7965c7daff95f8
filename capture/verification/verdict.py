"""Where every sequence of a stream is: the arithmetic of "nothing is missing". Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from capture.archive.sequences import Sequences

TOLD = 1000
"""Runs of a set, and sentences, that are told to programs; what is left off is counted."""
SAID = 10
"""Sentences about objects that are said to people."""


@dataclass(frozen=True, kw_only=True)
class StreamView:
    """What a stream says of itself, or what the archive has recorded of it.

    `first` is its first sequence, `last` the last one that must be stored: what was acknowledged, not what is on its
    way. `deleted` were deleted in it, below `first` too where that was recorded. `unwanted` were not to be captured
    (other subjects, before its start), of `doubtful` ones that can't be told any more. `delivered` is the highest one
    that capture was ever given, if known. `awaited` are acknowledged, and nodes may still store them. `acks_delete`: it
    is a work queue, or keeps what somebody has an interest in.
    Read `last` before the archive and the rest after it: see `verification.check`.
    """

    first: int
    last: int
    deleted: Sequences = field(default_factory=Sequences)
    unwanted: Sequences = field(default_factory=Sequences)
    doubtful: Sequences = field(default_factory=Sequences)
    delivered: int | None = None
    awaited: Sequences = field(default_factory=Sequences)
    acks_delete: bool = False


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What the archive holds of one stream, as far as its objects are there and sound.

    `stored` is all of it, `undecodable` what of this is stored raw, `table` what is compacted, `proven` what lies in an
    object that a committed document names and that was read again, whole and right, just now, with every payload.
    `removed` is what the archive's own retention has removed, and nothing else holds.
    `lost` is what damaged objects were recorded to hold, and nothing else holds. `dangling`, by a sentence for each, is
    the same of blocks that are gone before they were adopted: a writer that gave such a block up has acknowledged
    nothing of it. `duplicates` are rows that the table has too often. `problems` are sentences about what is damaged,
    `unchecked` about what could not be checked.
    """

    stored: Sequences = field(default_factory=Sequences)
    table: Sequences = field(default_factory=Sequences)
    undecodable: Sequences = field(default_factory=Sequences)
    proven: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    lost: Sequences = field(default_factory=Sequences)
    dangling: Mapping[str, Sequences] = field(default_factory=dict)
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Where every sequence is: `stored`, `undecodable` (stored raw), `deleted`, `expired` or `missing`, never two.

    More classes are no fault: `removed` by the archive's own retention; `unwanted`, of subjects that are not captured
    or from before its start; `beyond`, a part of `stored` above the last one that was compared; `awaited`, of which it
    is not known yet whether a node stores them. `unseen` is the part of
    `expired` that provably was gone before capture was given it; of `unproven` ones nobody can tell, and they were in a
    stream that deletes what is acknowledged. `waiting` are stored and not yet in the table. Where there is no stream to
    compare with, `asked` is False, and `unknown` are the gaps of which nobody can tell what was in them.
    """

    stored: Sequences
    undecodable: Sequences
    deleted: Sequences
    expired: Sequences
    missing: Sequences
    removed: Sequences
    unwanted: Sequences
    unseen: Sequences
    unproven: Sequences
    unknown: Sequences
    waiting: Sequences
    beyond: Sequences
    awaited: Sequences = field(default_factory=Sequences)
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    asked: bool = True

    @property
    def ok(self) -> bool:
        """Tell whether nothing is missing, the table holds nothing twice, and no object is damaged."""
        return not self.missing and not self.duplicates and not self.problems

    def sentence(self) -> str:
        """Return the verdict for people, in one sentence; what is wrong comes last."""
        classes = (
            (self.stored, "stored"),
            (self.undecodable, "undecodable and kept raw"),
            (self.deleted, "deleted in the stream"),
            (self.expired, "expired in the stream"),
            (self.unseen, "of these certainly before capture was given them"),
            (self.unproven, "of these without proof that capture did not lose them: this stream deletes what is acked"),
            (self.removed, "removed by the archive's retention"),
            (self.unwanted, "not to be captured"),
        )
        found = [f"{len(held):,} {name}" for held, name in classes if held]
        if not self.stored and not self.undecodable:
            found.insert(0, "nothing stored")
        if self.waiting:
            found.append(f"{len(self.waiting):,} of them not compacted yet")
        if self.unknown:
            found.append(f"nobody can tell what {len(self.unknown):,} others were ({self.unknown.describe()})")
        return f"{', '.join(found)}; {self._judgement()}"

    def _judgement(self) -> str:
        wrong = [f"{len(self.missing):,} MISSING ({self.missing.describe()})"] if self.missing else []
        wrong += [f"{self.duplicates:,} twice in the table"] if self.duplicates else []
        wrong += _some(self.problems)
        if self.awaited:
            wrong.append(
                f"{len(self.awaited):,} acknowledged ones are not stored yet ({self.awaited.describe()}), and nodes may"
                " hold them: the sweep stores those that no node has stored within ack_wait, check again then"
            )
        if not wrong:
            wrong = ["nothing is missing" if self.asked else "every object is sound"]
        if not self.asked:
            wrong.append("the stream was not asked")
        return "; ".join([*wrong, *_some(self.unchecked)])

    def as_dict(self) -> dict[str, object]:
        """Return counts, what is missing as runs, and the problems: for JSON."""
        runs = list(islice(self.missing.runs(), TOLD + 1))
        return {
            "ok": self.ok,
            **{name: len(getattr(self, name)) for name in COUNTED},
            "missing_runs": [list(run) for run in runs[:TOLD]],
            "more_runs": len(runs) > TOLD,
            "duplicates": self.duplicates,
            "problems": list(self.problems[:TOLD]),
            "more_problems": max(0, len(self.problems) - TOLD),
            "unchecked": list(self.unchecked[:TOLD]),
            "more_unchecked": max(0, len(self.unchecked) - TOLD),
            "stream_asked": self.asked,
        }


COUNTED = (
    "stored", "undecodable", "deleted", "expired", "missing", "removed", "unwanted", "unseen", "unproven",
    "unknown", "waiting", "beyond", "awaited",
)  # fmt: skip
"""The sets of a verdict that programs are told the sizes of."""


def _some(sentences: tuple[str, ...]) -> list[str]:
    more = len(sentences) - SAID
    return [*sentences[:SAID], f"and {more:,} more like these"] if more > 0 else list(sentences)


def compare(held: Holdings, stream: StreamView | None) -> Verdict:
    """Say of every sequence where it is. Without a stream nothing can be missing but what a damaged object had."""
    if stream is None:
        return _alone(_missed(held, Sequences.union_of(held.dangling.values())))
    inside, ever = Sequences.from_range(stream.first, stream.last), Sequences.from_range(1, stream.last)
    held = _missed(held, ever)
    ours = held.stored | held.lost | held.removed
    deleted = (ever & stream.deleted) - ours
    expired = ever - inside - deleted - ours
    unaccounted = inside - deleted - ours
    unseen = expired & _unseen(held, stream)
    return Verdict(
        **_kept(held),
        deleted=deleted,
        expired=expired,
        missing=(unaccounted - stream.unwanted - stream.doubtful - stream.awaited) | held.lost,
        awaited=(unaccounted & stream.awaited) - stream.unwanted - stream.doubtful,
        unwanted=unaccounted & stream.unwanted,
        unseen=unseen,
        unproven=(deleted | expired) - unseen if stream.acks_delete else Sequences(),
        unknown=(unaccounted & stream.doubtful) - stream.unwanted,
        beyond=held.stored - ever,
    )


def _missed(held: Holdings, acknowledged: Sequences) -> Holdings:
    """Return the holdings with what of the dangling blocks was acknowledged as lost, and as a problem."""
    missed = {sentence: lost & acknowledged for sentence, lost in held.dangling.items()}
    return replace(
        held,
        lost=held.lost | Sequences.union_of(missed.values()),
        problems=(*held.problems, *(sentence for sentence, lost in missed.items() if lost)),
    )


def _unseen(held: Holdings, stream: StreamView) -> Sequences:
    """Return what is below the stream's first, and above all that capture was ever given or has stored.

    A consumer is given messages in order, and what is gone is skipped: below its position nothing is proven.
    """
    if stream.delivered is None:
        return Sequences()
    highest = max(stream.delivered, held.stored.last if held.stored else 0)
    return Sequences.from_range(highest + 1, stream.first - 1)


def _alone(held: Holdings) -> Verdict:
    known = held.stored | held.lost | held.removed
    span = Sequences.from_range(known.first, known.last) if known else Sequences()
    nothing = Sequences()
    return Verdict(
        **_kept(held),
        deleted=nothing,
        expired=nothing,
        missing=held.lost,
        unwanted=nothing,
        unseen=nothing,
        unproven=nothing,
        unknown=span - known,
        beyond=nothing,
        asked=False,
    )


def _kept(held: Holdings) -> dict[str, Any]:
    return {
        "stored": held.stored - held.undecodable,
        "undecodable": held.undecodable,
        "removed": held.removed,
        "waiting": held.stored - held.table,
        "duplicates": held.duplicates,
        "problems": held.problems,
        "unchecked": held.unchecked,
    }
