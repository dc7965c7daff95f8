"""Classifies every sequence of a stream, to show that nothing is missing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from capture.archive.sequences import Sequences
from natty.config.units import write_count

TOLD = 1000
"""The limit of runs of a set, and of sentences, in JSON; the rest is counted."""
SAID = 10
"""The limit of sentences about objects in the text for people."""


@dataclass(frozen=True, kw_only=True)
class StreamReport:
    """What a stream reports about itself, or what the archive has recorded of it.

    `first` is its first sequence; `last` is the last one that must be stored: acknowledged, not in flight. `deleted`
    were deleted in the stream, below `first` too if that was recorded. `unwanted` were not to be captured (other
    subjects, before its start); for `doubtful` ones that can't be determined any more. `delivered` is the highest
    sequence that was ever delivered to capture, if known. `awaited` are acknowledged, and nodes may still store them.
    `acks_delete`: the stream is a work queue, or has interest retention. `limited`: messages may have left it because
    of a limit (age, number, size, a TTL). `accountable` is the sequence from which on the archive claims to hold every
    message, and no limit can have removed one; None: there is none, or it is not known. `no_consumer`: capture reads
    all that the archive does not hold, and `last` is the stream's. Read `last` before the archive and the rest after
    it: see `verification.check`.
    """

    first: int
    last: int
    deleted: Sequences = field(default_factory=Sequences)
    unwanted: Sequences = field(default_factory=Sequences)
    doubtful: Sequences = field(default_factory=Sequences)
    delivered: int | None = None
    awaited: Sequences = field(default_factory=Sequences)
    acks_delete: bool = False
    limited: bool = True
    accountable: int | None = None
    no_consumer: bool = False


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What the archive holds of one stream, as far as its objects exist and are sound.

    `stored` are all its sequences, `undecodable` those of them that could not be decoded, `table` those that are
    compacted. `incomplete`, by format, are those of which no object holds the whole message: see
    `StoredFormat.restorable`.
    `proven` are in an object that a committed document names and that was just read again, complete and correct, with
    every payload. `removed` were removed by the archive's own retention, and no other object holds them. `lost` are
    recorded for damaged objects, and no other object holds them. `dangling`, by a sentence for each, are the same for
    blocks that disappeared before they were adopted: a writer that gave up such a block has acknowledged none of its
    messages. `duplicates` is the number of surplus rows in the table. `problems` are sentences about damage,
    `unchecked` about objects that could not be checked, `refused` about those that the configuration does not allow.
    `unread`: the index is damaged, so nothing is known of the objects.
    """

    stored: Sequences = field(default_factory=Sequences)
    table: Sequences = field(default_factory=Sequences)
    undecodable: Sequences = field(default_factory=Sequences)
    incomplete: Mapping[str, Sequences] = field(default_factory=dict)
    proven: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    lost: Sequences = field(default_factory=Sequences)
    dangling: Mapping[str, Sequences] = field(default_factory=dict)
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    unread: bool = False
    objects: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The class of every sequence: `stored`, `undecodable`, `deleted`, `expired` or `missing`, never two.

    More classes are not faults: `removed` by the archive's own retention; `unwanted`, on subjects that are not captured
    or from before its start; `beyond`, the part of `stored` above the last compared sequence; `awaited`, which nodes
    may still store; `remaining`, which capture without a consumer has still to read or to store. `unseen` is the part
    of `expired` that was provably gone before it could be delivered to capture, `incomplete` the part of `undecodable`
    that is only in objects which do not keep messages whole.
    For `unproven` ones this can't be determined: they were in a stream that deletes acknowledged messages.
    `unexplained` is the part of these that the archive claims to hold, and that no limit of the stream can have
    removed. `limited`: limits may have removed the expired ones; `acks_delete`: acknowledgements may have. `waiting`
    are stored and not yet in the table. If there is no stream to compare with, `asked` is False, and `unknown` are the
    gaps whose content can't be determined. If the archive is `unread`, all its sequences are unknown.
    """

    stored: Sequences = field(default_factory=Sequences)
    undecodable: Sequences = field(default_factory=Sequences)
    deleted: Sequences = field(default_factory=Sequences)
    expired: Sequences = field(default_factory=Sequences)
    missing: Sequences = field(default_factory=Sequences)
    removed: Sequences = field(default_factory=Sequences)
    unwanted: Sequences = field(default_factory=Sequences)
    unseen: Sequences = field(default_factory=Sequences)
    incomplete: Sequences = field(default_factory=Sequences)
    unproven: Sequences = field(default_factory=Sequences)
    unexplained: Sequences = field(default_factory=Sequences)
    unknown: Sequences = field(default_factory=Sequences)
    waiting: Sequences = field(default_factory=Sequences)
    beyond: Sequences = field(default_factory=Sequences)
    awaited: Sequences = field(default_factory=Sequences)
    remaining: Sequences = field(default_factory=Sequences)
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    asked: bool = True
    unread: bool = False
    limited: bool = True
    acks_delete: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is missing, the table holds no sequence twice, and no object is damaged."""
        return not self.missing and not self.duplicates and not self.problems

    def sentence(self) -> str:
        """Return the verdict for people, in one sentence; problems come last."""
        if self.unread:
            which = (
                f": {write_count(len(self.unknown), 'sequence', 'is', 'are')} unchecked ({self.unknown.describe()})"
                if self.unknown
                else ""
            )
            return f"the archive could not be read{which}; {self._judge()}"
        classes = (
            (self.stored, "stored"),
            (self.undecodable - self.incomplete, "undecodable and kept raw"),
            (self.incomplete, "undecodable and not kept whole"),
            (self.deleted, "deleted in the stream"),
            (self.expired, self._name_expired()),
            (self.unseen, "of these certainly before they were delivered to capture"),
            (
                self.unproven - self.unexplained,
                "of these without proof that capture did not lose them: this stream deletes acked messages",
            ),
            (self.removed, "removed by the archive's retention"),
            (self.unwanted, "outside the capture scope"),
        )
        found = [f"{len(held):,} {name}" for held, name in classes if held]
        if not self.stored and not self.undecodable:
            found.insert(0, "nothing stored")
        if self.waiting:
            found.append(f"{len(self.waiting):,} of them not compacted yet")
        if self.unknown:
            found.append(f"{len(self.unknown):,} others unknown ({self.unknown.describe()})")
        return f"{', '.join(found)}; {self._judge()}"

    def _name_expired(self) -> str:
        if self.acks_delete:
            return "removed from the stream"
        return "expired in the stream" if self.limited else "purged from the stream"

    def _judge(self) -> str:
        wrong = [f"{len(self.missing):,} MISSING ({self.missing.describe()})"] if self.missing else []
        wrong += [f"{self.duplicates:,} twice in the table"] if self.duplicates else []
        wrong += list_some(self.problems)
        if self.awaited:
            wrong.append(
                f"{write_count(len(self.awaited), 'acknowledged message', 'is', 'are')} not stored yet"
                f" ({self.awaited.describe()}), and nodes may hold them: the sweep stores those that no node has"
                " stored within ack_wait, check again then"
            )
        if self.unexplained:
            removed = write_count(len(self.unexplained), "message", "was", "were")
            wrong.append(
                f"{removed} removed from the stream without being captured ({self.unexplained.describe()}), and no"
                " limit of the stream explains it: acknowledged by another client, purged, or deleted (on purpose:"
                " --accept)"
            )
        if not wrong:
            wrong = ["nothing is missing" if self.asked else "every object is sound"]
        if not self.asked:
            wrong.append("the stream was not compared")
        return "; ".join([*wrong, *list_some(self.unchecked)])

    def as_dict(self) -> dict[str, object]:
        """Return counts, the missing sequences as runs, and the problems: for JSON."""
        missing, unexplained = (list(islice(one.runs(), TOLD + 1)) for one in (self.missing, self.unexplained))
        return {
            "ok": self.ok,
            **{name: len(getattr(self, name)) for name in COUNTED},
            "missing_runs": [list(run) for run in missing[:TOLD]],
            "more_runs": len(missing) > TOLD,
            "unexplained_runs": [list(run) for run in unexplained[:TOLD]],
            "more_unexplained_runs": len(unexplained) > TOLD,
            "duplicates": self.duplicates,
            "problems": list(self.problems[:TOLD]),
            "more_problems": max(0, len(self.problems) - TOLD),
            "unchecked": list(self.unchecked[:TOLD]),
            "more_unchecked": max(0, len(self.unchecked) - TOLD),
            "stream_asked": self.asked,
        }


