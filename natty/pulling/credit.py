from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from natty.wire.message import RawMessage

SHARES = 3  # requests that overlap, so that the server has one to serve while the next is on its way
RECENT = 8  # batches over which the typical size of a message is averaged


def size_of(messages: Iterable[RawMessage]) -> int:
    """Return the bytes of messages as the server counts them: subject, ack subject, headers and payload."""
    return sum([len(subject) + len(reply) + len(head) + len(data) for subject, reply, head, data in messages])


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask the server for; `max_bytes` is 0 where one message may have any size."""

    batch: int
    max_bytes: int


class Credit:
    """What may be asked for: messages and bytes that are neither under way (asked) nor unfinished (held).

    Both together never exceed the bounds, whatever the reader's speed; the one exception is a message that is larger
    than `max_bytes`: it is asked for alone, when nothing else is under way or held. Pure: no clock, no socket.
    Protocol: ADR-37 and ADR-13. A server ends a request that ran out of messages, or whose next message doesn't fit,
    with the count of what is left of it; one whose bytes are used up exactly ends without a word.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.asked_messages = self.asked_bytes = 0
        self.held_messages = self.held_bytes = 0
        self._request_messages: float = math.inf  # the consumer's own limits of one request
        self._request_bytes: float = math.inf
        self._lots: deque[tuple[int, int]] = deque()  # (messages, bytes) held, oldest first
        self._typical = 0.0  # bytes of a message
        self._refused = 0  # bytes that were too few for the next message

    def __repr__(self) -> str:
        asked = f"{self.asked_messages} ({self.asked_bytes} bytes) asked"
        return f"Credit({asked}, {self.held_messages} ({self.held_bytes} bytes) unfinished)"

    def limit(self, messages: int, size_bytes: int) -> None:
        """Respect the consumer's `max_batch` and `max_bytes` of a request from now on; 0 or less: none."""
        self._request_messages = messages if messages > 0 else math.inf
        self._request_bytes = size_bytes if size_bytes > 0 else math.inf

    def request(self) -> Request | None:
        """Return the next request, counted as asked for; None while it is not worth one, or there is no room."""
        at_once = min(self.max_messages, SHARES * self._request_messages)
        messages = int(min(self.max_messages - self.held_messages, at_once) - self.asked_messages)
        size = self.max_bytes - self.asked_bytes - self.held_bytes
        too_large = self._refused >= min(self.max_bytes, self._request_bytes)
        if self.asked_messages or self.held_messages:
            enough_bytes = max(self.max_bytes // SHARES, min(2 * self._refused, self.max_bytes), 1)
            if too_large or messages < max(at_once // SHARES, 1) or size < enough_bytes:
                return None
        elif too_large:
            self.asked_messages, self.asked_bytes = 1, self.max_bytes
            return Request(1, 0)
        return self._sized(messages, size)

    def _sized(self, messages: int, size: int) -> Request:
        """Return a request for a share of the bytes and, where these are scarce, for the messages that fill it."""
        if not self._refused:
            size = min(size, max(self.max_bytes // SHARES, int(2 * self._typical), 1))
        size = int(min(size, self._request_bytes))
        if self._typical:
            messages = min(messages, max(1, int(2 * size / self._typical)))
        batch = int(min(messages, self._request_messages))
        self.asked_messages += batch
        self.asked_bytes += size
        return Request(batch, size)

    def fits(self, messages: int, size_bytes: int) -> bool:
        """Return whether so much could be held beyond what was asked for."""
        return (
            self.asked_messages + self.held_messages + messages <= self.max_messages
            and self.asked_bytes + self.held_bytes + size_bytes <= self.max_bytes
        )

    def arrived(self, messages: int, size_bytes: int, *, asked: bool = True) -> None:
        """Hold messages; `asked` is False for those of requests that were forgotten."""
        if asked:
            self._returned(messages, size_bytes)
        self._refused = 0
        self._typical += (size_bytes / messages - self._typical) / (RECENT if self._typical else 1)
        self.held_messages += messages
        self.held_bytes += size_bytes
        self._lots.append((messages, size_bytes))

    def ended(self, messages: int, size_bytes: int, *, too_small: bool = False) -> None:
        """A request ended with so much of it left; `too_small` if the next message is larger than the bytes left."""
        if too_small:
            self._refused = max(self._refused, size_bytes, 1)
        self._returned(messages, size_bytes)

    def forget(self) -> None:
        """Nothing is under way any more."""
        self.asked_messages = self.asked_bytes = 0

    def finished(self, messages: int, size_bytes: int | None = None) -> None:
        """Free what held messages took. Without their size the oldest are meant: exact for who finishes in order."""
        self.held_messages -= messages
        oldest = self._take(messages)
        self.held_bytes -= oldest if size_bytes is None else size_bytes
        if self.held_messages <= 0:
            self.held_messages = self.held_bytes = 0
            self._lots.clear()

    def _take(self, messages: int) -> int:
        """Remove the oldest held messages; return their bytes, those of a part of a lot by proportion."""
        size = 0
        while messages > 0 and self._lots:
            count, lot = self._lots.popleft()
            part = lot if count <= messages else lot * messages // count
            if count > messages:
                self._lots.appendleft((count - messages, lot - part))
            size += part
            messages -= count
        return size

    def _returned(self, messages: int, size_bytes: int) -> None:
        self.asked_messages -= messages
        self.asked_bytes -= size_bytes
        if self.asked_messages <= 0 or self.asked_bytes <= 0:  # the one without the other asks for nothing
            self.asked_messages = self.asked_bytes = 0
