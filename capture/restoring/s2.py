"""Decompresses S2 as servers write it: Snappy's framing with larger blocks, and copies that repeat the last distance.

Chunks are those of Snappy's framing (google/snappy, framing_format.txt); blocks and their extensions are S2's
(klauspost/compress, s2/README.md). Several streams in a row are read as one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import cramjam
import google_crc32c

from capture.errors import FormatError

LARGEST_BLOCK = 4 << 20  # bytes of a decompressed block
LONGEST_SIZE = 35  # bits
IDENTIFIER = 0xFF
_COMPRESSED, _PLAIN = 0x00, 0x01
_SKIPPED = range(0x80, 0xFF)
_IDENTIFIERS = (b"S2sTwO", b"sNaPpY")
_HEAD, _CHECKSUM = 4, 4  # bytes


def unpack(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of a file of S2 or framed Snappy, block by block, and check checksums. FormatError."""
    begun = False
    while head := file.read(_HEAD):
        kind, length = head[0], int.from_bytes(head[1:], "little")
        body = file.read(length)
        if len(head) < _HEAD or len(body) < length:
            raise FormatError("it is cut off")
        if kind == IDENTIFIER:
            begun = body in _IDENTIFIERS
        if not begun:
            raise FormatError("it is neither S2 nor framed Snappy")
        if kind in (_COMPRESSED, _PLAIN):
            yield _decode_chunk(kind, body)
        elif kind != IDENTIFIER and kind not in _SKIPPED:
            raise FormatError(f"it has a chunk of kind {kind:#x}, which this version does not know")


def _decode_chunk(kind: int, body: bytes) -> bytes:
    data = decompress(body[_CHECKSUM:]) if kind == _COMPRESSED else body[_CHECKSUM:]
    crc = google_crc32c.value(data)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    if masked.to_bytes(_CHECKSUM, "little") != body[:_CHECKSUM]:
        raise FormatError("a checksum in it is wrong: it is damaged")
    return data


def decompress(block: bytes) -> bytes:
    """Return the content of an S2 block. FormatError if it is not a valid block.

    A block without S2's extensions is Snappy, and decompressed at its speed; only the others are decompressed in
    Python.
    """
    try:
        size, at = _size(block)
        if size > LARGEST_BLOCK:
            raise FormatError(f"a block in it has {size:,} bytes, more than there may be: it is damaged")
        try:
            return bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError:
            found = _step_by_step(block, at)
    except IndexError:
        found, size = b"", 1
    if len(found) != size:
        raise FormatError("a block in it is damaged")
    return found


def _size(block: bytes) -> tuple[int, int]:
    """Return the number that a block begins with, and the position after it."""
    size = shift = at = 0
    while True:
        byte = block[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return size, at
        if shift > LONGEST_SIZE:
            raise FormatError("a block in it is damaged")


def _step_by_step(block: bytes, at: int) -> bytes:
    """Decompress a block element by element: literal bytes, or a copy of bytes at a distance back in the output."""
    out = bytearray()
    end, back = len(block), 0
    while at < end:
        tag = block[at]
        kind, length = tag & 3, tag >> 2
        at += 1
        if kind == 0:
            if length >= 60:
                more = length - 59
                length = int.from_bytes(block[at : at + more], "little")
                at += more
            length += 1
            out += block[at : at + length]
            at += length
            continue
        if kind == 1:
            length &= 7
            distance = (tag & 0xE0) << 3 | block[at]
            at += 1
            if distance:
                back = distance
            elif length >= 5:  # the last distance again, with a longer length
                more = length - 4
                length = int.from_bytes(block[at : at + more], "little") + (4, 1 << 8, 1 << 16)[more - 1]
                at += more
            length += 4
        else:
            more = 2 * kind - 2
            back = int.from_bytes(block[at : at + more], "little")
            length += 1
            at += more
        begin = len(out) - back
        if begin < 0 or not back:
            return b""
        if back >= length:
            out += out[begin : begin + length]
        else:
            pattern = bytes(out[begin:])
            out += (pattern * (length // back + 1))[:length]
        if len(out) > LARGEST_BLOCK:
            return b""
    return bytes(out)
