"""What is read of an archive lies in memory where there is room, else in temporary files."""

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
"""So much of an object that does not fit is read at a time."""


class Room:
    """Bytes of memory that several share. Whoever is refused uses a temporary file."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    def __repr__(self) -> str:
        return f"Room({self._free:,} bytes free)"

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are free."""
        if size > self._free:
            return False
        self._free -= size
        return True

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self._free += size


@dataclass
class Spooled:
    """The bytes of an object, to the byte what its record says: `source` has them. Close it when they were read."""

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
"""Calls a function with arguments, in a thread."""


async def spool(store: Store, stored: Stored, room: Room, work: Work) -> Spooled:
    """Return an object's bytes. FormatError if they are not those that were recorded; NotStored; SpillError."""
    if room.take(stored.bytes):
        try:
            data = await store.get(stored.path)
            _check(stored, len(data), (await work(sha256, data)).hexdigest())
        except BaseException:
            room.give(stored.bytes)
            raise
        return Spooled(stored, data, room)
    file = _temporary()
    try:
        _check(stored, *await _copied(store, stored, file, work))
    except BaseException:
        _discard(file)
        raise
    return Spooled(stored, file, room)


async def _copied(store: Store, stored: Stored, file: IO[bytes], work: Work) -> tuple[int, str]:
    """Copy an object into the file, piece by piece; return its size and its SHA-256."""
    digest, size = sha256(), 0

    def take(data: bytes) -> int:
        digest.update(data)
        with spilling():
            return file.write(data)

    while some := await store.get_range(stored.path, size, CHUNK_BYTES):
        size += await work(take, some)
    with spilling():
        file.seek(0)  # what is still in its buffer is written
    return size, digest.hexdigest()


def _check(stored: Stored, size: int, digest: str) -> None:
    if size != stored.bytes:
        raise FormatError(f"{stored.path} has {size:,} bytes, not {stored.bytes:,}: it was cut off or changed")
    if digest != stored.sha256:
        raise FormatError(f"{stored.path} was changed: its SHA-256 is not the recorded one")


def _temporary() -> IO[bytes]:
    with spilling():
        return tempfile.TemporaryFile()  # it outlives this function


def _discard(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # the disk may be full: what is in its buffer is lost, as it should be
        file.close()


@contextlib.contextmanager
def spilling() -> Iterator[None]:
    """Turn what goes wrong with temporary files into SpillError."""
    try:
        yield
    except OSError as error:
        where = tempfile.tempdir or os.environ.get("TMPDIR", "the folder of temporary files")
        raise SpillError(
            f"a temporary file could not be written in {where}: {error.strerror or error};"
            f" free space there, or set TMPDIR"
        ) from error


def kept(pieces: Iterable[pa.RecordBatch], room: Room) -> Iterator[pa.RecordBatch]:
    """Return the pieces, all of which are read before the first comes back.

    They lie in memory if there is room for all of them, else in a temporary file.
    """
    held: deque[pa.RecordBatch] = deque()
    waiting = iter(pieces)
    for piece in waiting:
        if not room.take(piece.nbytes):
            return _from_file(_written(_with(held, piece, waiting, room)))
        held.append(piece)
    return _out_of(held, room)


def _out_of(held: deque[pa.RecordBatch], room: Room) -> Iterator[pa.RecordBatch]:
    try:
        while held:
            piece = held.popleft()
            room.give(piece.nbytes)
            yield piece
    finally:
        room.give(sum(piece.nbytes for piece in held))


def _with(
    held: deque[pa.RecordBatch], piece: pa.RecordBatch, waiting: Iterator[pa.RecordBatch], room: Room
) -> Iterator[pa.RecordBatch]:
    yield from _out_of(held, room)
    yield piece
    yield from waiting


def _written(pieces: Iterator[pa.RecordBatch]) -> IO[bytes]:
    file = _temporary()
    try:
        first = next(pieces)
        with spilling(), pa.ipc.new_file(pa.PythonFile(file, "w"), first.schema) as writer:
            writer.write_batch(first)
            for piece in pieces:
                writer.write_batch(piece)
        with spilling():
            file.flush()
    except BaseException:
        _discard(file)
        raise
    return file


def _from_file(file: IO[bytes]) -> Iterator[pa.RecordBatch]:
    with file:
        reader = pa.ipc.open_file(pa.PythonFile(file, "r"))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
