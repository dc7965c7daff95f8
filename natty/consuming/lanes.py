"""Decides which messages may be handled next: in order by key, one by one or in lots. Pure: no clock, no await."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from natty.wire.message import Message


class Turn:
    """A message that waits or is being handled: its key, whether it was delivered before, its retries here."""

    __slots__ = ("again", "fault", "key", "message", "ready_at", "retries")
    ready_at: float  # set only with lots larger than one

    def __init__(self, message: Message, key: Hashable = None, *, again: bool = False) -> None:
        self.message, self.key, self.again, self.retries = message, key, again, 0
        self.fault: BaseException | None = None  # why it has no key

    def __repr__(self) -> str:
        return f"Turn({self.message!r}, key={self.key!r})"


T = TypeVar("T", bound=Turn)


class Lanes(Generic[T]):
    """Messages that may be handled now: one lot of a key at a time, in order of arrival; without a key, at once.

    A lot has up to `lot` messages of one key, or without a key; a lot that is not full is due `wait` seconds after its
    first message was ready. `now` is in seconds of any clock that never goes back.
    """

    def __init__(self, *, lot: int = 1, wait: float = 0.0) -> None:
        self._lot, self._wait = lot, wait
        self._ready: deque[T] = deque()  # messages without a key; with lots of one, also the first of each key
        self._since = 0.0  # when the first ready message was ready, or when the previous lot was taken
        self._first: deque[T] = deque()  # with larger lots, the first of each key
        self._behind: dict[Hashable, deque[T]] = {}  # for each key that is ready or being handled: its later messages

    def __repr__(self) -> str:
        ready = len(self._ready) + len(self._first)
        return f"Lanes({ready} ready, {len(self) - ready} behind, {len(self._behind)} keys)"

    def __len__(self) -> int:
        return len(self._ready) + len(self._first) + sum(map(len, self._behind.values()))

    def __iter__(self) -> Iterator[T]:
        """Yield all messages that were not taken."""
        yield from self._ready
        yield from self._first
        for lane in self._behind.values():
            yield from lane

    def add(self, turns: Iterable[T], now: float = 0.0) -> None:
        """Add messages in the order of arrival."""
        if not self._ready:
            self._since = now
        for turn in turns:
            if turn.key is None:
                self._ready.append(turn)
            elif turn.key in self._behind:
                self._behind[turn.key].append(turn)
            else:
                self._behind[turn.key] = deque()
                self._is_first(turn, now)

    def _is_first(self, turn: T, now: float) -> None:
        if self._lot > 1:
            turn.ready_at = now
            self._first.append(turn)
            return
        if not self._ready:
            self._since = now
        self._ready.append(turn)

    def due_in(self, now: float) -> float | None:
        """Return the seconds until `take` returns a lot, 0.0 for now; None if no message is ready."""
        ready, due = self._ready, None
        if ready:
            if self._lot == 1 or len(ready) >= self._lot or ready[0].again:
                return 0.0
            due = max(0.0, self._since + self._wait - now)
        for turn in self._first:
            after = self._key_due_in(turn, now)
            due = after if due is None else min(due, after)
        return due

    def _key_due_in(self, turn: T, now: float) -> float:
        if turn.again or 1 + len(self._behind[turn.key]) >= self._lot:
            return 0.0
        return max(0.0, turn.ready_at + self._wait - now)

    def take(self, now: float = 0.0) -> list[T]:
        """Return the next lot, empty if none is due. A message that was delivered before is a lot of its own.

        So a message that makes a lot fail can't make the same neighbours fail again.
        """
        ready = self._ready
        if self._lot == 1:
            return [ready.popleft()] if ready else []
        for turn in self._first:
            if self._key_due_in(turn, now) == 0.0:
                self._first.remove(turn)
                return self._fill([turn], self._behind[turn.key])
        if self.due_in(now) != 0.0:
            return []
        self._since = now
        return self._fill([ready.popleft()], ready)

    def _fill(self, lot: list[T], waiting: deque[T]) -> list[T]:
        while waiting and len(lot) < self._lot and not (lot[0].again or waiting[0].again):
            lot.append(waiting.popleft())
        return lot

    def finish(self, turn: T, now: float = 0.0) -> None:
        """Make the next message of its key ready. Call it with one message of a lot."""
        if turn.key is None:
            return
        behind = self._behind[turn.key]
        if not behind:
            del self._behind[turn.key]
            return
        self._is_first(behind.popleft(), now)

    def again(self, turns: Sequence[T]) -> None:
        """Put the messages of a taken lot back at the front, one by one; its key stays busy."""
        first, *others = turns
        first.again = True
        if first.key is None:
            for turn in others:
                turn.again = True
            self._ready.extendleft(reversed(turns))
            return
        self.put_behind(first, others)
        (self._first if self._lot > 1 else self._ready).appendleft(first)

    def put_behind(self, turn: T, others: Sequence[T]) -> None:
        """Put the other messages of a taken lot behind its first, one by one, before all others of their key."""
        for other in others:
            other.again = True
        self._behind[turn.key].extendleft(reversed(others))

    def clear(self) -> list[T]:
        """Remove and return all messages that were not taken."""
        left = list(self)
        for turn in (*self._ready, *self._first):
            self._behind.pop(turn.key, None)
        self._ready.clear()
        self._first.clear()
        for lane in self._behind.values():
            lane.clear()
        return left
