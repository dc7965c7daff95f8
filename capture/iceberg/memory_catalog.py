"""Files in memory for pyiceberg: fetched files, and files that will be stored."""

from __future__ import annotations

import io
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile


class MemoryFiles(FileIO):
    """Files by their location, only in memory. `written` are the locations of the new files."""

    def __init__(self, content: dict[str, bytes] | None = None) -> None:
        super().__init__()
        self.content = {} if content is None else content
        self.written: list[str] = []

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _File(location, self)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write."""
        return _File(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raises NotImplementedError: `maintenance.compaction` deletes files, after a grace time."""
        raise NotImplementedError

    def write(self, location: str, data: bytes) -> None:
        """Add a file."""
        self.content[location] = data
        self.written.append(location)


def one_file(location: str, data: bytes) -> MemoryFiles:
    """Return one new file."""
    files = MemoryFiles()
    files.write(location, data)
    return files


class _File(InputFile, OutputFile):
    def __init__(self, location: str, files: MemoryFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return len(self._files.content[self.location])

    def exists(self) -> bool:
        return self.location in self._files.content

    def open(self, seekable: bool = True) -> Any:
        if not self.exists():
            raise FileNotFoundError(self.location)
        return io.BytesIO(self._files.content[self.location])

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> Any:
        return _Written(self.location, self._files)


class _Written(io.BytesIO):
    """Becomes a file when it is closed."""

    def __init__(self, location: str, files: MemoryFiles) -> None:
        super().__init__()
        self._location, self._files = location, files

    def close(self) -> None:
        if not self.closed:
            self._files.write(self._location, self.getvalue())
        super().close()