COUNTED = (
    "stored", "undecodable", "deleted", "expired", "missing", "removed", "unwanted", "unseen", "unproven",
    "unexplained", "unknown", "waiting", "beyond", "awaited", "remaining",
)  # fmt: skip
"""The sets of a verdict whose sizes are in its JSON."""


def list_some(sentences: tuple[str, ...]) -> list[str]:
    """Return the first SAID sentences, and one with the number of the others."""
    more = len(sentences) - SAID
    return [*sentences[:SAID], f"and {more:,} more like these"] if more > 0 else list(sentences)


def compare(held: Holdings, stream: StreamReport | None) -> Verdict:
    """Return the class of every sequence. Without a stream, only the content of damaged objects can be missing."""
    if held.unread:
        ever = Sequences.from_range(1, stream.last) - stream.unwanted if stream else Sequences()
        return Verdict(**_shared_fields(held), unknown=ever, asked=stream is not None, unread=True)
    if stream is None:
        return _compare_alone(_mark_missed(held, Sequences.union_of(held.dangling.values())))
    inside, ever = Sequences.from_range(stream.first, stream.last), Sequences.from_range(1, stream.last)
    held = _mark_missed(held, ever)
    ours = held.stored | held.lost | held.removed
    deleted = (ever & stream.deleted) - ours
    expired = ever - inside - deleted - ours
    unaccounted = inside - deleted - ours
    unseen = expired & _find_unseen(held, stream)
    unproven = (deleted | expired) - unseen if stream.acks_delete else Sequences()
    remaining = unaccounted - stream.unwanted if stream.no_consumer else Sequences()
    return Verdict(
        **_shared_fields(held),
        deleted=deleted,
        expired=expired,
        missing=(unaccounted - stream.unwanted - stream.doubtful - stream.awaited - remaining) | held.lost,
        remaining=remaining,
        awaited=(unaccounted & stream.awaited) - stream.unwanted - stream.doubtful,
        unwanted=unaccounted & stream.unwanted,
        unseen=unseen,
        unproven=unproven,
        unexplained=unproven.within(stream.accountable or stream.last + 1, stream.last),
        unknown=(unaccounted & stream.doubtful) - stream.unwanted,
        beyond=held.stored - ever,
        limited=stream.limited,
        acks_delete=stream.acks_delete,
    )


