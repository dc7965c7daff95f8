"""Up to where everything that was delivered is stored: what an ack that counts for all before it may say."""

from __future__ import annotations

from collections import deque

from capture.archive.sequences import Sequences
from natty.wire.ack import Acks, ack_tokens
from natty.wire.message import Batch


class DeliveryGap(Exception):
    """Messages of the consumer were delivered that did not come here."""


class Floor:
    """Keeps the acknowledgements of a consumer whose every message comes here, in order: it starts with its first one.

    The server forgets all pending messages up to the acknowledged one, whoever has them. So an acknowledgement is given
    only for a sequence up to which everything delivered is stored, and nothing is taken into account after a gap in the
    consumer's own numbers. Costs a few operations on bitmaps for each batch, and for each block.
    """

    def __init__(self) -> None:
        self.begin()

    def __repr__(self) -> str:
        unstored = len(self._unstored | Sequences.from_iterable(self._fresh))
        return f"Floor({unstored} not stored, next delivery {self._next}, {len(self._reads)} to acknowledge)"

    def begin(self) -> None:
        """Forget everything: the consumer's next delivery is its first one, right after what is acknowledged."""
        self._next = 1
        self._last = 0
        self._unstored = Sequences()
        self._fresh: list[int] = []  # what came since somewhat was stored
        self._reads: deque[tuple[int, bytes]] = deque()  # (highest sequence so far, its reply), one a batch
        self._highest: list[bytes] = []  # the reply that acknowledges the most, once something is stored

    def arrived(self, replies: list[bytes]) -> None:
        """Take note of messages that came, in the order of the consumer's numbers. DeliveryGap if one is missing."""
        first, last = (int(ack_tokens(reply)[6]) for reply in (replies[0], replies[-1]))
        if (first, last) != (self._next, self._next + len(replies) - 1):
            raise DeliveryGap(f"after delivery {self._next - 1} came {len(replies)}, numbered {first} to {last}")
        self._next = last + 1

    def read(self, batch: Batch) -> None:
        """Take note of the messages of a batch, after their arrival, before any of them is stored."""
        sequences = batch.sequences
        self._fresh += sequences
        highest = max(sequences)
        if highest > self._last:  # not what is delivered once more
            self._last = highest
            self._reads.append((highest, batch.replies[sequences.index(highest)]))

    def stored(self, replies: list[bytes]) -> list[bytes]:
        """Take note of stored messages; return the one reply that acknowledges all it may, or none.

        It is the same as before where nothing new can be acknowledged: one that got lost on its way is repeated.
        """
        self._unstored |= Sequences.from_iterable(self._fresh)
        self._fresh = []
        self._unstored -= Sequences.from_iterable(map(int, Acks(replies).column(5)))
        floor = self._unstored.first - 1 if self._unstored else self._last
        while self._reads and self._reads[0][0] <= floor:
            self._highest = [self._reads.popleft()[1]]
        return self._highest
