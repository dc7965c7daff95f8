"""The columns of a pipeline's result: checks their names and types, and brings rows under the table's columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import BooleanType, DataType, StructField, StructType

from capture.errors import PipelineError
from capture.maintenance.merge.schema_evolution import adapt, evolve, find_column, read_columns
from capture.pipelines.upkeep import HIDDEN
from capture.spark.derive_task import VIOLATED
from capture.spark.failure import sentence

_NOT_PARTITION = (pa.types.is_nested, pa.types.is_floating, pa.types.is_binary)


def table_columns(result: StructType, before: str, key: Sequence[str], partition: Sequence[str]) -> pa.Schema:
    """Return the table's visible columns after this run, given those of the result and those `before` (a text).

    PipelineError if a name is there twice, a type can't be stored, or a column's type does not fit the table's.
    """
    table = read_columns(before)
    found = [_field(one) for one in result.fields if not one.name.startswith(HIDDEN)]
    found = [one.with_name(find_column(one.name, table.names)) for one in found]
    names = [one.name.lower() for one in found]
    if twice := [one.name for one in found if names.count(one.name.lower()) > 1]:
        raise PipelineError(f"its result has the column {twice[0]} twice (case is ignored): rename one with AS")
    for what, wanted in (("key", key), ("partition", partition)):
        if missing := [one for one in wanted if one not in {field.name for field in found}]:
            raise PipelineError(f"its result has no column {missing[0]}, which is its {what}: {_list(found)}")
    for one in found:
        if one.name in key and pa.types.is_nested(one.type):
            raise PipelineError(f"its key {one.name} is {_say(one.type)}: use a number, a text, a date or a time")
        if one.name in partition and any(is_unfit(one.type) for is_unfit in _NOT_PARTITION):
            raise PipelineError(f"its partition {one.name} is {_say(one.type)}: use a whole number, a text or a date")
    return _evolve(table, pa.schema(found), {*key, *partition})


def _evolve(table: pa.Schema, found: pa.Schema, fixed: set[str]) -> pa.Schema:
    if not len(table):
        return found
    evolved = evolve(table, [found])
    kept = [one for one in evolved if one.name in table.names or one.name in found.names]
    for one in found:
        if one.name not in table.names:
            continue
        before, after = table.field(one.name).type, evolved.field(one.name).type
        if one.name in fixed and before != one.type:
            raise PipelineError(
                f"{one.name}, of its key or partition, is now {_say(one.type)} and was {_say(before)}, which changes"
                " where rows are stored: compute the table again by `capture pipeline rerun`"
            )
        if not holds(after, one.type):
            raise PipelineError(
                f"the column {one.name} is now {_say(one.type)} and was {_say(before)}: CAST it in the query, or"
                " compute the table again by `capture pipeline rerun`"
            )
    return pa.schema(kept)


def holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Return whether a column of the first type can have every value of the second."""
    types = pa.types
    if wide == narrow:
        return True
    if types.is_struct(wide) and types.is_struct(narrow):
        kinds = {one.name: one.type for one in wide}
        return all(one.name in kinds and holds(kinds[one.name], one.type) for one in narrow)
    if types.is_list(wide) and types.is_list(narrow):
        return holds(wide.value_type, narrow.value_type)
    if types.is_decimal(wide) and types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    return (wide, narrow) in {(pa.int64(), pa.int32()), (pa.float64(), pa.float32())}


def _field(one: StructField) -> pa.Field:
    try:
        kind = adapt(to_arrow_type(one.dataType, timezone="UTC"))
        if any(_is_unfit(part) for part in _walk(kind)):
            raise TypeError
    except Exception:  # pyspark's own error for types without a counterpart
        said = one.dataType.simpleString()
        advice = "CAST(NULL AS …)" if said == "void" else "CAST it"
        raise PipelineError(f"the column {one.name} is of type {said}, which a table can't have: {advice}") from None
    return pa.field(one.name, kind)


def _walk(kind: pa.DataType) -> list[pa.DataType]:
    parts = [kind]
    if pa.types.is_struct(kind) or pa.types.is_list(kind) or pa.types.is_map(kind):
        for number in range(kind.num_fields):
            parts += _walk(kind.field(number).type)
    return parts


def _is_unfit(kind: pa.DataType) -> bool:
    return bool(pa.types.is_null(kind) or pa.types.is_duration(kind) or pa.types.is_interval(kind))


def conform(rows: DataFrame, columns: pa.Schema, hidden: Sequence[str]) -> DataFrame:
    """Return the rows with these columns, in their order and types; missing ones are null. Hidden ones follow."""
    held = {name.lower(): name for name in rows.columns}
    schema = {one.name: one.dataType for one in rows.schema.fields}

    def column(one: pa.Field) -> Column:
        wanted = from_arrow_type(one.type)
        name = held.get(one.name.lower())
        value = F.lit(None).cast(wanted) if name is None else fit(F.col(quote(name)), schema[name], wanted)
        return value.alias(one.name)

    return rows.select(*map(column, columns), *(F.col(quote(one)) for one in hidden))


def fit(value: Column, kind: DataType, wanted: DataType) -> Column:
    """Return the value in the wanted type: the fields of structs by name, other values by a cast."""
    if isinstance(kind, StructType) and isinstance(wanted, StructType) and kind.names != wanted.names:
        held = {one.name: one.dataType for one in kind.fields}
        fields = [
            (fit(value.getField(one.name), held[one.name], one.dataType) if one.name in held else F.lit(None))
            .cast(one.dataType)
            .alias(one.name)
            for one in wanted.fields
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value if kind == wanted else value.cast(wanted)


def mark_violations(rows: DataFrame, conditions: Sequence[str], checked: Column | None = None) -> DataFrame:
    """Return the rows with VIOLATED: the numbers of the conditions that are false, as for SQL's CHECK: null passes.

    Only `checked` rows are looked at, if that is given. PipelineError if a condition is not one of these rows.
    """
    if not conditions:
        return rows
    found = []
    for number, text in enumerate(conditions):
        try:
            kind = rows.select(F.expr(text)).schema.fields[0].dataType
            if isinstance(kind, BooleanType):
                _ = rows.where(F.expr(text)).schema  # refuses aggregates
        except (AnalysisException, ParseException) as error:
            raise PipelineError(f"its condition {text!r} can't be checked: {sentence(error)}") from None
        if not isinstance(kind, BooleanType):
            raise PipelineError(f"its condition {text!r} is not true or false but {kind.simpleString()}")
        found.append(F.when(~F.expr(text), F.lit(number)))
    violated = F.array_compact(F.array(*found))
    return rows.withColumn(VIOLATED, violated if checked is None else F.when(checked, violated))


def quote(name: str) -> str:
    """Return a name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def _say(kind: pa.DataType) -> str:
    return str(from_arrow_type(kind).simpleString())


def _list(fields: Sequence[pa.Field]) -> str:
    return ", ".join(one.name for one in fields)
