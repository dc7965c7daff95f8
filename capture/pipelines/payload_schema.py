"""Spark's type of a payload, from the Python type that a decoder of the user makes of it."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec
from msgspec import inspect as types

from capture.errors import ConfigError

DEEPEST = 20
"""Levels of fields in fields; a type that contains itself has no end."""

_PLAIN: dict[type[types.Type], str] = {
    types.AnyType: "STRING",
    types.BoolType: "BOOLEAN",
    types.BytesType: "BINARY",
    types.DateTimeType: "TIMESTAMP",
    types.DateType: "DATE",
    types.DecimalType: "DECIMAL(38,9)",
    types.FloatType: "DOUBLE",
    types.IntType: "BIGINT",
    types.StrType: "STRING",
    types.TimeType: "STRING",
    types.UUIDType: "STRING",
}
"""Spark's types. A decimal has nine digits after the point: Iceberg needs a fixed number."""
_LISTS = (types.ListType, types.SetType, types.FrozenSetType, types.VarTupleType, types.CollectionType)


def make_ddl(kind: Any, what: str) -> str:
    """Return the fields of a type in Spark's DDL: a msgspec.Struct, dataclass, TypedDict, or pydantic model.

    ConfigError, which begins with `what`, if it has no fields, or one of a type that a column can't have.
    """
    fields = _fields(_inspect(kind, what))
    if not fields:
        raise ConfigError(f"{what} has no fields: name a msgspec.Struct, a dataclass, a TypedDict or a pydantic model")
    return ", ".join(f"{_quote(name)} {_name_type(one, f'{what}: field {name}')}" for name, one in fields.items())


def _inspect(kind: Any, what: str) -> types.Type:
    """Return a type's fields; of a pydantic model, which msgspec does not know, those of a Struct with the same."""
    found = getattr(kind, "model_fields", None)
    try:
        if isinstance(found, dict):
            hints = get_type_hints(kind)
            kind = msgspec.defstruct(kind.__name__, [(one.alias or name, hints[name]) for name, one in found.items()])
        return types.type_info(kind)
    except Exception as error:  # the user's type, in the user's module
        raise ConfigError(f"{what} has no fields that are known without its messages: {error}") from error


def _fields(kind: types.Type) -> dict[str, types.Type]:
    match kind:
        case types.StructType() | types.DataclassType() | types.TypedDictType():
            return {one.encode_name: one.type for one in kind.fields}
    return {}


def _name_type(kind: types.Type, what: str, depth: int = 0) -> str:
    """Return Spark's name of a type."""
    if depth > DEEPEST:
        raise ConfigError(f"{what} contains itself, or more than {DEEPEST} levels: a column can't have it")
    if plain := _PLAIN.get(type(kind)):
        return plain
    if fields := _fields(kind):
        parts = (f"{_quote(name)}: {_name_type(one, what, depth + 1)}" for name, one in fields.items())
        return f"STRUCT<{', '.join(parts)}>"
    match kind:
        case types.DictType():
            if _name_type(kind.key_type, what, depth + 1) == "STRING":
                return f"MAP<STRING, {_name_type(kind.value_type, what, depth + 1)}>"
        case types.UnionType():
            several = [one for one in kind.types if not isinstance(one, types.NoneType)]
            named = {_name_type(one, what, depth + 1) for one in several}
            if len(named) == 1:
                return named.pop()
            if named == {"BIGINT", "DOUBLE"}:
                return "DOUBLE"
        case types.LiteralType():
            return _of_values(kind.values, what)
        case types.EnumType():
            return _of_values([one.value for one in kind.cls], what)
        case _ if isinstance(kind, _LISTS):
            return f"ARRAY<{_name_type(kind.item_type, what, depth + 1)}>"
    raise ConfigError(f"{what} is of a type that a column can't have: {kind}")


def _of_values(values: Any, what: str) -> str:
    kinds = {type(one) for one in values}
    if kinds == {str}:
        return "STRING"
    if kinds == {int}:
        return "BIGINT"
    raise ConfigError(f"{what} has values of several types: a column can't have it")


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
