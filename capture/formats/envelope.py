"""The envelope, format 1, as Arrow's columns: converts messages to rows, and rows to messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from capture.archive.envelope_columns import COLUMNS, HEADER_BLOCKS, MESSAGE_ID, Column
from capture.ingest.record import LISTS, Record, Records, error_texts, header_texts, replace_invalid, text_or_none
from natty.wire.message import parse_headers

VERSION = 1

TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "binary": pa.binary(),
    "headers": pa.map_(pa.string(), pa.list_(pa.string())),
}
"""Arrow's types for `Column.type`."""

SCHEMA = pa.schema([pa.field(one.name, TYPES[one.type]) for one in COLUMNS])
EACH = [name for name in Record._fields if name in SCHEMA.names]
"""The columns that `messages_of` needs."""

_KINDS = [(field.name, field.type) for field in SCHEMA]
_MADE = {source: [one.name for one in COLUMNS if one.source == source] for source in (one.source for one in COLUMNS)}
"""The columns that are made from each source."""
_PLAIN = [one for one in COLUMNS if one.source in LISTS and one.source not in ("subjects", HEADER_BLOCKS)]
"""The columns that are equal to a list of `Records`."""

_BEGIN, _END = b"NATS/1.0\r\n", b"\r\n\r\n"
_OF_HEADERS = [one for one in COLUMNS if one.source == HEADER_BLOCKS]
FROM_HEADERS = {one.name for one in _OF_HEADERS}
"""The columns that are made from headers."""
_RARE = {one.header for one in _OF_HEADERS if one.header} - {MESSAGE_ID}

LARGE_BYTES = 512  # of a payload on average, from which on joining all of them is faster
MOST_BYTES = 2**31 - 1  # of an array of binary: its offsets are of 32 bits


def to_table(records: Records[Any]) -> pa.Table:
    """Return the records as a table of SCHEMA, built column by column."""
    columns: dict[str, pa.Array] = {}
    for source, names in _MADE.items():
        columns.update(zip(names, _arrays(records, source), strict=True))
    return pa.Table.from_arrays([columns[name] for name, _ in _KINDS], schema=SCHEMA)


def _arrays(records: Records[Any], source: str) -> Iterable[pa.Array]:
    match source:
        case "stream":
            return [pa.repeat(pa.scalar(records.stream, pa.string()), len(records))]
        case "subjects":
            return subject_columns(pa.array(records.subjects, pa.binary()))
        case "header_blocks":
            return header_columns(records.header_blocks)
        case "payloads":
            return [payload_column(records.payloads)]
        case "errors":
            count, errors = len(records), records.errors
            return [pa.array(error_texts(records), pa.string()) if errors else pa.nulls(count, pa.string())]
    values = getattr(records, source) or [None] * len(records)
    return [pa.array(values, SCHEMA.field(name).type) for name in _MADE[source]]


def to_records(batch: pa.RecordBatch, stream: str = "") -> Records[Any]:
    """Return rows as records: lists of Python objects, with unchanged bytes.

    The rows have at least the columns `envelope_columns.NEEDED`. `stream` names their stream if they do not.
    """
    subjects = batch.column("subject").cast(pa.binary()).to_pylist()
    if batch.column("subject_raw").null_count < len(batch):
        raw = batch.column("subject_raw").to_pylist()
        subjects = [text if bytes_ is None else bytes_ for text, bytes_ in zip(subjects, raw, strict=True)]
    errors: dict[int, str] = {}
    if batch.column("error").null_count < len(batch):
        errors = {at: why for at, why in enumerate(batch.column("error").to_pylist()) if why is not None}
    return Records(
        stream=stream or batch.column("stream")[0].as_py(),
        subjects=subjects,
        header_blocks=_fill_nulls(batch.column("header_block")),
        values=[None] * len(batch),
        errors=errors,
        **{one.source: batch.column(one.name).to_pylist() for one in _PLAIN},
    )


def messages_of(batch: pa.RecordBatch) -> Iterator[Record[None]]:
    """Yield rows as messages, one by one. It needs only the columns EACH."""
    columns = [
        _fill_nulls(batch.column(name)) if name == "header_block" else batch.column(name).to_pylist() for name in EACH
    ]
    return map(Record, *columns, repeat(None))


def _fill_nulls(column: pa.Array) -> list[bytes]:
    if column.null_count == len(column):
        return [b""] * len(column)
    return [one or b"" for one in column.to_pylist()]


def with_envelope(table: pa.Table) -> pa.Table:
    """Return the rows with all columns of SCHEMA first, null where an earlier version did not write one."""
    rows, held = len(table), set(table.column_names)
    columns = [table[name].cast(kind) if name in held else pa.nulls(rows, kind) for name, kind in _KINDS]
    more = [field for field in table.schema if field.name not in SCHEMA.names]
    schema = pa.schema([*SCHEMA, *more])
    return pa.Table.from_arrays([*columns, *(table[field.name] for field in more)], schema=schema)


