from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa

from capture.errors import FormatError
from capture.formats.contract import Positions
from capture.formats.envelope import to_table
from capture.formats.headers import MESSAGE_ID
from capture.ingest.block import SealedBlock
from capture.ingest.record import Records, header_texts, origin_of, text_or_none

AT_ONCE = 256  # messages whose columns are made together: a block's would take twice the memory
POSITIONS_BYTES = 8 << 20  # of lines that are looked at together for their positions
LONGEST_LINE = 512 << 20
"""Bytes of a line: no message that a server takes (64 MiB with its headers) becomes a longer one."""
NOTHING: Iterable[Any] = repeat(None)

_encoder = msgspec.json.Encoder()


class Row(msgspec.Struct, omit_defaults=True):
    """A line: the envelope's names; what is no text is in the field that ends in `_base64`, its twin is null.

    Made by position: by name it costs three times as much.
    """

    stream: str
    sequence: int
    time_ns: int
    subject: str
    headers: dict[str, list[str]] | None
    header_block_base64: str | None
    message_id: str | None
    deliveries: int
    payload: str | None
    payload_base64: str | None
    error: str | None
    subject_raw_base64: str | None = None
    origin_stream: str | None = None
    origin_sequence: int | None = None


class NdjsonWriter:
    """JSON, a message a line: to be read by anything, at several times Parquet's size and cost."""

    suffix: ClassVar[str] = ".ndjson"
    format: ClassVar[str] = "ndjson"
    restorable: ClassVar[bool] = True
    unfit: ClassVar[Counter[str]] = Counter()  # it has no columns

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as lines of JSON."""
        records = block.records
        parts = (records.select(range(start, start + AT_ONCE)) for start in range(0, len(records), AT_ONCE))
        return b"".join(map(lines, parts))

    def read(self, data: bytes) -> pa.Table:
        """Return the rows; msgspec's DecodeError if a line is none."""
        return to_table(_records(msgspec.json.Decoder(Row).decode_lines(data)))

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows of so many bytes, and of the begin of a line before them. Raises as `read` does."""
        decode = msgspec.json.Decoder(Row).decode_lines
        for line, more in _cut(file, part_bytes):
            yield to_table(_records(decode(line) + decode(more)))

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each row."""
        decode = msgspec.json.Decoder(_Position).decode_lines
        for line, more in _cut(file, POSITIONS_BYTES):
            rows = decode(line) + decode(more)
            yield [row.sequence for row in rows], [row.time_ns for row in rows]


def _cut(file: IO[bytes], part_bytes: int) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Yield a line that several parts have, and the whole lines behind it: these are not copied. FormatError."""
    begun: list[bytes] = []
    size = 0  # of these
    while part := file.read(part_bytes):
        if size > LONGEST_LINE:
            raise FormatError(f"it has a line of more than {LONGEST_LINE:,} bytes: no message is as long")
        whole = part.find(b"\n") + 1
        begun.append(part[: whole or len(part)])
        size += len(begun[-1])
        if whole:
            ends = part.rfind(b"\n") + 1
            yield b"".join(begun), memoryview(part)[whole:ends]
            begun = [part[ends:]]
            size = len(part) - ends
    if rest := b"".join(begun):
        yield rest, b""


def _records(rows: list[Row]) -> Records[Any]:
    return Records(
        stream=rows[0].stream if rows else "",
        sequences=[row.sequence for row in rows],
        times_ns=[row.time_ns for row in rows],
        subjects=[_bytes(row.subject, row.subject_raw_base64) for row in rows],
        header_blocks=[b64decode(one) if (one := row.header_block_base64) else b"" for row in rows],
        payloads=[_bytes(row.payload, row.payload_base64) for row in rows],
        deliveries=[row.deliveries for row in rows],
        errors={index: row.error for index, row in enumerate(rows) if row.error is not None},
    )


class _Position(msgspec.Struct):
    sequence: int
    time_ns: int


def lines(records: Records[Any]) -> bytes:
    """Return a message a line, made column by column: most columns are missing for all of the messages."""
    subjects, raw_subjects = _texts(records.subjects)
    if raw_subjects is not NOTHING:
        subjects = [subject.decode("utf-8", "replace") for subject in records.subjects]
    payloads, raw_payloads = _texts(records.payloads)
    headers, header_blocks, message_ids, *origin = _header_columns(records.header_blocks)
    errors = [_error(records.errors.get(index)) for index in range(len(records))] if records.errors else NOTHING
    facts = repeat(records.stream), records.sequences, records.times_ns, subjects
    content = payloads, raw_payloads, errors, raw_subjects
    rows = map(Row, *facts, headers, header_blocks, message_ids, records.deliveries, *content, *origin)
    return _encoder.encode_lines(list(rows))  # msgspec 0.22 never lets go of an iterator, nor it of our columns


def _texts(column: list[bytes]) -> tuple[Iterable[str | None], Iterable[str | None]]:
    """Return a column as text and, where it is none, in base64; null stands in the other one."""
    try:
        return [one.decode() for one in column], NOTHING
    except UnicodeDecodeError:
        texts = list(map(text_or_none, column))
        return texts, [_base64(one) if text is None else None for one, text in zip(column, texts, strict=True)]


def _header_columns(blocks: list[bytes]) -> tuple[Iterable[Any], ...]:
    """Return the columns headers, header_block_base64, message_id, origin_stream and origin_sequence."""
    if not any(blocks):
        return (NOTHING,) * 5
    headers = [header_texts(block) if block else None for block in blocks]
    origins = [origin_of(block) or (None, None) for block in blocks]
    return (
        headers,
        [_base64(block) if block else None for block in blocks],
        [one[MESSAGE_ID][0] if one and MESSAGE_ID in one else None for one in headers],
        *zip(*origins, strict=True),
    )


def _error(reason: str | None) -> str | None:
    return None if reason is None else reason.encode("utf-8", "replace").decode()


def _bytes(text: str | None, encoded: str | None) -> bytes:
    return b64decode(encoded) if encoded is not None else (text or "").encode()


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
