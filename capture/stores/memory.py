"""A store that keeps objects in memory, for tests and examples."""

from __future__ import annotations

import time
from asyncio import to_thread
from collections.abc import Callable
from pathlib import Path

from capture.errors import AlreadyStoredError, NotStoredError
from capture.stores.contract import Listing, ObjectInfo, check_path, check_prefix, check_range


class MemoryStore:
    """Objects in the memory of this process.

    `open_store("memory://name")` returns the same store for the same name everywhere in the process.
    """

    def __init__(self, name: str = "", *, clock: Callable[[], float] = time.time) -> None:
        self.url = f"memory://{name}"
        self._clock = clock
        self._objects: dict[str, tuple[bytes, float]] = {}

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """As in the contract. "Durable" means as long as the process runs."""
        check_path(path)
        content = await to_thread(data.read_bytes) if isinstance(data, Path) else bytes(data)
        if if_absent and path in self._objects:
            raise AlreadyStoredError(f"{path} exists in {self.url} and was not touched")
        self._objects[path] = (content, self._clock())

    async def get(self, path: str) -> bytes:
        """As in the contract."""
        try:
            return self._objects[check_path(path)][0]
        except KeyError:
            raise NotStoredError(f"there is no {path} in {self.url}") from None

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """As in the contract."""
        check_range(start, length)
        return (await self.get(path))[start : start + length]

    async def list(self, prefix: str = "") -> Listing:
        """As in the contract."""
        check_prefix(prefix)
        found = sorted((path, value) for path, value in self._objects.items() if path.startswith(prefix))
        return [ObjectInfo(path, len(content), modified) for path, (content, modified) in found]

    async def delete(self, path: str) -> None:
        """As in the contract."""
        self._objects.pop(check_path(path), None)

    async def remove_leftovers(self, older_than_seconds: float, now: float) -> int:
        """Return 0: there are no unfinished objects."""
        return 0

    def __repr__(self) -> str:
        return f"MemoryStore({self.url}, {len(self._objects)} objects)"