def _mark_missed(held: Holdings, acknowledged: Sequences) -> Holdings:
    """Return the holdings with the acknowledged part of the dangling blocks as lost, and as a problem."""
    missed = {sentence: lost & acknowledged for sentence, lost in held.dangling.items()}
    return replace(
        held,
        lost=held.lost | Sequences.union_of(missed.values()),
        problems=(*held.problems, *(sentence for sentence, lost in missed.items() if lost)),
    )


def _find_unseen(held: Holdings, stream: StreamReport) -> Sequences:
    """Return the sequences below the stream's first, and above all that were ever delivered to capture or stored.

    A consumer delivers messages in order and skips those that are gone: below its position nothing is proven.
    """
    if stream.delivered is None:
        return Sequences()
    highest = max(stream.delivered, held.stored.last if held.stored else 0)
    return Sequences.from_range(highest + 1, stream.first - 1)


def _compare_alone(held: Holdings) -> Verdict:
    known = held.stored | held.lost | held.removed
    span = Sequences.from_range(known.first, known.last) if known else known
    return Verdict(**_shared_fields(held), missing=held.lost, unknown=span - known, asked=False)


def _shared_fields(held: Holdings) -> dict[str, Any]:
    return {
        "stored": held.stored - held.undecodable,
        "undecodable": held.undecodable,
        "incomplete": held.undecodable & Sequences.union_of(held.incomplete.values()),
        "removed": held.removed,
        "waiting": held.stored - held.table,
        "duplicates": held.duplicates,
        "problems": held.problems,
        "unchecked": held.unchecked,
    }
