"""The format `raw`: messages byte for byte, each after its lengths."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa

from capture.errors import FormatError
from capture.formats.contract import Positions
from capture.formats.envelope import SCHEMA, to_table
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Unlayered
from capture.ingest.record import Records
from natty.errors import UNREADABLE

MAGIC = b"CAPRAW1\n"
LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">QqIIIII")
"""Before each message: sequence, time in ns, deliveries, then the bytes of subject, header block, error and payload."""
MOST_BYTES = 256 << 20
"""Of a message, or of the block's head: no message that a server takes (64 MiB with its headers) is longer."""
POSITIONS_BYTES = 8 << 20  # of messages that are read together for their positions


class _Begin(msgspec.Struct, frozen=True):
    stream: str
    count: int


_decode_begin = msgspec.json.Decoder(_Begin).decode


class RawWriter(Unlayered):
    """Unchanged messages, byte for byte, each after its lengths: the smallest format that keeps everything."""

    format: ClassVar[str] = "raw"
    unfit: ClassVar[Counter[str]] = Counter()  # it has no columns

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as length-prefixed messages."""
        records = block.records
        begin = msgspec.json.encode(_Begin(records.stream, len(records)))
        parts = [MAGIC, LENGTH.pack(len(begin)), begin]
        errors = {index: reason.encode("utf-8", "replace") for index, reason in records.errors.items()}
        columns = zip(
            records.sequences, records.times_ns, records.deliveries,
            records.subjects, records.header_blocks, records.payloads, strict=True,
        )  # fmt: skip
        pack = HEAD.pack
        for index, (sequence, time_ns, deliveries, subject, headers, payload) in enumerate(columns):
            error = errors.get(index, b"")
            parts += (
                pack(sequence, time_ns, deliveries, len(subject), len(headers), len(error), len(payload)),
                subject, headers, error, payload,
            )  # fmt: skip
        return b"".join(parts)

    def read(self, data: bytes) -> pa.Table:
        """Return the rows. FormatError if the data is damaged or cut off."""
        return pa.concat_tables([SCHEMA.empty_table(), *self.parts(BytesIO(data), len(data))])

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows in parts of about `part_bytes`; cut messages belong to the next part. FormatError."""
        yield from map(to_table, _records(file, part_bytes))

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each message. FormatError."""
        for records in _records(file, POSITIONS_BYTES):
            yield records.sequences, records.times_ns


def _records(file: IO[bytes], part_bytes: int) -> Iterator[Records[Any]]:
    begin = _begin(file)
    left, lacking = begin.count, 0
    held: list[bytes] = []  # the start of a message, which may be longer than several parts
    while part := file.read(part_bytes):
        held.append(part)
        lacking -= len(part)
        if lacking > 0:
            continue
        data = b"".join(held)
        records, ends, lacking = _parse(data, begin.stream, left)
        left -= len(records)
        if not left and ends < len(data):
            raise FormatError(f"it continues after its {begin.count:,} messages")
        held = [data[ends:]]
        if len(records):
            yield records
    if left:
        raise FormatError(
            f"it is cut off: of its {begin.count:,} messages the last {left:,} {'is' if left == 1 else 'are'} missing"
        )


def _begin(file: IO[bytes]) -> _Begin:
    if file.read(len(MAGIC)) != MAGIC:
        raise FormatError(f"it does not begin with {MAGIC!r}: it is not a raw block, or it has a newer format")
    try:
        (length,) = LENGTH.unpack(file.read(LENGTH.size))
        if length > MOST_BYTES:
            raise FormatError(f"it is damaged: it begins with {length:,} bytes")
        return _decode_begin(file.read(length))
    except (struct.error, *UNREADABLE) as error:
        raise FormatError(f"it is damaged or cut off: {error}") from error


def _parse(data: bytes, stream: str, most: int) -> tuple[Records[Any], int, int]:
    """Return the complete messages, the position after them, and the least number of bytes that the next one needs."""
    records: Records[Any] = Records(stream)
    at, size, unpack = 0, len(data), HEAD.unpack_from
    for index in range(most):
        subject = at + HEAD.size
        if subject > size:
            return records, at, subject - size
        sequence, time_ns, deliveries, *lengths = unpack(data, at)
        headers = subject + lengths[0]
        error = headers + lengths[1]
        payload = error + lengths[2]
        ends = payload + lengths[3]
        if ends - at > MOST_BYTES:
            raise FormatError(f"it is damaged: message {sequence} has {ends - at:,} bytes")
        if ends > size:
            return records, at, ends - size
        records.sequences.append(sequence)
        records.times_ns.append(time_ns)
        records.deliveries.append(deliveries)
        records.subjects.append(data[subject:headers])
        records.header_blocks.append(data[headers:error])
        records.payloads.append(data[payload:ends])
        if payload > error:
            records.errors[index] = data[error:payload].decode("utf-8", "replace")
        at = ends
    return records, at, 0
