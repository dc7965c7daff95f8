"""Buffers on disk: the content of open blocks is in files, memory holds only its positions."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import IO, Any, NoReturn, get_type_hints
from weakref import ReferenceType, finalize, ref

import msgspec

from capture.errors import SpillError
from capture.ingest.record import TAKEN, Records

MAX_DISK_BYTES = 4 << 30  # of all segments with messages of a block that is open or being stored
SEGMENT_BYTES = 64 << 20  # of a file
SEGMENTS = 8  # at least this many in `max_bytes`: a segment is freed as a whole
CHUNK_BYTES = 1 << 20  # of one write, unless a part is larger
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_HINTS = get_type_hints(Records)
_Columns: Any = tuple[*(_HINTS[name] for name in TAKEN), dict[int, bytes]]  # type: ignore[misc]
"""The lists of a message's records, then its errors."""

_lists: Callable[[Records[Any]], tuple[Any, ...]] = attrgetter(*TAKEN)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Columns)


class Spill:
    """A log on disk, in segments: the messages of all open blocks, in order of arrival.

    A segment is a file without a name. The system frees it when it holds no block any more, or when the process ends,
    however that happens: nothing needs cleaning up, and no other process can open it. Nothing is ever recovered from
    it: messages that were not stored were not acknowledged, so the server delivers them again. Raises SpillError if no
    file can be created in the folder.
    """

    def __init__(
        self, folder: str | Path = "", max_bytes: int = MAX_DISK_BYTES, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.folder = Path(folder or gettempdir()).absolute()
        self.max_bytes = max_bytes
        self.end = 0
        """The bytes that were ever appended."""
        self._written = 0
        self._segment_bytes = min(segment_bytes, max_bytes // SEGMENTS)
        self._segments: list[ReferenceType[_Segment]] = []  # alive as long as they hold a block
        self._last: _Segment | None = None
        self._unwritten: list[_Segment] = []
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_file().close()
        except OSError as error:
            self._refuse(error)

    def __repr__(self) -> str:
        return f"Spill({str(self.folder)!r}, {self.disk_bytes} of {self.max_bytes} bytes)"

    @property
    def disk_bytes(self) -> int:
        """The bytes that the files take."""
        return sum(segment.size for one in self._segments if (segment := one()))

    @property
    def unwritten_bytes(self) -> int:
        """The bytes that were appended and are only in memory."""
        return self.end - self._written

    def append(self, data: bytes) -> tuple[_Segment, int]:
        """Return the segment and the offset in it where the data will be; the data stays in memory until `write`."""
        segment = self._last
        if segment is None or segment.size >= self._segment_bytes:
            segment = self._last = _Segment(self.end)
            self._segments = [*filter(lambda one: one() is not None, self._segments), ref(segment)]
        if not segment.unwritten:
            self._unwritten.append(segment)
        segment.unwritten.append(data)
        offset = segment.size
        segment.size += len(data)
        self.end += len(data)
        return segment, offset

    def write(self) -> None:
        """Write what was appended. It blocks: call it in a thread. After a SpillError the log can't be used."""
        try:
            for segment in self._unwritten:
                segment.write(self._make_file)
        except OSError as error:
            self._refuse(error)
        self._unwritten = []
        self._written = self.end

    def _make_file(self) -> IO[bytes]:
        return TemporaryFile(dir=self.folder, buffering=0)

    def _refuse(self, error: OSError) -> NoReturn:
        full = error.errno in FULL
        raise SpillError(
            f"the folder of the buffers, {self.folder}, {'is full' if full else 'cannot be written'} "
            f"({error.strerror}): messages that are not stored yet are returned to the server, nothing is lost; "
            f"{'free space there, set buffers.max_disk_bytes to less than the free space' if full else 'check it'}, "
            "or name another one as buffers.folder"
        ) from error


class Spilled:
    """The messages of one block, on disk."""

    __slots__ = ("_count", "_places", "_spill", "_stream", "first", "last")

    def __init__(self, stream: str, spill: Spill) -> None:
        self._stream = stream
        self._spill = spill
        self._count = 0
        self.first, self.last = 0, 0  # the lowest and the highest sequence
        self._places: list[tuple[_Segment, array[int]]] = []  # offset, length, offset, length … in each segment

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Spilled({self._stream!r}, {self._count} messages)"

    @property
    def span(self) -> int:
        """The bytes of the log from the segment of its first message up: they are not freed while it is open."""
        return self._spill.end - self._places[0][0].start if self._places else 0

    def take(self, records: Records[Any]) -> None:
        """Append the messages, without decoded values and keys."""
        data = _encoder.encode(_columns(records))
        segment, offset = self._spill.append(data)
        if not self._places or self._places[-1][0] is not segment:
            self._places.append((segment, array("Q")))
        self._places[-1][1].extend((offset, len(data)))
        first, last = min(records.sequences), max(records.sequences)
        self.first, self.last = (min(self.first, first), max(self.last, last)) if self._count else (first, last)
        self._count += len(records)

    def load(self) -> Records[Any]:
        """Return the messages as they were taken. It blocks. Raises SpillError if the disk does not return them."""
        records: Records[Any] = Records(self._stream)
        for segment, places in self._places:
            for at in range(0, len(places), 2):
                _append(records, segment.read(places[at], places[at + 1]))
        return records


class _Segment:
    """A part of the log."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.size = 0
        self.unwritten: list[bytes] = []
        self._file: IO[bytes] | None = None

    def write(self, make_file: Callable[[], IO[bytes]]) -> None:
        """Write what is unwritten. Raises OSError."""
        if self._file is None:
            self._file = make_file()
            finalize(self, self._file.close)
        for chunk in _chunks(self.unwritten):
            left = memoryview(chunk)
            while left:
                left = left[self._file.write(left) :]
        self.unwritten = []

    def read(self, offset: int, length: int) -> bytes:
        """Return these bytes. Raises SpillError."""
        assert self._file is not None, "written before it is read"
        try:
            data = os.pread(self._file.fileno(), length, offset)
        except OSError as error:
            raise SpillError(f"the disk of the buffers can't be read: {error.strerror}; nothing is lost") from error
        if len(data) != length:
            raise SpillError(f"the disk of the buffers gave {len(data)} of {length} bytes back; nothing is lost")
        return data


def _chunks(parts: list[bytes]) -> Iterator[bytes]:
    """Yield the parts in pieces that are worth a system call; a large part alone, since joining copies."""
    joined: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > CHUNK_BYTES and joined:
            yield b"".join(joined)
            joined, size = [], 0
        joined.append(part)
        size += len(part)
    yield b"".join(joined)


def _columns(records: Records[Any]) -> tuple[Any, ...]:
    errors = {at: why.encode("utf-8", "surrogatepass") for at, why in records.errors.items()}
    return *_lists(records), errors


def _append(records: Records[Any], data: bytes) -> None:
    *columns, errors = _decoder.decode(data)
    if errors:
        offset = len(records)
        records.errors.update((offset + at, why.decode("utf-8", "surrogatepass")) for at, why in errors.items())
    for whole, part in zip(_lists(records), columns, strict=True):
        whole += part
