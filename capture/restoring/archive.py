"""NATSARC1: a stream as one sequence of bytes, which nats-server 2.15 and later restores exactly.

See ADR "JetStream Stream Backup and Restore V2". Eight bytes of magic are followed by entries: the stream's state, its
consumers, its messages in ascending sequence, and a final entry of zeros. An archive without the final entry is cut
off. Everything is compressed. We write Snappy's framing, which readers of S2 accept too. The writer encodes the columns
of many messages at once, without Python code for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import IO, Any

import cramjam
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from capture.archive import envelope_columns
from capture.archive.sequences import MAXIMUM
from capture.errors import FormatError
from capture.ingest.record import Records
from natty.errors import UNREADABLE

MAGIC = b"NATSARC1"
STATE, CONSUMERS = b"state.json", b"consumers/"
COLUMNS = pa.schema(
    [(one.name, pa.int64() if one.type == "int64" else pa.binary()) for one in envelope_columns.COLUMNS if one.is_sent]
)
"""Sequence, time, subject, header block (null or empty: the message has none) and payload, in this order."""
KEEP_ALIVE = b"\xfe\x01\x00\x00\x00"
"""Padding in Snappy's framing: it has no content, and may be sent between any two pieces that a writer returns."""

LARGEST = 128 << 20  # bytes of a message or a text; a server's limit is lower
HEAD_BYTES = 50  # of five numbers at most
GROUP_BYTES = 1 << 20  # compressed bytes that are decompressed at once

_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_CHUNK = 4  # bytes before each chunk: its kind (one byte) and its length (three bytes)
_DATA, _SKIPPED = (0x00, 0x01), range(0x80, 0xFF)
_BITS = 14  # of a number that fit into two bytes


# --- writing ---------------------------------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes an archive piece by piece: call `begin`, `add` for each piece, `end`. It holds one piece in memory.

    Each call returns compressed bytes, in whole chunks. `now_ns` is the time of the first entries (Unix nanoseconds).
    """

    def __init__(self, *, now_ns: int) -> None:
        self._now_ns = now_ns
        self._compressor = cramjam.snappy.Compressor()

    def begin(self, state: Mapping[str, Any], consumers: Sequence[Mapping[str, Any]]) -> bytes:
        """Return the beginning: the state as in STREAM.INFO, and the consumers with their `config` and `state`."""
        full_state = {**state, "consumer_count": len(consumers)}
        texts = [(STATE, full_state), *((CONSUMERS + one["config"]["name"].encode(), one) for one in consumers)]
        return self._compress(MAGIC + b"".join(self._text(name, content) for name, content in texts))

    def add(self, rows: pa.Table) -> bytes:
        """Return the bytes of messages. `rows` have COLUMNS, ascending, and above all sequences added before."""
        return self._compress(encode(rows)) if len(rows) else b""

    def end(self) -> bytes:
        """Return the end. Nothing may follow."""
        self._compressor.compress(bytes(5))
        return bytes(self._compressor.finish())

    def _text(self, name: bytes, content: object) -> bytes:
        data = msgspec.json.encode(content)
        numbers = (len(name), 2 * self._now_ns, 0, 0, len(data))
        return b"".join(map(varint, numbers)) + name + data

    def _compress(self, data: bytes) -> bytes:
        self._compressor.compress(data)
        return bytes(self._compressor.flush())


def encode(rows: pa.Table) -> bytes:
    """Return the entries of messages, one after the other, uncompressed. They may have less than 2 GiB."""
    rows = rows.combine_chunks()
    sequence, time_ns, subject, headers, payload = (_array(rows[name]) for name in COLUMNS.names)
    sizes = [pc.fill_null(pc.binary_length(column), 0).cast(pa.uint64()) for column in (subject, headers, payload)]
    sign = pc.if_else(pc.less(time_ns, 0), pa.scalar(-1, pa.int64()), pa.scalar(0, pa.int64()))
    zigzag = pc.bit_wise_xor(pc.shift_left(time_ns, 1), sign).view(pa.uint64())
    numbers = [sizes[0], zigzag, sequence.view(pa.uint64()), sizes[1], sizes[2]]
    parts = [part for number in numbers for part in varints(number)]
    joined = pc.binary_join_element_wise(
        *parts, subject, headers, payload, pa.scalar(b"", pa.binary()), null_handling="replace", null_replacement=b""
    )
    return bytes(memoryview(joined.buffers()[2])[: pc.sum(pc.binary_length(joined)).as_py()])


def varints(numbers: pa.Array) -> list[pa.Array]:
    """Return unsigned 64-bit numbers as varints, in columns to be joined side by side: two bytes of each per column.

    A byte holds seven bits, the lowest first. The eighth bit is set in all bytes except the last. Null stands for no
    bytes.
    """
    columns, bits = [], pa.scalar(_BITS, pa.uint64())
    while True:
        rest = pc.shift_right(numbers, bits)
        goes_on = pc.greater(rest, 0)
        low = pc.bit_wise_and(numbers, pa.scalar((1 << _BITS) - 1, pa.uint64()))
        columns.append(_pairs().take(pc.if_else(goes_on, pc.add(low, pa.scalar(1 << _BITS, pa.uint64())), low)))
        if not pc.any(goes_on).as_py():
            return columns
        numbers = pc.if_else(goes_on, rest, None)


@cache
def _pairs() -> pa.Array:
    """Return the varint of each number of 14 bits, and then the two bytes of each that more bytes follow."""
    numbers = range(1 << _BITS)
    more = [bytes((number & 0x7F | 0x80, number >> 7 | 0x80)) for number in numbers]
    return pa.array([*map(varint, numbers), *more], pa.binary())


def varint(number: int) -> bytes:
    """Return an unsigned number in seven bits per byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def as_columns(rows: pa.RecordBatch) -> pa.Table:
    """Return COLUMNS of rows that have the envelope's columns (`capture.formats.envelope.SCHEMA`)."""
    subject, raw = rows["subject"].cast(pa.binary()), rows["subject_raw"]
    if raw.null_count < len(rows):
        subject = pc.coalesce(raw, subject)
    named = {"subject": subject, **{name: rows[name] for name in COLUMNS.names if name != "subject"}}
    return pa.table([named[name] for name in COLUMNS.names], schema=COLUMNS)


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# --- reading ---------------------------------------------------------------------------------------------------------


