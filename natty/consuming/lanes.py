from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator

from natty.wire.message import Message


class Turn:
    """A message that waits for its handler or has it: its key, whether it came before, its retries in this process."""

    __slots__ = ("again", "fault", "key", "message", "retries")

    def __init__(self, message: Message, key: Hashable = None, *, again: bool = False) -> None:
        self.message, self.key, self.again, self.retries = message, key, again, 0
        self.fault: Exception | None = None  # why it has no key

    def __repr__(self) -> str:
        return f"Turn({self.message!r}, key={self.key!r})"


class Lanes:
    """Which messages may be handled now: one of a key at a time in the order they came, those without a key at once.

    They are taken in lots of up to `lot`; one that is not full is due `wait` seconds after its first message was ready.
    Pure: no clock, no await. `now` is in seconds of any clock that only goes forward.
    """

    def __init__(self, *, lot: int = 1, wait: float = 0.0) -> None:
        self._lot, self._wait = lot, wait
        self._ready: deque[Turn] = deque()
        self._since = 0.0  # when the first of the ready ones was ready, or when the lot before it was taken
        self._behind: dict[Hashable, deque[Turn]] = {}  # by key that is ready or being handled: what waits behind it

    def __repr__(self) -> str:
        return f"Lanes({len(self._ready)} ready, {len(self) - len(self._ready)} behind, {len(self._behind)} keys)"

    def __len__(self) -> int:
        return len(self._ready) + sum(map(len, self._behind.values()))

    def __iter__(self) -> Iterator[Turn]:
        """Yield all that was not taken."""
        yield from self._ready
        for lane in self._behind.values():
            yield from lane

    def add(self, turns: Iterable[Turn], now: float = 0.0) -> None:
        """Take in what arrived, in order."""
        if not self._ready:
            self._since = now
        for turn in turns:
            if turn.key is None:
                self._ready.append(turn)
            elif turn.key in self._behind:
                self._behind[turn.key].append(turn)
            else:
                self._behind[turn.key] = deque()
                self._ready.append(turn)

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `take` returns something, 0.0 for now; None if nothing is ready."""
        ready = self._ready
        if not ready:
            return None
        if self._lot == 1 or len(ready) >= self._lot or ready[0].again:
            return 0.0
        return max(0.0, self._since + self._wait - now)

    def take(self, now: float = 0.0) -> list[Turn]:
        """Return the next lot, empty if none is due. One that came before is a lot of its own.

        So a message that makes the handler of a lot fail can't do it again to its neighbours.
        """
        ready = self._ready
        if not ready:
            return []
        if self._lot == 1:
            return [ready.popleft()]
        if self.due_in(now) != 0.0:
            return []
        lot = [ready.popleft()]
        while ready and len(lot) < self._lot and not (lot[0].again or ready[0].again):
            lot.append(ready.popleft())
        self._since = now
        return lot

    def done(self, turn: Turn, now: float = 0.0) -> None:
        """Let the next of its key have its turn."""
        if turn.key is None:
            return
        behind = self._behind[turn.key]
        if not behind:
            del self._behind[turn.key]
            return
        if not self._ready:
            self._since = now
        self._ready.append(behind.popleft())

    def again(self, turn: Turn) -> None:
        """Put one that was taken first in line; its key stays busy."""
        turn.again = True
        self._ready.appendleft(turn)

    def clear(self) -> list[Turn]:
        """Forget and return all that was not taken."""
        left = list(self)
        self._ready.clear()
        for lane in self._behind.values():
            lane.clear()
        return left
