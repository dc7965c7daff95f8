"""The event loop of a blocking client, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from natty.errors import ConnectionClosedError, WrongLoopError
from natty.wire.background import cancel_all

T = TypeVar("T")


class Loop:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._taking = threading.Lock()  # held while work is given to the loop, or is refused from then on
        self._ended = False
        self._running, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="natty blocking", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"Loop({'running' if self._thread.is_alive() else 'ended'})"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._wait())

    async def _wait(self) -> None:
        self._over = asyncio.Event()
        self._running.set()
        await self._over.wait()

    @property
    def is_ours(self) -> bool:
        """Whether the loop runs in this process: a fork has a copy of it that does not."""
        return os.getpid() == self._pid and self._thread.is_alive()

    def check(self) -> None:
        """Raise WrongLoopError or ConnectionClosedError if this thread can't call the client."""
        if os.getpid() != self._pid:
            raise WrongLoopError(
                f"this client was opened in process {self._pid}, before a fork: open another one in this process"
            )
        if threading.current_thread() is self._thread:
            raise WrongLoopError("natty.blocking was called on its own event loop: write this handler with `def`")
        if not self._thread.is_alive():
            raise ConnectionClosedError

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop. ConnectionClosedError after `end`."""
        self._running.wait()
        with self._taking:
            if not self._ended:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise ConnectionClosedError

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Ctrl-C cancels it, and raises KeyboardInterrupt."""
        running = self.submit(work)
        try:
            return running.result()
        except CancelledError:
            raise ConnectionClosedError from None
        except BaseException:
            running.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; it makes the next item while the caller works on the last."""
        upcoming = self.call(_begin(items))
        try:
            while found := self.call(_result(upcoming)):
                upcoming = self.call(_begin(items))
                yield found[0]
        finally:
            self.call(_close(items, upcoming))

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the loop; do nothing if it has ended."""
        if self.is_ours:
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Cancel what still runs, and end the thread."""
        self._running.wait()
        with self._taking:
            self._ended = True
        self.call_soon(self._over.set)
        self._thread.join()


async def _begin(items: AsyncGenerator[T, None]) -> asyncio.Task[tuple[T] | None]:
    return asyncio.create_task(_next(items))


async def _next(items: AsyncGenerator[T, None]) -> tuple[T] | None:
    async for item in items:
        return (item,)
    return None


async def _result(task: asyncio.Task[T]) -> T:
    return await task


async def _close(items: AsyncGenerator[T, None], upcoming: asyncio.Task[tuple[T] | None]) -> None:
    await cancel_all([upcoming])
    await items.aclose()
