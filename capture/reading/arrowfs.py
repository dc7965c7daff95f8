"""A store as a file system for Arrow, to read from. Arrow's C++ calls it from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Any, NoReturn, Self

from pyarrow import NativeFile, PythonFile
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from capture.errors import CaptureError
from capture.stores.recent import Recent
from capture.stores.stored_file import Ranges, StoredFile
from natty.wire.background import cancel_all

SMALL_BYTES = 256 << 10
"""Objects of this size are fetched whole: one request costs less than reading the footer and some columns of it."""
AHEAD = 32
"""Small objects that are fetched before they are opened."""
KEPT_BYTES = 16 << 20
"""Of small objects that are kept in memory beside those in flight: engines read footers first, later the columns."""


class SmallObjects:
    """Ranges of objects that are read about in the order of `sizes`. Small ones are fetched whole, several in advance.

    An async context manager; its exit cancels all reads in flight. For one event loop.
    """

    def __init__(self, ranges: Ranges, sizes: Mapping[str, int]) -> None:
        self._ranges = ranges
        self._sizes = {path: size for path, size in sizes.items() if size <= SMALL_BYTES}
        self._order = list(self._sizes)
        self._places = {path: place for place, path in enumerate(self._order)}
        self._coming: dict[str, asyncio.Task[bytes]] = {}
        self._kept = Recent[str](KEPT_BYTES)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._coming.values())

    @property
    def url(self) -> str:
        """Where the objects are."""
        return self._ranges.url

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer where the object ends. Raises what the ranges raise."""
        place = self._places.get(path)
        if place is None:
            return await self._ranges.get_range(path, start, length)
        for one in self._order[place : place + 1 + AHEAD]:
            if one not in self._kept and one not in self._coming:
                self._coming[one] = asyncio.create_task(self._read_whole(one))
        data = self._kept.get(path)
        if data is None:
            task = self._coming[path]
            await asyncio.wait([task])  # others may wait for it, too
            if self._coming.get(path) is task:  # it failed
                del self._coming[path]
            data = task.result()
        return data[start : start + length]

    async def _read_whole(self, path: str) -> bytes:
        data = await self._ranges.get_range(path, 0, self._sizes[path])
        self._kept.add(path, data)
        del self._coming[path]
        return data


class StoreFiles(FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Objects by their paths, with their sizes. They are read on the event loop on which this was made.

    That loop must not be blocked. `failed` is the first error of a read: C++ reports it as text only. An async context
    manager: its exit cancels all reads, and returns when no thread reads any more; later reads raise OSError. Arrow's
    threads go on reading when a query has failed, and Python does not end while one of them waits for a loop.
    """

    failed: CaptureError | None = None

    def __init__(self, store: Ranges, sizes: Mapping[str, int]) -> None:
        self._store = store
        self._sizes = sizes
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._readers = 0  # threads
        self._over = False
        self._requests: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
        while self._readers:
            await cancel_all(self._requests)
            await asyncio.sleep(0.001)

    @property
    def url(self) -> str:
        """Where the objects are."""
        return self._store.url

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer where the object ends. Raises what the ranges raise."""
        request = asyncio.current_task()
        assert request is not None
        self._requests.add(request)
        try:
            return await self._store.get_range(path, start, length)
        finally:
            self._requests.discard(request)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Count a thread that reads. OSError after the end."""
        with self._lock:
            if self._over:
                raise OSError(f"the query is over: {self.url} is not read any more")
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1

    def get_type_name(self) -> str:
        """Return the name of the file system."""
        return "capture"

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Return which of the paths exist, and their sizes."""
        return [
            FileInfo(path, FileType.File, size=self._sizes[path]) if path in self._sizes else FileInfo(path)
            for path in paths
        ]

    def open_input_file(self, path: str) -> NativeFile:
        """Return an object as a file that can be read at any position."""
        return PythonFile(_Noting(self, path, self._sizes[path], self._loop), mode="r")

    def open_input_stream(self, path: str) -> NativeFile:
        """Return an object as a file that is read from its beginning."""
        return self.open_input_file(path)

    def normalize_path(self, path: str) -> str:
        """Return the path unchanged."""
        return path

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise OSError(f"{self.url} is opened read-only")

    get_file_info_selector = open_output_stream = open_append_stream = copy_file = move = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class _Noting(StoredFile):
    """Keeps the first error in the file system."""

    def __init__(self, files: StoreFiles, path: str, size: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(files, path, size, loop)
        self._files = files

    def readinto(self, buffer: Any) -> int:
        try:
            with self._files._reading():
                return super().readinto(buffer)
        except CaptureError as error:
            self._files.failed = self._files.failed or copy(error)  # a copy without the traceback, which C++ keeps
            raise
