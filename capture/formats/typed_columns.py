"""Converts JSON objects to columns of a schema, without a Python object for each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.json

from capture.formats.schema import CONFLICTS, column_name, json_type

SAMPLES = 16  # payloads of a block that are checked for fields that its schema does not have

WHOLE = "$"
"""The entry in `_conflicts` for a payload that is not a JSON object: none of its columns could be filled."""

PROBES = 2000
"""Parses to find the values that fit no column. Values not checked within them count as unfit: the time is bounded."""

_WIDER = {
    pa.int8(): (pa.int64(), pa.float64()),
    pa.int16(): (pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.int64(): (pa.float64(),),
    pa.uint8(): (pa.int64(), pa.float64()),
    pa.uint16(): (pa.int64(), pa.float64()),
    pa.uint32(): (pa.int64(), pa.float64()),
    pa.uint64(): (pa.float64(),),
    pa.float32(): (pa.float64(),),
}
_EMPTY = b"{}"

Cells = Sequence[bytes | None]
"""One JSON value per row; None if the row has none."""


@dataclass
class Typed:
    """The columns of some rows, and their differences from the schema.

    `unfit` are rows by column, `widened` types by column, `unknown` fields that the schema does not have.
    """

    columns: pa.Table
    unfit: dict[str, list[int]] = field(default_factory=dict)
    widened: dict[str, pa.DataType] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


def typed_columns(lines: Sequence[bytes], schema: pa.Schema) -> Typed:
    """Return the fields of these JSON objects as the schema's columns; an empty line is a row of nulls.

    Each line is valid JSON. If numbers don't fit, the column gets the next wider type. A value that fits no type
    becomes null, and `_conflicts` names its column. Only some of the lines are checked for fields that the schema does
    not have.
    """
    lines = [line or _EMPTY for line in lines]
    typed = _convert_at_once(lines, schema) or _convert_by_column(lines, schema)
    typed.unknown = _find_unknown(lines, schema)
    return typed


def _find_unknown(lines: Sequence[bytes], schema: pa.Schema) -> list[str]:
    some = [*lines[:: max(1, len(lines) // SAMPLES)], lines[-1]]
    names = dict.fromkeys(name for line in some for name in _cells(line) or ())
    return [name for name in names if name not in schema.names]


def _convert_at_once(lines: Sequence[bytes], schema: pa.Schema) -> Typed | None:
    """Return all columns by one call of Arrow's parser; None if anything does not fit."""
    if not all(line.startswith(b"{") for line in lines) and not all(line.lstrip().startswith(b"{") for line in lines):
        return None  # Arrow's parser crashes on a `null` that is not an object's field (pyarrow 26)
    try:
        parsed = _parse(lines, schema)
    except pa.ArrowException:
        return None
    return Typed(_name_columns(schema, parsed.columns, pa.nulls(len(lines), pa.list_(pa.string()))))


def _parse(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return the schema's columns. ArrowException if a value does not fit, or a line is not exactly one object."""
    data = b"\n".join(lines)
    table = pa.json.read_json(
        pa.BufferReader(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema([field.with_type(json_type(field.type)) for field in schema]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid(f"{table.num_rows} objects in {len(lines)} lines")
    return table.cast(schema)


def _name_columns(schema: pa.Schema, columns: Sequence[pa.ChunkedArray], conflicts: pa.Array) -> pa.Table:
    names = [column_name(name) for name in schema.names]
    return pa.table([*columns, conflicts], names=[*names, CONFLICTS])


# --- if some values do not fit ---------------------------------------------------------------------------------------


def _convert_by_column(lines: Sequence[bytes], schema: pa.Schema) -> Typed:
    """Convert column by column, so that a bad value affects only itself."""
    rows = [_cells(line) for line in lines]
    result = Typed(pa.table({}))
    names: list[list[str]] = [[WHOLE] if row is None else [] for row in rows]
    columns = []
    for wanted in schema:
        name = column_name(wanted.name)
        cells = [None if row is None else row.get(wanted.name) for row in rows]
        column, unfit = _column(cells, wanted.type)
        columns.append(column)
        for index in unfit:
            names[index].append(name)
        if unfit:
            result.unfit[name] = unfit
        if column.type != wanted.type:
            result.widened[name] = column.type
    if no_object := [index for index, row in enumerate(rows) if row is None]:
        result.unfit[WHOLE] = no_object
    result.columns = _name_columns(
        schema, columns, pa.array([several or None for several in names], pa.list_(pa.string()))
    )
    return result


def _cells(line: bytes) -> dict[str, bytes] | None:
    try:
        return {name: bytes(cell) for name, cell in _OBJECT.decode(line).items()}
    except (ValueError, RecursionError):
        return None


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _column(cells: Cells, kind: pa.DataType) -> tuple[pa.ChunkedArray, list[int]]:
    """Return the cells as a column, maybe a wider one, and the rows that don't fit it, which are null."""
    starts = _starts(kind)
    unfit = [index for index, cell in enumerate(cells) if cell is not None and cell[:1] not in starts]
    cells = _blank(cells, unfit)
    for wanted in (kind, *_WIDER.get(kind, ())):
        column = _array(cells, wanted)
        if column is not None:
            return column, unfit
    found = _find_unfit(cells, kind)
    column = _array(_blank(cells, found), kind)
    if column is None:  # no such values are known; if there are some, the block must not be lost
        return pa.chunked_array([pa.nulls(len(cells), kind)]), list(range(len(cells)))
    return column, sorted(unfit + found)


def _blank(cells: Cells, unfit: Sequence[int]) -> Cells:
    if not unfit:
        return cells
    out = set(unfit)
    return [None if index in out else cell for index, cell in enumerate(cells)]


def _find_unfit(cells: Cells, kind: pa.DataType) -> list[int]:
    """Return the rows that don't fit, by halving; a range not checked within PROBES counts as unfit as a whole."""
    unfit: list[int] = []
    ranges = [range(len(cells))]
    probes = 0
    while ranges:
        rows = ranges.pop()
        probes += 1
        if probes <= PROBES and _array(cells[rows.start : rows.stop], kind) is not None:
            continue
        if len(rows) == 1:
            unfit += [index for index in rows if cells[index] is not None]
        else:
            half = rows.start + len(rows) // 2
            ranges += [range(half, rows.stop), range(rows.start, half)]
    return sorted(unfit)


def _array(cells: Cells, kind: pa.DataType) -> pa.ChunkedArray | None:
    """Return the cells as a column of this type; None if some don't fit."""
    lines = [_EMPTY if cell is None else b'{"cell":%s}' % cell for cell in cells]
    try:
        return _parse(lines, pa.schema([("cell", kind)]))["cell"]
    except pa.ArrowException:
        return None


def _starts(kind: pa.DataType) -> frozenset[bytes]:
    """Return the characters that a JSON value of this type may begin with."""
    if pa.types.is_boolean(kind):
        characters = b"tf"
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        characters = b"-0123456789"
    elif pa.types.is_decimal(kind):
        characters = b'-0123456789"'
    elif pa.types.is_struct(kind):
        characters = b"{"
    elif pa.types.is_list(kind):
        characters = b"["
    else:
        characters = b'"'
    return frozenset(b"%c" % one for one in characters + b"n")
