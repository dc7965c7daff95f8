"""Compressions of whole objects: gzip, snappy and zstd."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import cramjam
import pyarrow as pa

from capture.errors import ConfigError, FormatError

GZIP_LEVEL = 1  # 955 MB/s of one core against 133 at level 6, which saves a tenth more
ZSTD_LEVEL = 1  # the compaction writes the lasting file
IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
UNFRAMED_BYTES = 64 << 10
UNRECORDED_BYTES = 1 << 30
"""Limit of an object's content if its record does not have it; or LARGEST_RATIO times its bytes, if that is more."""
LARGEST_RATIO = 1032
"""A deflate stream (RFC 1951) expands by at most this factor."""
LIMITED_BYTES = 1 << 20  # that are decompressed at a time, when all is requested


@dataclass(frozen=True)
class Codec:
    """A compression of whole objects, and the suffix of their names."""

    name: str
    ending: str
    compress: Callable[[bytes], bytes]
    open: Callable[[IO[bytes]], IO[bytes]]
    """Returns a reader that decompresses a file from its start to its end. Closing the reader may close the file."""


class Unframed(io.RawIOBase):
    """The content of framed Snappy, a chunk at a time, of at most 64 KiB.

    Source: framing_format.txt of google/snappy. Reading raises FormatError, or cramjam's error, if it is not framed
    Snappy.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._left = memoryview(b"")
        self._begun = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, at most from one chunk; with nothing only at the end."""
        while not self._left and (chunk := self._chunk()):
            self._left = memoryview(bytes(cramjam.snappy.decompress(IDENTIFIER + chunk)))
        some = self._left[: len(buffer)]
        buffer[: len(some)] = some
        self._left = self._left[len(some) :]
        return len(some)

    def _chunk(self) -> bytes:
        """Return the next chunk with its head: a kind in one byte, and its length in three."""
        if not self._begun and self._file.read(len(IDENTIFIER)) != IDENTIFIER:
            raise FormatError("it is not framed Snappy")
        self._begun = True
        head = self._file.read(4)
        length = int.from_bytes(head[1:], "little")
        body = self._file.read(length)
        if len(head) not in (0, 4) or len(body) < length:
            raise FormatError("it is cut off")
        return head + body


def largest_plain(described: object) -> int:
    """Return the limit for the content of a described object: the size in its record, if there is one."""
    recorded = int(getattr(described, "plain_bytes", 0))
    return recorded or max(UNRECORDED_BYTES, LARGEST_RATIO * int(getattr(described, "bytes", 0)))


class Limited(io.RawIOBase):
    """A file with at most `most` bytes. Reading beyond them raises FormatError."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        self._most = self._left = most

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return this many bytes, or all that follow; fewer only at the end."""
        if size < 0:
            return self.readall()
        data = self._file.read(min(size, self._left + 1))
        self._left -= len(data)
        if self._left < 0:
            raise FormatError(f"more than {self._most:,} bytes are inside of it: capture did not store that")
        return data

    def readall(self) -> bytes:
        """Return all bytes that follow."""
        whole = io.BytesIO()
        while data := self.read(LIMITED_BYTES):
            whole.write(data)
        return whole.getvalue()

    def close(self) -> None:
        """Close the file, too."""
        super().close()
        self._file.close()


def _whole(function: Callable[..., Any], *more: int) -> Callable[[bytes], bytes]:
    return lambda data: bytes(function(data, *more))


def _unframe(file: IO[bytes]) -> IO[bytes]:
    return io.BufferedReader(Unframed(file), UNFRAMED_BYTES)


def _arrow(name: str) -> Callable[[IO[bytes]], IO[bytes]]:
    return lambda file: pa.CompressedInputStream(file, name)


CODECS = {
    codec.name: codec
    for codec in (
        Codec("gzip", "gz", _whole(cramjam.gzip.compress, GZIP_LEVEL), _arrow("gzip")),
        Codec("snappy", "sz", _whole(cramjam.snappy.compress), _unframe),
        Codec("zstd", "zst", _whole(cramjam.zstd.compress, ZSTD_LEVEL), _arrow("zstd")),
    )
}
ENDINGS = {codec.ending: codec for codec in CODECS.values()}
NONE = "none"


def codec(name: str) -> Codec | None:
    """Return the compression of this name, None for "none". ConfigError, with the known names, if it is unknown."""
    if name != NONE and name not in CODECS:
        raise ConfigError(f"there is no compression {name!r}; the known ones are {', '.join([NONE, *CODECS])}")
    return CODECS.get(name)
