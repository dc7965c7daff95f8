"""A store as a file system of Arrow's, to read from: what asks it for objects may be C++ in any thread."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Coroutine, Mapping
from typing import Any, NoReturn, TypeVar

from pyarrow import NativeFile, PythonFile
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from capture.stores.contract import Store

T = TypeVar("T")


class StoreFiles(FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Objects of these sizes, by their paths. They are read on the event loop that made this, which must be free."""

    def __init__(self, store: Store, sizes: Mapping[str, int]) -> None:
        self._store = store
        self._sizes = sizes
        self._loop = asyncio.get_running_loop()

    def get_type_name(self) -> str:
        """Name it."""
        return "capture"

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Tell what is there."""
        return [
            FileInfo(path, FileType.File, size=self._sizes[path]) if path in self._sizes else FileInfo(path)
            for path in paths
        ]

    def open_input_file(self, path: str) -> NativeFile:
        """Return an object, to be read at any place."""
        return PythonFile(_Object(self, path, self._sizes[path]), mode="r")

    def open_input_stream(self, path: str) -> NativeFile:
        """Return an object, to be read from its beginning."""
        return self.open_input_file(path)

    def normalize_path(self, path: str) -> str:
        """Return the path: it has one form."""
        return path

    def _refused(self, *arguments: Any) -> NoReturn:
        raise OSError(f"{self._store.url} is only read here")

    get_file_info_selector = open_output_stream = open_append_stream = copy_file = move = _refused
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refused

    def read(self, path: str, start: int, length: int) -> bytes:
        """Return a part of an object; in whichever thread."""
        return self._wait(self._store.get_range(path, start, length))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class _Object(io.RawIOBase):
    def __init__(self, files: StoreFiles, path: str, size: int) -> None:
        self._files, self._path, self._size = files, path, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._files.read(self._path, self._at, wanted) if wanted else b""
        self._at += len(data)
        return data
