"""A store as a file system for Arrow, to read from. Arrow's C++ calls it from any thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from typing import Any, NoReturn

from pyarrow import NativeFile, PythonFile
from pyarrow.fs import FileInfo, FileSystemHandler, FileType

from capture.errors import CaptureError
from capture.stores.stored_file import Ranges, StoredFile


class StoreFiles(FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Objects by their paths, with their sizes. They are read on the event loop on which this was made.

    That loop must not be blocked. `failed` is the first error of a read: C++ reports it as text only.
    """

    failed: CaptureError | None = None

    def __init__(self, store: Ranges, sizes: Mapping[str, int]) -> None:
        self._store = store
        self._sizes = sizes
        self._loop = asyncio.get_running_loop()

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
        return PythonFile(_Noting(self, self._store, path, self._sizes[path], self._loop), mode="r")

    def open_input_stream(self, path: str) -> NativeFile:
        """Return an object as a file that is read from its beginning."""
        return self.open_input_file(path)

    def normalize_path(self, path: str) -> str:
        """Return the path unchanged."""
        return path

    def _refuse(self, *arguments: Any) -> NoReturn:
        raise OSError(f"{self._store.url} is opened read-only")

    get_file_info_selector = open_output_stream = open_append_stream = copy_file = move = _refuse
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__


class _Noting(StoredFile):
    """Keeps the first error in the file system."""

    def __init__(self, files: StoreFiles, *of: Any) -> None:
        super().__init__(*of)
        self._files = files

    def readinto(self, buffer: Any) -> int:
        try:
            return super().readinto(buffer)
        except CaptureError as error:
            self._files.failed = self._files.failed or copy(error)  # a copy without the traceback, which C++ keeps
            raise
