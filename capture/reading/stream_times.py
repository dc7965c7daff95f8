"""Which sequences a stream has, and which one its messages since a time begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from capture.archive.sequences import Sequences
from natty import JetStreamError, Natty
from natty.config.units import parse_time
from natty.jetstream import NO_MESSAGE
from natty.streams import stream_state


async def read_present(natty: Natty, stream: str) -> tuple[Sequences, int]:
    """Return the sequences that a stream has, and its last one: it may be deleted. StreamNotFoundError."""
    state = await stream_state(natty.jetstream, stream, deleted=True)
    there = Sequences.from_range(max(1, state["first_seq"]), state["last_seq"])
    return there - Sequences.from_iterable(state.get("deleted") or ()), int(state["last_seq"])


class Extent(NamedTuple):
    """What a server says about the sequences of a stream without the list of the deleted ones: their number.

    These are between the first and the last sequence. `created` is when the stream was created, in the server's form.
    """

    stream: str
    created: str
    first: int
    last: int
    deleted: int

    @classmethod
    def of(cls, stream: str, info: Mapping[str, Any]) -> Self:
        """Return it from the server's information about the stream."""
        state = info["state"]
        first, last = int(state["first_seq"]), int(state["last_seq"])
        deleted = int(state.get("num_deleted", 0)) if last else 0  # an empty stream may report 1
        return cls(stream, info["created"], first, last, deleted)


class Deletions:
    """The deleted sequences of streams, as a server has listed them: it lists all of a stream, perhaps millions.

    So it is asked only when it counts others than the known ones. A deleted sequence stays deleted.
    """

    def __init__(self, natty: Natty) -> None:
        self._natty = natty
        self._known: dict[str, tuple[str, Sequences]] = {}  # when a stream was created, and its deleted sequences

    def __repr__(self) -> str:
        return f"Deletions({self._known})"

    def known(self, extent: Extent) -> Sequences:
        """Return the sequences between the stream's first and last one that are known to be deleted."""
        created, deleted = self._known.get(extent.stream, ("", Sequences()))
        inside = deleted.within(extent.first, extent.last)
        is_same = created == extent.created and len(inside) <= extent.deleted  # it was not restored meanwhile
        return inside if is_same else Sequences()

    async def present(self, extent: Extent) -> tuple[Sequences, int]:
        """Return the sequences that the stream has, and its last one, as `read_present`. NattyError."""
        known, first, last = self.known(extent), extent.first, extent.last
        if len(known) != extent.deleted:
            state = await stream_state(self._natty.jetstream, extent.stream, deleted=True)
            first, last = state["first_seq"], state["last_seq"]
            known = Sequences.from_iterable(state.get("deleted") or ())
            self._known[extent.stream] = extent.created, known
        return Sequences.from_range(max(1, first), last) - known, int(last)


async def find_first_since(natty: Natty, stream: str, present: Sequences, since: float) -> int | None:
    """Return a sequence from which on all messages are younger than `since` (Unix seconds), and none before; or None.

    Times grow with sequences, so this is a binary search. NattyError.
    """
    if not present:
        return None
    low, high = present.first, present.last + 1
    while low < high:
        middle = (low + high) // 2
        try:
            answer = await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": middle, "next_by_subj": ">"})
        except JetStreamError as error:
            if error.err_code != NO_MESSAGE:
                raise
            high = middle
            continue
        if parse_time(answer["message"]["time"]) >= since * 1e9:
            high = middle
        else:
            low = answer["message"]["seq"] + 1
    return low if low <= present.last else None
