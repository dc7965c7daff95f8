"""Blocks whose typed columns differ, because the decoder's type changed or numbers were wider, under one schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from capture.writers.envelope import SCHEMA
from capture.writers.shape import CONFLICTS


def unified(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the envelope and every typed column of these schemas, each in a type that all its values fit.

    Where two types have nothing in common the later schema's is taken: that of the newer block, if they come in order.
    """
    fields: dict[str, pa.Field] = {field.name: field for field in SCHEMA}
    for schema in schemas:
        for field in schema:
            if field.name not in SCHEMA.names:
                fields[field.name] = _wider(fields.get(field.name, field), field)
    return pa.schema(fields.values())


def conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows under this schema, which holds theirs: null in columns that they lack.

    A column whose type can't be cast is null, and `_conflicts` names it where it had a value.
    """
    columns: list[pa.ChunkedArray | pa.Array] = []
    lost: list[tuple[str, pa.ChunkedArray]] = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(len(rows), field.type))
            continue
        try:
            columns.append(rows[field.name].cast(field.type, safe=False))
        except pa.ArrowException:
            columns.append(pa.nulls(len(rows), field.type))
            lost.append((field.name, pc.is_valid(rows[field.name])))
    if lost:
        columns[schema.names.index(CONFLICTS)] = _with_lost(rows, lost)
    return pa.Table.from_arrays(columns, schema=schema)


def combined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of all tables, one after the other, under one schema."""
    schema = unified(table.schema for table in tables)
    return pa.concat_tables([conformed(table, schema) for table in tables])


def _wider(one: pa.Field, other: pa.Field) -> pa.Field:
    try:
        merged = pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive")
    except pa.ArrowException:
        return other
    return merged.field(0)


def _with_lost(rows: pa.Table, lost: Sequence[tuple[str, pa.ChunkedArray]]) -> pa.Array:
    known = rows[CONFLICTS].to_pylist()
    for name, valid in lost:
        for index in pc.indices_nonzero(valid).to_pylist():
            known[index] = [*(known[index] or []), name]
    return pa.array(known, pa.list_(pa.string()))
