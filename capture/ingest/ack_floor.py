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
    only a sequence up to which every delivered message is stored, and a gap in the consumer's numbers is an error. Of
    messages that are delivered again, only those that were handed back are stored again. It costs a few operations on
    bitmaps for each batch and for each block.
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
        self._newest: list[bytes] = []  # the reply of that message
        self._unstored = Sequences()
        self._handed_back = Sequences()
        self._fresh: list[int] = []  # read since the last call of `note_stored`
        self._reads: deque[tuple[int, list[bytes]]] = deque()  # for each batch: `_last`, its replies and `_newest`
        self._highest: list[bytes] = []  # the reply that acknowledges the most, once something is stored

    @property
    def arrived(self) -> int:
        """The number of messages that have arrived, each delivery of a message counted."""
        return self._next - 1

    @property
    def is_waiting(self) -> bool:
        """Whether there are messages that are neither stored nor handed back."""
        return bool((self._unstored | Sequences.from_iterable(self._fresh)) - self._handed_back)

    def note_delivery(self, replies: list[bytes]) -> None:
        """Add arrived messages, in the order of the consumer's numbers. Raises DeliveryGap if one is missing."""
        first, last = (int(ack_tokens(reply)[6]) for reply in (replies[0], replies[-1]))
        if (first, last) != (self._next, self._next + len(replies) - 1):
            raise DeliveryGap(f"delivery {self._next - 1} was followed by {len(replies)}, numbered {first} to {last}")
        self._next = last + 1

    def note_batch(self, batch: Batch) -> Batch:
        """Add the messages of a batch, after their arrival; return those that must be stored.

        The others were delivered again, and are stored, or in a block.
        """
        if not len(batch):
            return batch
        replies = batch.replies
        if max(batch.deliveries) > 1:
            batch = self._without_known(batch)
        sequences = batch.sequences
        self._fresh += sequences
        highest = max(sequences, default=0)
        if highest > self._last:
            self._last, self._newest = highest, [batch.replies[sequences.index(highest)]]
        self._reads.append((self._last, replies + self._newest))
        return batch

    def _without_known(self, batch: Batch) -> Batch:
        wanted, last = [], self._last
        for raw, sequence in zip(batch.raw, batch.sequences, strict=True):
            if sequence > last or sequence in self._handed_back:
                wanted.append(raw)
                last = max(last, sequence)
        kept = Batch(wanted)
        self._handed_back -= Sequences.from_iterable(kept.sequences)
        return kept

    def note_handed_back(self, messages: Delivered) -> None:
        """Add messages that could not be stored: they must be stored when they are delivered again."""
        self._handed_back |= Sequences.from_iterable(messages.sequences)

    def note_stored(self, messages: Delivered) -> list[bytes]:
        """Add stored messages; return the replies that are settled, the last of which acknowledges them all, or none.

        Others that are stored are not settled yet: the server delivers them again if they are not kept alive. If
        nothing new can be acknowledged, it returns the last reply again: the first acknowledgement may have been lost.
        """
        self._unstored |= Sequences.from_iterable(self._fresh)
        self._fresh = []
        stored = Sequences.from_iterable(messages.sequences)
        self._unstored -= stored
        self._handed_back -= stored
        floor = self._unstored.first - 1 if self._unstored else self._last
        settled = [*self._highest]
        while self._reads and self._reads[0][0] <= floor:
            settled += self._reads.popleft()[1]
        self._highest = settled[-1:]
        return settled
