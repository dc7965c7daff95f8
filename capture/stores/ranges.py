"""An object of a store as a file, for libraries that read files: each read is a range of it."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from capture.stores.seekable import Positioned


class Ranges(Protocol):
    """What gives ranges of objects: a store, or a part of one."""

    @property
    def url(self) -> str:
        """Where the objects are."""
        ...

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer where the object ends."""
        ...


class StoredFile(Positioned):
    """An object of this size, read piece by piece by a thread that is not the event loop's.

    `loop` answers it, the running one by default; it must be free meanwhile. Raises what the store raises.
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
        asked = self._store.get_range(self._path, self._at, wanted)
        data = asyncio.run_coroutine_threadsafe(asked, self._loop).result()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
