"""The messages that were read and are not settled: neither stored and acknowledged, nor handed back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, compress

from capture.archive.sequences import Sequences
from capture.ingest.record import Delivered, Part

SPARE = 65_536
"""Ack subjects of settled messages that may be kept, besides as many as there are unsettled messages."""

_Read = tuple[Sequences, Part]
"""The messages of one read, and their sequences. Those that are settled may be missing."""


class Unsettled:
    """Messages that were read and not settled, by their sequences. `beat` returns those that must be kept alive.

    A message that is settled before its second beat, as most are, costs no request. One that was delivered twice is
    settled when one of its deliveries is: to the server an acknowledgement of any of them settles the message.

    Both `add` and `remove` cost a few operations on bitmaps for all their messages together.
    """

    def __init__(self) -> None:
        self._sequences = Sequences()
        self._new: list[_Read] = []  # since the last beat
        self._old: list[_Read] = []  # before it
        self._kept = 0  # messages of both; some are settled

    def __len__(self) -> int:
        return len(self._sequences)

    def __repr__(self) -> str:
        return f"Unsettled({self._sequences.describe()})"

    def add(self, messages: Delivered) -> None:
        """Add messages that were read."""
        sequences = Sequences.from_iterable(messages.sequences)
        self._sequences |= sequences
        self._new.append((sequences, Part(messages.sequences, messages.replies)))
        self._kept += len(messages.sequences)

    def remove(self, messages: Delivered) -> None:
        """Remove messages that are settled."""
        self._sequences -= Sequences.from_iterable(messages.sequences)
        for select in (self._drop_settled, self._cut_settled):  # the second one is rarely needed, and costs more
            if self._kept > 2 * len(self._sequences) + SPARE:
                self._keep(select)

    def beat(self) -> list[bytes]:
        """Return the ack subjects of the messages that were already here at the last beat: restart their `ack_wait`."""
        self._keep(self._drop_settled)
        self._old = self._cut_settled(self._old)
        due = _replies(self._old)
        self._old += self._new
        self._new = []
        return due

    def take(self) -> list[bytes]:
        """Remove all messages and return their ack subjects."""
        everything = _replies(self._cut_settled(self._old + self._new))
        self._sequences, self._new, self._old, self._kept = Sequences(), [], [], 0
        return everything

    def _keep(self, select: Callable[[list[_Read]], list[_Read]]) -> None:
        self._new, self._old = select(self._new), select(self._old)
        self._kept = sum(len(part.sequences) for _, part in self._new + self._old)

    def _drop_settled(self, reads: list[_Read]) -> list[_Read]:
        """Return the reads that have an unsettled message."""
        return [read for read in reads if not self._sequences.isdisjoint(read[0])]

    def _cut_settled(self, reads: list[_Read]) -> list[_Read]:
        """Return the unsettled messages of each read."""
        left: list[_Read] = []
        for sequences, part in reads:
            unsettled = self._sequences & sequences
            if len(unsettled) == len(part.sequences):
                left.append((sequences, part))
            elif unsettled:
                chosen = [one in unsettled for one in part.sequences]
                part = Part([*compress(part.sequences, chosen)], [*compress(part.replies, chosen)])
                left.append((unsettled, part))
        return left


def _replies(reads: list[_Read]) -> list[bytes]:
    return list(chain.from_iterable(part.replies for _, part in reads))