def subject_columns(subjects: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the columns subject and subject_raw of these subjects, which are bytes."""
    try:
        return subjects.cast(pa.string()), pa.nulls(len(subjects), pa.binary())
    except pa.ArrowInvalid:  # some are not UTF-8
        given: list[bytes] = subjects.to_pylist()
        texts = [subject.decode("utf-8", "replace") for subject in given]
        raw = [subject if text_or_none(subject) is None else None for subject in given]
        return pa.array(texts, pa.string()), pa.array(raw, pa.binary())


def payload_column(payloads: list[bytes]) -> pa.Array | pa.ChunkedArray:
    """Return a column of these payloads.

    Arrow's builder doubles its memory when it is full, again and again. So large payloads are joined, and become a
    column without a builder; small ones are faster with it. More than an array can have become several arrays.
    """
    size = sum(map(len, payloads))
    if size < LARGE_BYTES * len(payloads) or size > MOST_BYTES:
        return pa.array(payloads, pa.binary())
    offsets = pa.array([0, *accumulate(map(len, payloads))], pa.int32())
    buffers = [None, offsets.buffers()[1], pa.py_buffer(b"".join(payloads))]
    return pa.Array.from_buffers(pa.binary(), len(payloads), buffers)


# --- headers, without a Python object for each -----------------------------------------------------------------------


def header_columns(blocks: list[bytes]) -> list[pa.Array]:
    """Return the columns of these raw header blocks, in the envelope's order; `b""` stands for no headers."""
    present = [block for block in blocks if block]
    if blocks and len(present) == len(blocks):
        return _columns_of_each(blocks)
    return list(spread_header_columns(present, pa.array(map(bool, blocks), pa.bool_())).values())


def spread_header_columns(blocks: list[bytes], present: pa.Array) -> dict[str, pa.Array]:
    """Return the columns of these raw header blocks, each for a message for which `present` is true, by their names."""
    if not blocks:
        return {one.name: pa.nulls(len(present), TYPES[one.type]) for one in _OF_HEADERS}
    where = pc.if_else(present, pc.subtract(pc.cumulative_sum(present.cast(pa.int32())), 1), None)
    columns = _columns_of_each(blocks)
    return {one.name: column.take(where) for one, column in zip(_OF_HEADERS, columns, strict=True)}


def _columns_of_each(blocks: list[bytes]) -> list[pa.Array]:
    headers, message_ids = _by_column(blocks) or _one_by_one(blocks)
    firsts = {name: _first_values(name, blocks) for name in _RARE}
    return [
        message_ids if one.header == MESSAGE_ID else _header_column(one, blocks, headers, firsts.get(one.header))
        for one in _OF_HEADERS
    ]


def _header_column(column: Column, blocks: list[bytes], headers: pa.Array, firsts: list[str | None] | None) -> pa.Array:
    if column.type == "headers":
        return headers
    if not column.header:
        return pa.array(blocks, pa.binary())
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
    """Return headers and message ids without a Python object for each header; None if a block is unusual.

    Unusual are: text that is not UTF-8, a line that is not a header, a name that is repeated in one block.
    """
    if not all(block.startswith(_BEGIN) and block.endswith(_END) for block in blocks):
        return None
    inside = pa.array([block[len(_BEGIN) : -len(_END)] for block in blocks], pa.binary())
    try:
        lines = pc.split_pattern(inside.cast(pa.string()), "\r\n")
    except pa.ArrowInvalid:
        return None
    pairs = pc.split_pattern(lines.flatten(), ":", max_splits=1)
    if not pc.all(pc.equal(pc.list_value_length(pairs), 2)).as_py():
        return None
    names, values = pc.list_element(pairs, 0), pc.utf8_trim(pc.list_element(pairs, 1), " \t")
    owners = pc.list_parent_indices(lines)
    if _has_repeated(names, owners):
        return None
    items = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    headers = pa.MapArray.from_arrays(lines.offsets, names, items)
    is_id = pc.equal(names, MESSAGE_ID)
    where = pc.index_in(pa.array(range(len(blocks)), owners.type), value_set=owners.filter(is_id))
    return headers, values.filter(is_id).take(where)


def _has_repeated(names: pa.Array, owners: pa.Array) -> bool:
    """Return whether a message has two headers of one name."""
    encoded = names.dictionary_encode()
    width = len(encoded.dictionary)
    both = pc.add(pc.multiply(owners.cast(pa.int64()), width), encoded.indices.cast(pa.int64()))
    return bool(pc.count_distinct(both).as_py() < len(names))


def _one_by_one(blocks: list[bytes]) -> tuple[pa.Array, pa.Array]:
    parsed = [parse_headers(block) for block in blocks]
    values = [several for headers in parsed for several in headers.values()]
    items = pa.ListArray.from_arrays(
        pa.array([0, *accumulate(map(len, values))], pa.int32()),
        _strings([value for several in values for value in several]),
    )
    offsets = pa.array([0, *accumulate(map(len, parsed))], pa.int32())
    names = _strings([name for headers in parsed for name in headers])
    message_ids = [headers[MESSAGE_ID][0] if MESSAGE_ID in headers else None for headers in parsed]
    return pa.MapArray.from_arrays(offsets, names, items), _strings(message_ids)


def _strings(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:  # the raw block keeps the original bytes
        return pa.array([None if value is None else replace_invalid(value) for value in values], pa.string())
