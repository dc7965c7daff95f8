"""Binary files whose bytes are fetched when they are read: an object of a store, or any other source of ranges."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

LOOK_EVERY = 1.0  # seconds between two looks whether a loop still runs, while a thread waits for it

Answer = TypeVar("Answer")


def run_on_loop(question: Coroutine[Any, Any, Answer], loop: asyncio.AbstractEventLoop) -> Answer:
    """Run a coroutine on a loop from another thread, and return its result. RuntimeError: the loop was closed.

    A loop that stops as the thread asks never begins the coroutine.
    """
    future = asyncio.run_coroutine_threadsafe(question, loop)
    while True:
        try:
            return future.result(LOOK_EVERY)
        except TimeoutError:
            if future.done():
                return future.result()
            if loop.is_closed():
                raise RuntimeError("the event loop was closed during a read") from None


class Positioned(io.RawIOBase):
    """A file of `size` bytes that can be read from any position. A subclass reads at `_at` and advances it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position of the next read."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


class Ranges(Protocol):
    """A source of ranges of objects: a store, or a part of one."""

    @property
    def url(self) -> str:
        """Where the objects are."""
        ...

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer where the object ends."""
        ...


class StoredFile(Positioned):
    """An object of a store as a file, for libraries that read files. It is read by a thread other than the loop's.

    `loop` runs the store's requests, by default the running one; it must not be blocked. Raises what the store raises,
    and RuntimeError if the loop was closed.
    """

    def __init__(self, store: Ranges, path: str, size: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(size)
        self._store, self._path = store, path
        self._loop = loop or asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"StoredFile({self._path!r}, at {self._at:,} of {self._size:,} bytes)"

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer from the store; fewer bytes only at the end."""
        wanted = max(0, min(len(buffer), self._size - self._at))
        if not wanted:
            return 0
        data = run_on_loop(self._store.get_range(self._path, self._at, wanted), self._loop)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
