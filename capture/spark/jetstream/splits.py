"""Computes which sequences each task reads, and which of them are lost. Pure: facts about a stream in, ranges out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import InputPartition

from capture.errors import DataLossError
from capture.reading.stream_range import StreamFacts, StreamRange

RANGE = 100_000
"""Sequences of a partition, if the number of partitions is not given: about a second's work."""

MAX_RANGES = 64

LEAVE = "set failOnDataLoss to false to continue with the messages that are left"


@dataclass(frozen=True)
class Offset:
    """The position of a streaming query: the next sequence to read, and of which stream, since it may be recreated."""

    stream: str
    created: str
    next: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as Spark keeps it in a checkpoint."""
        return asdict(self)


class Range(StreamRange, InputPartition):
    """The part of a stream that one task reads."""


def ranges(stream: StreamFacts, first: int, last: int, wanted: int = 0) -> list[Range]:
    """Cut the sequences from `first` to `last` into `wanted` ranges of about the same length.

    0: their number decides. It returns fewer ranges if there are fewer sequences, and none if there are none.
    """
    length = last - first + 1
    if length <= 0:
        return []
    count = min(length, wanted or min(MAX_RANGES, -(-length // RANGE)))
    cuts = [first + length * number // count for number in range(count + 1)]
    return [Range(stream, begin, end - 1) for begin, end in pairwise(cuts)]


def resume(stream: StreamFacts, offset: Offset, *, fail: bool, seen: int = 0) -> tuple[int, str]:
    """Return the sequence to continue with, and a sentence about lost messages; "" if none are lost.

    `seen` is the last sequence known to the query. With `fail`, it raises DataLossError with that sentence. Lost are
    messages that were removed from the stream's front before they were read, and all that may differ if the stream was
    recreated or restored to an earlier state. DataLossError, too, for the offset of another stream.
    """
    lost, first, seen = "", offset.next, max(seen, offset.next - 1)
    if offset.stream != stream.name:
        raise DataLossError(
            f"the checkpoint is of stream {offset.stream}, and the query reads {stream.name}: use another checkpoint"
        )
    if offset.created != stream.created:
        first = stream.first
        lost = (
            f"stream {stream.name} was deleted and created again at {stream.created}: messages of "
            f"the one of {offset.created} from sequence {offset.next} on can no longer be read"
        )
    elif stream.last < seen:
        first = min(first, stream.last + 1)
        lost = (
            f"stream {stream.name} ends at sequence {stream.last}, and it held {seen} before: it was restored to an "
            "earlier state, and will store other messages under the same numbers"
        )
    elif stream.first > offset.next:
        first = stream.first
        lost = describe_gone(stream.name, offset.next, stream.first - 1)
    if lost and fail:
        raise DataLossError(f"{lost}; {LEAVE}")
    return first, lost


def describe_gone(stream: str, first: int, last: int) -> str:
    """Return the sentence about a range that was removed before it was read."""
    count = last - first + 1
    what = f"sequence {first} was" if count == 1 else f"sequences {first}–{last} ({count}) were"
    return f"{what} removed from the front of stream {stream} before they were read: by its limits or a purge"


@dataclass
class Tally:
    """Counts the sequences of a range by their fate: read, removed one by one, or lost at the stream's front."""

    position: int
    """The next sequence that is not accounted for."""
    read: int = 0
    deleted: int = 0
    lost: int = 0

    def take(self, sequences: Sequence[int]) -> list[tuple[int, int]]:
        """Account for the next messages; return the first and the last sequence of each gap before them.

        Messages in a gap were removed one by one, or have another subject, or are lost.
        """
        whole = range(self.position, sequences[-1] + 1)
        self.read += len(sequences)
        self.deleted += len(whole) - len(sequences)
        self.position = whole.stop
        return [] if len(whole) == len(sequences) else list(_gaps(sequences, whole.start - 1))

    def end(self, last: int) -> list[tuple[int, int]]:
        """Account for the rest of the range, which has no messages; return it as `take` returns gaps."""
        rest = range(self.position, last + 1)
        self.deleted += len(rest)
        self.position = max(self.position, rest.stop)
        return [(rest.start, last)] if rest else []

    def lose(self, gap: tuple[int, int], front: int) -> tuple[int, int] | None:
        """Return the part of a gap that is lost, now that the stream begins at `front`; None if none is.

        In a gap that the front has not reached, messages were removed one by one, which is not a loss. Of a gap that it
        has passed it is unknown which messages were in it, and whether they existed when they should have been read.
        """
        first, last = gap[0], min(gap[1], front - 1)
        if last < first:
            return None
        self.deleted -= last - first + 1
        self.lost += last - first + 1
        return first, last


def _gaps(sequences: Sequence[int], before: int) -> Iterator[tuple[int, int]]:
    for sequence in sequences:
        if sequence > before + 1:
            yield before + 1, sequence - 1
        before = sequence
