from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa

from capture.block import SealedBlock
from capture.errors import FormatError
from capture.record import Records
from capture.writers.contract import Positions
from capture.writers.envelope import SCHEMA, to_table

MAGIC = b"CAPRAW1\n"
LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">QqIIIII")
"""Before each message: sequence, time in ns, deliveries, then the bytes of subject, header block, error and payload."""


class _Begin(msgspec.Struct, frozen=True):
    stream: str
    count: int


class RawWriter:
    """Messages as they came, byte for byte, each behind its lengths: the smallest thing that loses nothing."""

    suffix: ClassVar[str] = ".raw"
    format: ClassVar[str] = "raw"
    restorable: ClassVar[bool] = True
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
        return pa.concat_tables([SCHEMA.empty_table(), *self.parts(data, len(data))])

    def parts(self, data: bytes, part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of so many bytes, and of the rest of the last message. FormatError."""
        yield from map(to_table, _records(data, part_bytes))

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each message. FormatError."""
        data = file.read()
        for records in _records(data, len(data)):
            yield records.sequences, records.times_ns


def _records(data: bytes, part_bytes: int) -> Iterator[Records[Any]]:
    try:
        yield from _parsed(data, part_bytes)
    except (struct.error, msgspec.DecodeError) as error:
        raise FormatError(f"it is damaged or cut off: {error}") from error


def _parsed(data: bytes, part_bytes: int) -> Iterator[Records[Any]]:
    if not data.startswith(MAGIC):
        raise FormatError(f"it does not begin with {MAGIC!r}: it is no raw block, or one of a newer format")
    at = len(MAGIC) + LENGTH.size + LENGTH.unpack_from(data, len(MAGIC))[0]
    begin = msgspec.json.decode(data[len(MAGIC) + LENGTH.size : at], type=_Begin)
    records: Records[Any] = Records(begin.stream)
    part_ends = at + part_bytes
    for _ in range(begin.count):
        sequence, time_ns, deliveries, *lengths = HEAD.unpack_from(data, at)
        at += HEAD.size
        cells = []
        for length in lengths:
            cells.append(data[at : at + length])
            at += length
        subject, headers, error, payload = cells
        records.sequences.append(sequence)
        records.times_ns.append(time_ns)
        records.deliveries.append(deliveries)
        records.subjects.append(subject)
        records.header_blocks.append(headers)
        records.payloads.append(payload)
        if error:
            records.errors[len(records) - 1] = error.decode("utf-8", "replace")
        if at >= part_ends:
            yield records
            records, part_ends = Records(begin.stream), at + part_bytes
    if at != len(data):
        raise FormatError(f"it has {len(data):,} bytes, its messages end at {at:,}")
    if len(records):
        yield records
