"""The format `csv`: the fields of a value as columns, after the columns of the envelope."""

from __future__ import annotations

import csv
import io
from base64 import b64decode
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from threading import Lock
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from capture.archive.envelope_columns import COLUMNS, Column
from capture.decoders.contract import Decoding, Flatten, reason, values_of
from capture.errors import FormatError
from capture.formats.contract import Positions
from capture.formats.envelope import SCHEMA, with_envelope
from capture.formats.json_text import encode_plain, to_plain
from capture.formats.text_columns import encode_base64, fields_of, parts_of, rename, text_columns
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Unlayered
from capture.ingest.record import Records, text_or_none
from capture.stores.plugin import FAULTS

ROW, ERROR = "row", "error"

_COLUMNS = [one for one in COLUMNS if one.in_csv and not one.as_text]
_BEGIN = [one.name for one in _COLUMNS]
_SOURCES = dict.fromkeys(one.source for one in _COLUMNS)
_OBJECTS = [one.name for one in _COLUMNS if one.type == "headers"]
ENVELOPE = (*_BEGIN[:2], ROW, *_BEGIN[2:], *(name for one in COLUMNS if one.as_text for name in fields_of(one)))
"""The columns of every file. `row` counts the rows of a message from 0; a payload, if kept, is in the first row."""

MOST_COLUMNS = 1000
"""Columns of values in a file; more are put into one column, so that payloads with many names don't fill memory."""

MORE = "_more"
FLATTEN = "flatten"
"""The name under which values that could not be flattened are counted."""

_TAKEN = {name.lower() for name in (*SCHEMA.names, *ENVELOPE, MORE)}

Row = dict[str, Any]


class CsvWriter(Unlayered):
    """CSV with a header: a value's fields as columns, and one or more rows per message. It is not enough for a restore.

    `flatten` makes the rows of a value; the default is the decoder's own, or `flat`. A message without rows, or for
    which `flatten` fails, has one row with its payload. A message that makes rows does *not* keep its payload.
    """

    format: ClassVar[str] = "csv"

    def __init__(self, decoding: Decoding[Any], flatten: Flatten[Any] | None = None) -> None:
        self.unfit = Counter({FLATTEN: 0})
        self._counting = Lock()
        self._decoding = decoding
        self._flatten = flatten or decoding.flatten or flat

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as CSV (RFC 4180, UTF-8); an absent value is an empty cell."""
        return to_csv(list(self._rows(block)), ENVELOPE)

    def read(self, data: bytes) -> pa.Table:
        """Return one row per message. Raw headers are null, and so are payloads that were not kept. FormatError."""
        return with_envelope(_envelope(_first_rows(data)))

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield all rows in one part. FormatError."""
        yield self.read(file.read())

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each message. FormatError."""
        rows = _first_rows(file.read())
        yield rows["sequence"].cast(pa.int64()).to_pylist(), rows["time_ns"].cast(pa.int64()).to_pylist()

    def _rows(self, block: SealedBlock) -> Iterator[Row]:
        records = block.records
        values = values_of(records, self._decoding)
        for payload, value, cells in zip(records.payloads, values, _envelope_cells(records), strict=True):
            begin = dict(zip(_BEGIN, cells, strict=False))
            try:
                rows = [] if value is None else [cells_of(row, _TAKEN) for row in self._flatten(value)]
            except FAULTS as failure:  # a user's function may raise any error
                with self._counting:  # several threads write blocks
                    self.unfit[FLATTEN] += 1
                rows, begin[ERROR] = [], f"flatten: {reason(failure)}"
            for number, row in enumerate(rows or [_payload(payload)]):
                yield {**begin, ROW: number, **row}


def _envelope_cells(records: Records[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of each message in the columns `_BEGIN`."""
    encode = msgspec.json.encode
    for part in parts_of(records):
        columns = text_columns(part, _SOURCES)
        columns |= {name: (encode(one).decode() if one else "" for one in columns[name]) for name in _OBJECTS}
        yield from zip(*(columns[name] for name in _BEGIN), strict=False)  # the stream's name repeats without end


def flat(value: Any) -> Iterator[Row]:
    """Yield a value as rows: one for an object, with names of nested fields joined by dots; one per element of a list.

    Lists inside of objects are JSON; a value that is not an object is in the column "value". ValueError if two fields
    would be one column.
    """
    plain = to_plain(value)
    for one in plain if isinstance(plain, list) else [plain]:
        yield _row(one) if isinstance(one, dict) else {"value": one}


def _row(value: Mapping[str, Any]) -> Row:
    fields = list(_fields(value, ""))
    row = dict(fields)
    if len(row) < len(fields):
        [(name, _), *_] = Counter(name for name, _ in fields).most_common(1)
        raise ValueError(f"two of its fields would be the column {name!r}")
    return row


def _fields(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield from _fields(one, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", one


def cells_of(row: Mapping[str, Any], taken: Collection[str]) -> Row:
    """Return the cells of a row; names that are `taken`, which are in lower case, become `value_<name>`."""
    return {name: _cell(value) for name, value in rename(row, taken).items()}


def to_csv(rows: list[Row], begin: tuple[str, ...] = ()) -> bytes:
    """Return the rows as CSV with a header: the columns of `begin`, then the others in order of their first row."""
    own = frozenset(begin)
    names = list(dict.fromkeys(name for row in rows for name in row if name not in own))
    columns = [*begin, *names[:MOST_COLUMNS]]
    if len(names) > MOST_COLUMNS:
        columns.append(MORE)
        _gather(rows, frozenset(names[MOST_COLUMNS:]))
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([row.get(name) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def _gather(rows: list[Row], rest: frozenset[str]) -> None:
    """Put the cells without their own column into one, as JSON."""
    for row in rows:
        if not rest.isdisjoint(row):
            more = {name: row.pop(name) for name in [*row] if name in rest}
            row[MORE] = msgspec.json.encode(more).decode()


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else value
    plain = to_plain(value)
    return plain if isinstance(plain, str) else encode_plain(plain).decode()


def _payload(payload: bytes) -> Row:
    text = text_or_none(payload)
    return {"payload_base64": encode_base64(payload)} if text is None else {"payload": text}


def _first_rows(data: bytes) -> pa.Table:
    """Return the first row of each message, all cells as text."""
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            read_options=pa.csv.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                include_columns=ENVELOPE, column_types=dict.fromkeys(ENVELOPE, pa.string())
            ),
        )
    except (pa.ArrowException, KeyError) as error:
        raise FormatError(f"it is not a CSV file of capture: {error}") from error
    return table.filter(pc.equal(table["row"], "0"))


def _envelope(rows: pa.Table) -> pa.Table:
    columns = {one.name: _column(rows[one.name], one) for one in _COLUMNS if one.type != "headers"}
    cells = zip(rows["payload"].to_pylist(), rows["payload_base64"].to_pylist(), strict=True)
    payloads = [b64decode(encoded) if encoded else text.encode() or None for text, encoded in cells]
    return pa.table(columns | {"payload": pa.array(payloads, pa.binary())})


def _column(cells: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    present = pc.if_else(pc.equal(cells, ""), None, cells) if column.nullable else cells
    return present.cast(SCHEMA.field(column.name).type)
