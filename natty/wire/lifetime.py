"""Tracks the work on a connection until its client is closed: consumptions, members of groups, election candidates."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any, Self, TypeVar

T = TypeVar("T")


class RunsAsTask(Coroutine[Any, Any, None]):
    """Has `run`, and can be used as its coroutine: `await it`, `asyncio.create_task(it)`, `group.create_task(it)`.

    Unlike a coroutine, it may be dropped unused, and `run` may be called directly.
    """

    _coroutine: Coroutine[Any, Any, None] | None = None

    @abstractmethod
    async def run(self) -> None:
        """Run to the end."""

    def __await__(self) -> Generator[Any, None, None]:
        return self.run().__await__()

    def send(self, value: Any) -> Any:
        """Continue to the next `await`, as a task does; the first call starts it."""
        if self._coroutine is None:
            self._coroutine = self.run()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as a cancelled task does."""
        if self._coroutine is None:
            self._coroutine = self.run()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End it where it waits. Idempotent."""
        if self._coroutine is not None:
            self._coroutine.close()


async def start(run: Coroutine[Any, Any, None], ready: asyncio.Event) -> asyncio.Task[None]:
    """Run it as a task, and return when it is ready. Raises the error that prevented that."""
    task = asyncio.create_task(run)
    waiting = asyncio.create_task(ready.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        task.cancel()
        raise
    finally:
        waiting.cancel()
    if task.done():
        await task
    return task


class Lifetime:
    """The work that runs on one connection. `close` of the client stops all of it, and waits until it ends."""

    def __init__(self) -> None:
        self.running: list[Running] = []
        self.closing: set[asyncio.Task[None]] = set()  # closings that handlers and leaders started and do not wait for

    def __repr__(self) -> str:
        return f"Lifetime({len(self.running)} running)"

    @property
    def is_called_by_its_own(self) -> bool:
        """Whether the caller, in any thread, is a handler or a leader's work that runs here."""
        return any(one in _part_of.get() for one in self.running)

    @property
    def is_ended_by_its_own(self) -> bool:
        """Whether the caller is part of work here that can't end before the caller continues."""
        return any(one in _part_of.get() or (one.cancels and one.waits_for_caller) for one in self.running)


class Running:
    """Work that runs on a connection until it is stopped; it runs within the `with` block.

    Closing the client calls `stop`, and waits for the end of the block: for `shutdown_timeout` seconds and some more.
    `reader` is the task that iterates over it or runs its block; `cancels`: stopping it cancels that task.
    """

    def __init__(
        self,
        lifetime: Lifetime,
        stop: Callable[[], None],
        shutdown_timeout: float,
        *,
        reader: asyncio.Task[Any] | None = None,
        cancels: bool = False,
    ) -> None:
        self.stop, self.shutdown_timeout = stop, shutdown_timeout
        self.reader, self.cancels = reader, cancels
        self.over = asyncio.get_running_loop().create_future()
        self._lifetime = lifetime

    def __repr__(self) -> str:
        return f"Running({'over' if self.over.done() else 'on'}, {self._lifetime!r})"

    def __enter__(self) -> Self:
        self._lifetime.running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """End it. Idempotent."""
        if not self.over.done():
            self._lifetime.running.remove(self)
            self.over.set_result(None)

    def around(self, make: Callable[[], T]) -> T:
        """Call `make` and return its result; tasks that it starts are known to be part of this work."""
        context = copy_context()
        context.run(_part_of.set, (*_part_of.get(), self))
        return context.run(make)

    @property
    def waits_for_caller(self) -> bool:
        """Whether it can't end before the caller continues: the caller is one of its handlers, or its reader."""
        return self in _part_of.get() or (self.reader is not None and self.reader is asyncio.current_task())


_part_of: ContextVar[tuple[Running, ...]] = ContextVar("natty_part_of", default=())
