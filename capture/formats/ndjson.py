"""The format `ndjson`: each message is a JSON object on its own line."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa

from capture.archive.envelope_columns import COLUMNS, HEADER_BLOCKS, Column
from capture.errors import FormatError
from capture.formats.contract import Positions
from capture.formats.envelope import to_table
from capture.formats.text_columns import fields_of, parts_of, text_columns
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Unlayered
from capture.ingest.record import LISTS, Records

POSITIONS_BYTES = 8 << 20  # of lines that are read together for their positions
LONGEST_LINE = 512 << 20
"""Bytes of a line: no message that a server takes (64 MiB with its headers) becomes a longer one."""

_encoder = msgspec.json.Encoder()


_TYPES = {"string": str, "binary": str, "int32": int, "int64": int, "headers": dict[str, list[str]]}


def _fields(column: Column) -> Iterator[tuple[str, Any] | tuple[str, Any, None]]:
    """Yield the fields of a column: their names and types, and a default if null is left out."""
    names = fields_of(column)
    is_null = column.nullable or len(names) > 1
    kind: Any = _TYPES[column.type]
    for name in names:
        wanted = kind | None if is_null else kind
        yield (name, wanted, None) if column.is_late else (name, wanted)


_DECODED = ("subjects", HEADER_BLOCKS)
Row: Any = msgspec.defstruct("Row", [field for one in COLUMNS for field in _fields(one)], omit_defaults=True)
_decode_rows = msgspec.json.Decoder(Row).decode_lines
"""A line with the envelope's names. Bytes that are not text are in the field that ends in `_base64`, the other is null.

Construct it by position: by name it costs three times as much.
"""
_PLAIN = [one for one in COLUMNS if one.source in LISTS and one.type != "binary" and one.source not in _DECODED]
"""The columns that are equal to a list of `Records`."""


class NdjsonWriter(Unlayered):
    """JSON, one message per line: any program can read it, at several times Parquet's size and cost."""

    format: ClassVar[str] = "ndjson"
    unfit: ClassVar[Counter[str]] = Counter()  # it has no columns

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as lines of JSON."""
        return b"".join(map(lines, parts_of(block.records)))

    def read(self, data: bytes) -> pa.Table:
        """Return the rows; raises msgspec's DecodeError if a line is not a row."""
        return to_table(_records(_decode_rows(data)))

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows in parts of about `part_bytes`; a cut line is in the next part. Raises as `read` does."""
        for line, more in _cut(file, part_bytes):
            yield to_table(_records(_decode_rows(line) + _decode_rows(more)))

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each row."""
        for line, more in _cut(file, POSITIONS_BYTES):
            rows = _decode_positions(line) + _decode_positions(more)
            yield [row.sequence for row in rows], [row.time_ns for row in rows]


def _cut(file: IO[bytes], part_bytes: int) -> Iterator[tuple[bytes, bytes | memoryview]]:
    """Yield a line that spans several parts, and the whole lines after it; these are not copied. FormatError."""
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


def _records(rows: list[Any]) -> Records[Any]:
    return Records(
        stream=rows[0].stream if rows else "",
        subjects=[_bytes(row.subject, row.subject_raw_base64) for row in rows],
        header_blocks=[b64decode(one) if (one := row.header_block_base64) else b"" for row in rows],
        payloads=[_bytes(row.payload, row.payload_base64) for row in rows],
        errors={index: row.error for index, row in enumerate(rows) if row.error is not None},
        **{one.source: list(map(attrgetter(one.name), rows)) for one in _PLAIN},
    )


class _Position(msgspec.Struct):
    sequence: int
    time_ns: int


_decode_positions = msgspec.json.Decoder(_Position).decode_lines


def lines(records: Records[Any]) -> bytes:
    """Return one line per message, made column by column: most columns are null for all of the messages."""
    columns = text_columns(records)
    rows = map(Row, *[columns[name] for name in Row.__struct_fields__])
    return _encoder.encode_lines(list(rows))  # msgspec 0.22 never frees an iterator, and that would keep our columns


def _bytes(text: str | None, encoded: str | None) -> bytes:
    return b64decode(encoded) if encoded is not None else (text or "").encode()
