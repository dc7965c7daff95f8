"""Derives the Parquet columns of a decoder's values from their shape."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.json
from msgspec import inspect

from capture.errors import ConfigError
from capture.formats.envelope import SCHEMA

CONFLICTS = "_conflicts"
"""The column with the names of the columns that a payload's values did not fit: a list, null if all fit."""

_TAKEN = {name.lower() for name in (*SCHEMA.names, CONFLICTS)}
_PLAIN: dict[type, pa.DataType] = {
    inspect.BoolType: pa.bool_(),
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.StrType: pa.string(),
    inspect.DateTimeType: pa.timestamp("us", "UTC"),
    inspect.DateType: pa.date32(),
}
_TEXTS = (inspect.BytesType, inspect.TimeType, inspect.TimeDeltaType, inspect.UUIDType, inspect.DecimalType)
_OBJECTS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)
_LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


def column_name(field: str) -> str:
    """Return the name of a field's column: its own, or "value_…" if the envelope has it (case is ignored)."""
    return f"value_{field}" if field.lower() in _TAKEN else field


def schema_of(shape: Any) -> pa.Schema:
    """Return the fields that become columns, by their names in JSON.

    `shape` is a `pyarrow.Schema`, or a Struct, dataclass or TypedDict. In the latter, a field of several types, of any
    type, or a dict has no column: it stays in the payload. ConfigError if the shape can't become a schema.
    """
    schema = shape if isinstance(shape, pa.Schema) else _of_type(shape)
    names = [column_name(name).lower() for name in schema.names]
    if len(set(names)) < len(names):
        raise ConfigError(f"the columns {', '.join(schema.names)} must differ by more than upper and lower case")
    for field in schema:
        _check(field)
    return schema


def json_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with which JSON of a column is parsed before the cast: dates are texts first."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(json_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(json_type(kind.value_type))
    return pa.string() if pa.types.is_date(kind) else kind


def _check(field: pa.Field) -> None:
    parsed = pa.schema([field.with_type(json_type(field.type))])
    try:
        pa.json.read_json(pa.BufferReader(b"{}"), parse_options=pa.json.ParseOptions(explicit_schema=parsed))
    except pa.ArrowException as error:
        raise ConfigError(f"a column of type {field.type} can't be read from JSON: {field.name}") from error


def _of_type(shape: Any) -> pa.Schema:
    kind = inspect.type_info(shape)
    if not isinstance(kind, _OBJECTS) or getattr(kind, "array_like", False):
        raise ConfigError(f"{shape!r} is neither a Struct, dataclass or TypedDict of JSON objects nor a pyarrow.Schema")
    return pa.schema(_fields(kind.fields, ()))


def _fields(fields: Iterable[inspect.Field], inside: tuple[Any, ...]) -> list[pa.Field]:
    kinds = ((field.encode_name, _type(field.type, inside)) for field in fields)
    return [pa.field(name, kind) for name, kind in kinds if kind is not None]


def _type(kind: inspect.Type, inside: tuple[Any, ...]) -> pa.DataType | None:
    """Return the column's type, None if there is none."""
    if isinstance(kind, inspect.UnionType):
        return _one_of(kind, inside)
    if isinstance(kind, _LISTS):
        item = _type(kind.item_type, inside)
        return None if item is None else pa.list_(item)
    if isinstance(kind, _OBJECTS):
        cls = getattr(kind, "cls", None)
        if cls in inside or getattr(kind, "array_like", False):
            return None
        fields = _fields(kind.fields, (*inside, cls))
        return pa.struct(fields) if fields else None
    if isinstance(kind, inspect.EnumType | inspect.LiteralType):
        return _of_values([one.value for one in kind.cls] if isinstance(kind, inspect.EnumType) else kind.values)
    return pa.string() if isinstance(kind, _TEXTS) else _PLAIN.get(type(kind))


def _one_of(union: inspect.UnionType, inside: tuple[Any, ...]) -> pa.DataType | None:
    kinds = [kind for kind in union.types if not isinstance(kind, inspect.NoneType)]
    if len(kinds) == 1:
        return _type(kinds[0], inside)
    numbers = all(isinstance(kind, inspect.IntType | inspect.FloatType) for kind in kinds)
    return pa.float64() if numbers else None


def _of_values(values: Iterable[Any]) -> pa.DataType | None:
    kinds = {type(value) for value in values if value is not None}
    return {str: pa.string(), int: pa.int64()}.get(kinds.pop()) if len(kinds) == 1 else None
