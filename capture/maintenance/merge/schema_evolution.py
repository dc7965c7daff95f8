"""Brings objects with different typed columns (the decoder's type changed, numbers were wider) under one schema.

A table's columns are permanent: engines read all of its files by one schema. An existing column changes only as Apache
Iceberg's schema evolution permits, and a value that does not fit it stays in the payload.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from capture.formats.envelope import SCHEMA
from capture.formats.schema import CONFLICTS

OWN = pa.schema([pa.field("key", pa.string()), pa.field("interval", pa.timestamp("us", "UTC"))])
"""The table file's own columns after the envelope: the partition's key, and the start of its interval."""

EXACT = 2.0**53
"""From this number on a double can't represent every integer."""

_TAKEN = {*SCHEMA.names, *OWN.names}
_PLAIN = {
    pa.int8(): pa.int32(),
    pa.int16(): pa.int32(),
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}
_PROMOTED = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}

Column: TypeAlias = pa.ChunkedArray


# --- rows under one schema -------------------------------------------------------------------------------------------


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows under this schema, which includes theirs. Missing columns are null.

    A value that does not fit its column's type becomes null, and `_conflicts` names the column.
    """
    columns: list[Column | pa.Array] = []
    lost: list[tuple[str, Column]] = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        column = _fit(rows[field.name], field.type)
        columns.append(column)
        if column.null_count > rows[field.name].null_count:
            lost.append((field.name, pc.and_(pc.is_valid(rows[field.name]), pc.is_null(column))))
    if lost:
        columns[schema.names.index(CONFLICTS)] = _add_lost(rows, lost)
    return pa.Table.from_arrays(columns, schema=schema)


def _widen(one: pa.Field, other: pa.Field) -> pa.Field:
    """Return a field that fits the values of both; the second one if their types have nothing in common."""
    try:
        merged = pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive")
    except pa.ArrowException:
        return other
    return merged.field(0)


def _fit(column: Column, kind: pa.DataType) -> Column:
    """Return the column in this type, null where a value does not fit it."""
    types = pa.types
    if column.type == kind:
        return column
    if adapt(column.type) == kind or (types.is_integer(column.type) and types.is_floating(kind)):
        return column.cast(kind, safe=False)
    if types.is_floating(column.type) and types.is_integer(kind):
        fits = pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), EXACT))
        column = pc.if_else(pc.fill_null(fits, False), column, None)
    try:
        if not types.is_string(column.type):  # "12" is not a number, although Arrow would convert it
            return column.cast(kind)
    except pa.ArrowException:
        pass
    return pa.chunked_array([pa.nulls(len(column), kind)])


def _add_lost(rows: pa.Table, lost: Sequence[tuple[str, Column]]) -> pa.Array:
    known = rows[CONFLICTS].to_pylist() if CONFLICTS in rows.column_names else [None] * len(rows)
    for name, values in lost:
        for index in pc.indices_nonzero(values).to_pylist():
            known[index] = [*(known[index] or []), name]
    return pa.array(known, pa.list_(pa.string()))


# --- the columns of the table ----------------------------------------------------------------------------------------


def typed_part(schema: pa.Schema, *, of_table: bool) -> dict[str, pa.Field]:
    """Return the table's fields for the typed columns of an object, by their names in the object.

    A block's column with the name of one of the table's own becomes `value_<name>`. Types are those of `adapt`.
    """
    fields: dict[str, pa.Field] = {}
    for field in schema:
        if field.name in SCHEMA.names or (of_table and field.name in OWN.names):
            continue
        name = field.name
        while name.lower() in _TAKEN or name in {one.name for one in fields.values()}:
            name = f"value_{name}"
        fields[field.name] = pa.field(name, adapt(field.type))
    return fields


def find_column(name: str, names: Iterable[str]) -> str:
    """Return a column's name among these names: engines treat names that differ only in case as the same."""
    alike = [one for one in names if one.lower() == name.lower()]
    return name if name in alike else next(iter(alike), name)


def in_table(rows: pa.Table, schema: pa.Schema, *, of_table: bool) -> pa.Table:
    """Return an object's rows with the envelope's columns and these typed ones of the table."""
    names = typed_part(rows.schema, of_table=of_table)
    called = (find_column(one.name, schema.names) for one in names.values())
    kept = rows.select([*SCHEMA.names, *names]).rename_columns([*SCHEMA.names, *called])
    return conform(kept, pa.schema([*SCHEMA, *schema]))


def evolve(table: pa.Schema, found: Iterable[pa.Schema]) -> pa.Schema:
    """Return the table's typed columns after merging objects with these columns into it, oldest first.

    An existing column changes as Iceberg permits: int to long, float to double, a decimal to more digits, a struct to
    more fields. A new one gets a type that fits all its values. If two types have nothing in common, it takes the newer
    object's.
    """
    fields: dict[str, pa.Field] = {field.name: field for field in table}
    for schema in found:
        for one in schema:
            field = one.with_name(find_column(one.name, fields))
            if field.name in table.names:
                fields[field.name] = pa.field(field.name, _promote(fields[field.name].type, field.type))
            else:
                wider = _widen(fields.get(field.name, field), field)
                fields[field.name] = pa.field(field.name, adapt(wider.type))
    if fields:
        fields[CONFLICTS] = pa.field(CONFLICTS, pa.list_(pa.string()))
    return pa.schema(fields.values())


def add_block(table: pa.Schema, block: pa.Schema) -> pa.Schema:
    """Return the table's typed columns with those of a block: new ones are added, others widened as `evolve` does."""
    return evolve(table, [pa.schema(list(typed_part(block, of_table=False).values()))])


def unite(table: str, merged: str) -> str | None:
    """Return the table's typed columns with those of merged files, as texts; None if a column has two other types."""
    files = read_columns(merged)
    both = evolve(read_columns(table), [files])
    return write_columns(both) if all(both.field(one.name).type == one.type for one in files) else None


def adapt(kind: pa.DataType) -> pa.DataType:
    """Return the type of a table's column for values of this type: one that Iceberg and Spark have."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, adapt(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(adapt(kind.value_type))
    if types.is_map(kind):
        return pa.map_(adapt(kind.key_type), adapt(kind.item_type))
    if types.is_dictionary(kind):
        return adapt(kind.value_type)
    if types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if types.is_time(kind):
        return pa.string()
    return _PLAIN.get(kind, kind)


def _promote(before: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return the new type of a table's column when an object has another type."""
    types = pa.types
    if types.is_struct(before) and types.is_struct(found):
        kinds = {field.name: field.type for field in before}
        kinds |= {one.name: _promote(kinds.get(one.name, one.type), one.type) for one in found}
        return pa.struct(list(kinds.items()))
    if types.is_list(before) and types.is_list(found):
        return pa.list_(_promote(before.value_type, found.value_type))
    if types.is_decimal(before) and types.is_decimal(found) and before.scale == found.scale:
        return max(before, found, key=lambda kind: kind.precision)
    return found if (before, found) in _PROMOTED else before


def write_columns(columns: pa.Schema) -> str:
    """Return typed columns as text: a serialised Arrow schema in base64; "" if there are none."""
    return b64encode(columns.serialize().to_pybytes()).decode() if len(columns) else ""


def read_columns(text: str) -> pa.Schema:
    """Return the columns that `write_columns` wrote."""
    return pa.ipc.read_schema(pa.py_buffer(b64decode(text))) if text else pa.schema([])
