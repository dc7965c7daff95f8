"""natty for blocking callers such as Spark's Python workers: runs an event loop in a separate thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from natty import Natty

T = TypeVar("T")


class Blocking:
    """A connection to NATS; use it with `with`. Its loop also runs while the caller is busy, and answers pings.

    Exceptions of the coroutines are raised in the caller. The thread is a daemon: it does not keep a worker alive.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="jetstream", daemon=True)
        self._opened: Natty | None = None

    def __repr__(self) -> str:
        return f"Blocking({self._opened!r})"

    @property
    def natty(self) -> Natty:
        """The client."""
        assert self._opened is not None, "entering it connects"
        return self._opened

    def __enter__(self) -> Self:
        """Connect. Raises the errors of `Connection.open`."""
        self._thread.start()
        try:
            self._opened = self.run(self._open())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.natty.close())
        finally:
            self._end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; it makes the next item while the caller works on the last."""
        upcoming = self.run(_begin(items))
        try:
            while found := self.run(_result(upcoming)):
                upcoming = self.run(_begin(items))
                yield found[0]
        finally:
            self.run(_close(items, upcoming))

    async def _open(self) -> Natty:
        return await Natty(**self._settings).__aenter__()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _begin(items: AsyncGenerator[T, None]) -> asyncio.Task[tuple[T] | None]:
    return asyncio.create_task(_next(items))


async def _next(items: AsyncGenerator[T, None]) -> tuple[T] | None:
    async for item in items:
        return (item,)
    return None


async def _result(task: asyncio.Task[T]) -> T:
    return await task


async def _close(items: AsyncGenerator[T, None], upcoming: asyncio.Task[tuple[T] | None]) -> None:
    upcoming.cancel()
    await asyncio.gather(upcoming, return_exceptions=True)
    await items.aclose()
