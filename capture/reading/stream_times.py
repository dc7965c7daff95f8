"""Finds sequences of a stream by the time at which the stream stored their messages."""

from __future__ import annotations

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
