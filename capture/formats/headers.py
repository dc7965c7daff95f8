"""The columns that are made from the headers of many messages, without a Python object for each header."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capture.archive.envelope_columns import COLUMNS, HEADER_BLOCKS, MESSAGE_ID, Column
from capture.ingest.record import header_texts
from natty.wire.message import parse_headers

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "binary": pa.binary(),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
}
"""Arrow's types for `Column.type`."""

_BEGIN, _END = b"NATS/1.0\r\n", b"\r\n\r\n"
_COLUMNS = [one for one in COLUMNS if one.source == HEADER_BLOCKS]
_RARE = {one.header for one in _COLUMNS if one.header} - {MESSAGE_ID}


def header_columns(blocks: list[bytes]) -> list[pa.Array]:
    """Return the columns that these raw header blocks become, in their order; `b""` stands for no headers."""
    if not any(blocks):
        return [pa.nulls(len(blocks), TYPES[one.type]) for one in _COLUMNS]
    headers, message_ids = _by_column(blocks) or _one_by_one(blocks)
    firsts = {name: _first_values(name, blocks) for name in _RARE}
    return [
        message_ids if one.header == MESSAGE_ID else _column(one, blocks, headers, firsts.get(one.header))
        for one in _COLUMNS
    ]


def _column(column: Column, blocks: list[bytes], headers: pa.Array, firsts: list[str | None] | None) -> pa.Array:
    if column.type == "headers":
        return headers
    if not column.header:
        return pa.array([block or None for block in blocks], pa.binary())
    if firsts is None:
        return pa.nulls(len(blocks), TYPES[column.type])
    return pa.array(column.of(firsts), TYPES[column.type])


def _first_values(header: str, blocks: list[bytes]) -> list[str | None] | None:
    """Return the first value of a header that few messages have, for each block; None if no block has it."""
    name = header.encode()
    if not any(name in block for block in blocks):
        return None
    return [header_texts(block).get(header, [None])[0] if name in block else None for block in blocks]


def _by_column(blocks: list[bytes]) -> tuple[pa.Array, pa.Array] | None:
    """Return headers and message ids without a Python object a header; None if some block is out of the ordinary.

    Out of the ordinary are: text that is not UTF-8, a line that is no header, a name that is repeated in one block.
    """
    if not all(not block or (block.startswith(_BEGIN) and block.endswith(_END)) for block in blocks):
        return None
    inside = pa.array([block[len(_BEGIN) : -len(_END)] if block else None for block in blocks], pa.binary())
    try:
        lines = pc.split_pattern(inside.cast(pa.string()), "\r\n")
    except pa.ArrowInvalid:
        return None
    pairs = pc.split_pattern(lines.flatten(), ":", max_splits=1)
    if not pc.all(pc.equal(pc.list_value_length(pairs), 2)).as_py():
        return None
    names, values = pc.list_element(pairs, 0), pc.utf8_trim(pc.list_element(pairs, 1), " \t")
    owners = pc.list_parent_indices(lines)
    if _repeated(names, owners):
        return None
    items = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    headers = pa.MapArray.from_arrays(lines.offsets, names, items, mask=pc.is_null(lines))
    is_id = pc.equal(names, MESSAGE_ID)
    where = pc.index_in(pa.array(range(len(blocks)), owners.type), value_set=owners.filter(is_id))
    return headers, values.filter(is_id).take(where)


def _repeated(names: pa.Array, owners: pa.Array) -> bool:
    """Tell whether a message has two headers of one name."""
    encoded = names.dictionary_encode()
    width = len(encoded.dictionary)
    both = pc.add(pc.multiply(owners.cast(pa.int64()), width), encoded.indices.cast(pa.int64()))
    return bool(pc.count_distinct(both).as_py() < len(names))


def _one_by_one(blocks: list[bytes]) -> tuple[pa.Array, pa.Array]:
    parsed = [parse_headers(block) if block else None for block in blocks]
    present = [headers for headers in parsed if headers]
    values = [several for headers in present for several in headers.values()]
    items = pa.ListArray.from_arrays(
        pa.array([0, *accumulate(map(len, values))], pa.int32()),
        _strings([value for several in values for value in several]),
    )
    offsets = pa.array([0, *accumulate(len(headers or ()) for headers in parsed)], pa.int32())
    names = _strings([name for headers in present for name in headers])
    missing = pa.array([headers is None for headers in parsed], pa.bool_())
    message_ids = [headers[MESSAGE_ID][0] if headers and MESSAGE_ID in headers else None for headers in parsed]
    return pa.MapArray.from_arrays(offsets, names, items, mask=missing), _strings(message_ids)


def _strings(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # the raw block keeps what it was
        return pa.array([None if value is None else _replaced(value) for value in values], pa.string())


def _replaced(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