class ArchiveReader:
    """Reads the decompressed bytes of an archive, cut at any place. FormatError if they are not a whole archive."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._data, self._at = b"", 0
        if self._bytes(len(MAGIC)) != MAGIC:
            raise FormatError(f"it does not begin with {MAGIC.decode()}: it is not a stream archive of this kind")
        self.state: dict[str, Any] = self._text(STATE)
        count = self.state.get("consumer_count", 0)
        if not isinstance(count, int) or count < 0:
            raise FormatError(f"its state says that it has {count!r} consumers")
        self.consumers: list[dict[str, Any]] = [self._text(CONSUMERS) for _ in range(count)]

    def messages(self, stream: str = "", *, most: int = 8192, most_bytes: int = 4 << 20) -> Iterator[Records[None]]:
        """Yield the messages once, at most `most` or about `most_bytes` at a time. FormatError: damaged, or cut off."""
        last, size = 0, 0
        records: Records[None] = Records(stream)
        while True:
            name_bytes, time_ns, sequence, header_bytes, payload_bytes = self._head()
            if not name_bytes:
                break
            if not last < sequence <= MAXIMUM:
                raise FormatError(f"sequence {sequence} follows {last}: it is damaged")
            last = sequence
            records.sequences.append(sequence)
            records.times_ns.append(time_ns)
            records.subjects.append(self._bytes(name_bytes))
            records.header_blocks.append(self._bytes(header_bytes))
            records.payloads.append(self._bytes(payload_bytes))
            size += header_bytes + payload_bytes
            if len(records) >= most or size >= most_bytes:
                yield _fill_in(records)
                records, size = Records(stream), 0
        if any((time_ns, sequence, header_bytes, payload_bytes)) or self._more(1):
            raise FormatError("its end is not valid: it is damaged")
        if len(records):
            yield _fill_in(records)

    def _head(self) -> tuple[int, int, int, int, int]:
        """Return the five numbers that an entry begins with."""
        self._more(HEAD_BYTES)
        name, time, sequence, headers, payload = (self._number() for _ in range(5))
        if name + headers + payload > LARGEST:
            raise FormatError(f"an entry has {name + headers + payload:,} bytes: it is damaged")
        return name, (time >> 1) ^ -(time & 1), sequence, headers, payload

    def _number(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._data):
                raise FormatError("it is cut off")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                if number >> 64:
                    raise FormatError("a number has more than 64 bits: it is damaged")
                return number
            shift += 7
            if shift > 63:
                raise FormatError("a number has more than 64 bits: it is damaged")

    def _text(self, kind: bytes) -> dict[str, Any]:
        name_bytes, _, sequence, header_bytes, payload_bytes = self._head()
        name, content = self._bytes(name_bytes), self._bytes(header_bytes + payload_bytes)
        if sequence or not name.startswith(kind):
            raise FormatError(f"{name!r} stands where {kind.decode()} belongs: it is damaged")
        try:
            return msgspec.json.decode(content[header_bytes:], type=dict[str, Any])
        except UNREADABLE as error:
            raise FormatError(f"{name!r} in it is damaged: {error}") from error

    def _bytes(self, count: int) -> bytes:
        if not self._more(count):
            raise FormatError("it is cut off")
        self._at += count
        return self._data[self._at - count : self._at]

    def _more(self, count: int) -> bool:
        """Read until this many bytes are available. Return whether they are."""
        if len(self._data) - self._at >= count:
            return True
        parts = [self._data[self._at :]]
        there = len(parts[0])
        while there < count and (piece := next(self._pieces, None)) is not None:
            parts.append(piece)
            there += len(piece)
        self._data, self._at = b"".join(parts), 0
        return there >= count


def _fill_in(records: Records[None]) -> Records[None]:
    """Fill in the fields that an archive does not hold: one delivery, and no reply subject."""
    count = len(records)
    records.deliveries, records.replies, records.values = [1] * count, [b""] * count, [None] * count
    return records


def unframe(file: IO[bytes]) -> Iterator[bytes]:
    """Decompress Snappy's framing piece by piece, and check the checksums. FormatError: damaged, or cut off."""
    if file.read(len(_IDENTIFIER)) != _IDENTIFIER:
        raise FormatError("it is not in Snappy's framing")
    group, size = [_IDENTIFIER], 0
    while head := file.read(_CHUNK):
        kind, length = head[0], int.from_bytes(head[1:], "little")
        body = file.read(length)
        if len(head) < _CHUNK or len(body) < length:
            raise FormatError("it is cut off")
        if kind in _DATA:
            group += (head, body)
            size += length
        elif kind not in _SKIPPED and head + body != _IDENTIFIER:
            raise FormatError(f"it has a chunk of the unknown kind {kind}")
        if size >= GROUP_BYTES:
            yield _decompress(group)
            group, size = [_IDENTIFIER], 0
    if size:
        yield _decompress(group)


def _decompress(chunks: list[bytes]) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress(b"".join(chunks)))
    except cramjam.DecompressionError as error:
        raise FormatError(f"it is damaged: {error}") from error
