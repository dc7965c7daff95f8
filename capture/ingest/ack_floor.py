"""The ack floor: the message up to which every delivered message is stored, so that one ack may cover all of them."""

from __future__ import annotations

from collections import deque

from capture.archive.sequences import Sequences
from capture.ingest.record import Delivered
from natty.wire.ack import ack_tokens
from natty.wire.message import Batch


class DeliveryGap(Exception):
    """The consumer delivered messages that did not arrive here."""


class Floor:
    """Tracks acknowledgements of a consumer whose messages all arrive here, in order, from its first delivery.

    The server forgets all pending messages up to the acknowledged one, whichever client has them. So this acknowledges
    only a sequence up to which every delivered message is stored, and a gap in the consumer's numbers is an error. It
    costs a few operations on bitmaps for each batch and for each block.
    """

    def __init__(self) -> None:
        self.begin()

    def __repr__(self) -> str:
        unstored = len(self._unstored | Sequences.from_iterable(self._fresh))
        return f"Floor({unstored} not stored, next delivery {self._next}, {len(self._reads)} to acknowledge)"

    def begin(self) -> None:
        """Start again: the consumer's next delivery has number 1, and follows the last acknowledged message."""
        self._next = 1
        self._last = 0
        self._unstored = Sequences()
        self._fresh: list[int] = []  # read since the last call of `note_stored`
        self._reads: deque[tuple[int, bytes]] = deque()  # (highest sequence so far, its reply), one for each batch
        self._highest: list[bytes] = []  # the reply that acknowledges the most, once something is stored

    def note_delivery(self, replies: list[bytes]) -> None:
        """Add arrived messages, in the order of the consumer's numbers. Raises DeliveryGap if one is missing."""
        first, last = (int(ack_tokens(reply)[6]) for reply in (replies[0], replies[-1]))
        if (first, last) != (self._next, self._next + len(replies) - 1):
            raise DeliveryGap(f"delivery {self._next - 1} was followed by {len(replies)}, numbered {first} to {last}")
        self._next = last + 1

    def note_batch(self, batch: Batch) -> None:
        """Add the messages of a batch, after their arrival and before any of them is stored."""
        sequences = batch.sequences
        self._fresh += sequences
        highest = max(sequences)
        if highest > self._last:  # not a message that is delivered again
            self._last = highest
            self._reads.append((highest, batch.replies[sequences.index(highest)]))

    def note_stored(self, messages: Delivered) -> list[bytes]:
        """Add stored messages; return the one reply that acknowledges as much as possible, or none.

        If nothing new can be acknowledged, it returns the last reply again: the first acknowledgement may have been
        lost.
        """
        self._unstored |= Sequences.from_iterable(self._fresh)
        self._fresh = []
        self._unstored -= Sequences.from_iterable(messages.sequences)
        floor = self._unstored.first - 1 if self._unstored else self._last
        while self._reads and self._reads[0][0] <= floor:
            self._highest = [self._reads.popleft()[1]]
        return self._highest
