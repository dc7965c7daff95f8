"""How many messages and bytes a pull may request: plain arithmetic, without a clock or a socket."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SHARES = 3  # requests that overlap, so that the server can serve one while the next is being sent
RECENT = 8  # batches over which the typical size of a message is averaged


@dataclass(frozen=True, slots=True)
class Request:
    """The limits of one request; `max_bytes` is 0 if the message may have any size."""

    batch: int
    max_bytes: int


class Credit:
    """Messages and bytes that may be requested: the bounds minus those requested (asked) or unfinished (held).

    Both together never exceed the bounds, at any speed of the reader, with two exceptions: a message larger than
    `max_bytes` is requested alone, when no other is requested or held; and see `request`.
    Protocol: ADR-37 and ADR-13. If the server has no more messages for a request, or the next message doesn't fit, it
    ends the request with the messages and bytes left of it. If the bytes are used up exactly, it sends no status.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.asked_messages = 0
        self.asked_bytes: float = 0  # infinite while a request without a limit of bytes is open
        self.held_messages = self.held_bytes = 0
        self._request_messages = self._request_bytes = math.inf  # the consumer's own limits of one request
        self._lots: deque[tuple[int, int]] = deque()  # (messages, bytes) held, oldest first
        self._typical = 0.0  # average bytes of a message
        self._refused = 0  # bytes that were too few for the next message

    def __repr__(self) -> str:
        asked = f"{self.asked_messages} ({self.asked_bytes} bytes) asked"
        return f"Credit({asked}, {self.held_messages} ({self.held_bytes} bytes) unfinished)"

    def limit(self, messages: int, size_bytes: int) -> None:
        """Set the consumer's limits of one request, `max_batch` and `max_bytes`; 0 or less: no limit."""
        self._request_messages = messages if messages > 0 else math.inf
        self._request_bytes = size_bytes if size_bytes > 0 else math.inf

    def request(self, required: int = 0) -> Request | None:
        """Return the next request and count it as asked; None if there is no room, or too little for a request.

        `required` is how many messages must come before others can be finished. If there is no room for them, they are
        requested beyond the bounds, once nothing else is requested.
        """
        at_once = min(self.max_messages, SHARES * self._request_messages)
        messages = int(min(self.max_messages - self.held_messages, at_once) - self.asked_messages)
        size = self.max_bytes - self.asked_bytes - self.held_bytes
        enough = messages > 0 and self._refused < min(self.max_bytes, self._request_bytes)
        if self.asked_messages or self.held_messages:
            enough_bytes = max(self.max_bytes // SHARES, min(2 * self._refused, self.max_bytes), 1)
            enough = enough and messages >= at_once // SHARES and size >= enough_bytes
        else:
            required = required or 1
        if enough:
            return self._size_request(messages, size)
        if self.asked_messages or not required:
            return None
        self.asked_messages, self.asked_bytes = int(min(required, self._request_messages)), math.inf
        return Request(self.asked_messages, 0)

    def _size_request(self, messages: int, size: float) -> Request:
        """Return a request for a share of the bytes, and for no more messages than fill it if bytes are scarce."""
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
        """Return whether this much more can be held beside everything asked and held."""
        messages += self.asked_messages + self.held_messages
        return messages <= self.max_messages and self.asked_bytes + self.held_bytes + size_bytes <= self.max_bytes

    def hold(self, messages: int, size_bytes: int, *, asked: bool = True) -> None:
        """Hold messages; `asked` is False for messages of forgotten requests."""
        if asked:
            self._return_credit(messages, size_bytes)
        self._refused = 0
        self._typical += (size_bytes / messages - self._typical) / (RECENT if self._typical else 1)
        self.held_messages += messages
        self.held_bytes += size_bytes
        self._lots.append((messages, size_bytes))

    def end_request(self, messages: int, size_bytes: int, *, too_small: bool = False) -> None:
        """End a request with this much of it left; `too_small` if the next message is larger than the bytes left."""
        if too_small:
            self._refused = max(self._refused, size_bytes, 1)
        self._return_credit(messages, size_bytes)

    def forget(self) -> None:
        """Forget all requests."""
        self.asked_messages = self.asked_bytes = 0

    def finish(self, messages: int, size_bytes: int | None = None) -> None:
        """Free the room of held messages. Without their size it takes the oldest's, exact if finished in order."""
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

    def _return_credit(self, messages: int, size_bytes: int) -> None:
        self.asked_messages -= messages
        self.asked_bytes -= size_bytes
        if self.asked_messages <= 0 or self.asked_bytes <= 0:  # one without the other requests nothing
            self.asked_messages = self.asked_bytes = 0
