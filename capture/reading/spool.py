"""Keeps fetched objects and decoded rows in memory while there is room, and in temporary files otherwise."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, Any

import pyarrow as pa

from capture.archive.manifest import Stored
from capture.errors import FormatError, SpillError
from capture.stores.contract import Store

CHUNK_BYTES = 2 << 20
"""The size of the pieces in which an object that does not fit is read."""


class Room:
    """A budget of memory in bytes. A caller that is refused uses a temporary file."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    def __repr__(self) -> str:
        return f"Room({self._free:,} bytes free)"

    def take(self, size: int) -> bool:
        """Take `size` bytes. Return False if they are not free."""
        if size > self._free:
            return False
        self._free -= size
        return True

    def give(self, size: int) -> None:
        """Return `size` bytes to the budget."""
        self._free += size


@dataclass
class Spooled:
    """The bytes of an object, checked against its record, in `source`. Close it after reading."""

    stored: Stored
    source: bytes | IO[bytes]
    room: Room

    def close(self) -> None:
        """Free memory or disk. Idempotent."""
        if isinstance(self.source, bytes):
            self.room.give(len(self.source))
        else:
            self.source.close()
        self.source = b""


Work = Callable[..., Awaitable[Any]]
"""Calls a function with arguments in a thread."""


async def spool(store: Store, stored: Stored, room: Room, work: Work) -> Spooled:
    """Return an object's bytes. FormatError if they differ from the record; NotStoredError; SpillError."""
    if room.take(stored.bytes):
        try:
            data = await store.get(stored.path)
            _check(stored, len(data), (await work(sha256, data)).hexdigest())
        except BaseException:
            room.give(stored.bytes)
            raise
        return Spooled(stored, data, room)
    file = _open_temporary()
    try:
        _check(stored, *await _copy(store, stored, file, work))
    except BaseException:
        _discard(file)
        raise
    return Spooled(stored, file, room)


async def _copy(store: Store, stored: Stored, file: IO[bytes], work: Work) -> tuple[int, str]:
    """Copy an object into the file, in chunks; return its size and its SHA-256."""
    digest, size = sha256(), 0

    def take(data: bytes) -> int:
        digest.update(data)
        with translate_spill_errors():
            return file.write(data)

    while some := await store.get_range(stored.path, size, CHUNK_BYTES):
        size += await work(take, some)
    with translate_spill_errors():
        file.seek(0)  # writes the buffer
    return size, digest.hexdigest()


def _check(stored: Stored, size: int, digest: str) -> None:
    if size != stored.bytes:
        raise FormatError(f"{stored.path} has {size:,} bytes, not {stored.bytes:,}: it was cut off or changed")
    if digest != stored.sha256:
        raise FormatError(f"{stored.path} was changed: its SHA-256 is not the recorded one")


def _open_temporary() -> IO[bytes]:
    with translate_spill_errors():
        return tempfile.TemporaryFile()  # the caller closes it


def _discard(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # the disk may be full: the content of the buffer is not needed any more
        file.close()


@contextlib.contextmanager
def translate_spill_errors() -> Iterator[None]:
    """Turn errors of temporary files into SpillError."""
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or os.environ.get("TMPDIR", "the folder of temporary files")
        raise SpillError(
            f"a temporary file could not be written in {where}: {error.strerror or error};"
            f" free space there, or set TMPDIR"
        ) from error


def keep(pieces: Iterable[pa.RecordBatch], room: Room) -> Iterator[pa.RecordBatch]:
    """Read all pieces, and return an iterator over them.

    They are kept in memory if there is room for all, otherwise in a temporary file.
    """
    held: deque[pa.RecordBatch] = deque()
    waiting = iter(pieces)
    for piece in waiting:
        if not room.take(piece.nbytes):
            return _read_file(_write_file(_chain(held, piece, waiting, room)))
        held.append(piece)
    return _drain(held, room)


def _drain(held: deque[pa.RecordBatch], room: Room) -> Iterator[pa.RecordBatch]:
    try:
        while held:
            piece = held.popleft()
            room.give(piece.nbytes)
            yield piece
    finally:
        room.give(sum(piece.nbytes for piece in held))


def _chain(
    held: deque[pa.RecordBatch], piece: pa.RecordBatch, waiting: Iterator[pa.RecordBatch], room: Room
) -> Iterator[pa.RecordBatch]:
    yield from _drain(held, room)
    yield piece
    yield from waiting


def _write_file(pieces: Iterator[pa.RecordBatch]) -> IO[bytes]:
    file = _open_temporary()
    try:
        first = next(pieces)
        with translate_spill_errors(), pa.ipc.new_file(pa.PythonFile(file, "w"), first.schema) as writer:
            writer.write_batch(first)
            for piece in pieces:
                writer.write_batch(piece)
        with translate_spill_errors():
            file.flush()
    except BaseException:
        _discard(file)
        raise
    return file


def _read_file(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    with file:
        reader = pa.ipc.open_file(pa.PythonFile(file, "r"))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
