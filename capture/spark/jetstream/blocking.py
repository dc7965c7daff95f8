"""natty for blocking callers such as Spark's Python workers: runs an event loop in a separate thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

from natty import Natty
from natty.blocking.loop import Loop

T = TypeVar("T")


class Blocking:
    """A connection to NATS; use it with `with`. Its loop also runs while the caller is busy, and answers pings.

    Exceptions of the coroutines are raised in the caller. The thread is a daemon: it does not keep a worker alive.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._loop = Loop()
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
        try:
            self._opened = self.run(self._open())
        except BaseException:
            self._loop.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.run(self.natty.close())
        finally:
            self._loop.end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result."""
        return self._loop.call(work)

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; it makes the next item while the caller works on the last."""
        return self._loop.iterate(items)

    async def _open(self) -> Natty:
        return await Natty(**self._settings).__aenter__()
