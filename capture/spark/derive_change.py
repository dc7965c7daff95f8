"""Says what a run's new rows change: which units they are in, and whether a key is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, TimestampType

from capture.pipelines.derivation import Cell, Unit
from capture.pipelines.upkeep import SEQUENCE
from capture.spark.derive_output import quote
from capture.spark.derive_store import cell
from capture.spark.derive_task import UNIT


@dataclass(frozen=True)
class Summary:
    """How many new rows there are, and the units that they are in. `null` says which key is null; "" if none is."""

    rows: int
    units: list[Unit]
    null: str


def summarise(change: DataFrame | pa.Table, partition: Sequence[str], key: Sequence[str]) -> Summary:
    """Return what new rows with UNIT change. Rows that Spark has are summarised by a job."""
    if isinstance(change, pa.Table):
        return _summarise_held(change, partition, key)
    columns = [F.col(quote(one)) for one in key]
    is_null = F.lit(False)
    for one in columns:
        is_null = is_null | one.isNull()
    sample = F.struct(*columns, *([F.col(SEQUENCE)] if SEQUENCE in change.columns else []))
    null = F.first(F.when(is_null, F.to_json(sample, {"ignoreNullFields": "false"})), ignorenulls=True)
    grouped = change.groupBy(*map(quote, [*partition, UNIT])).agg(F.count("*").alias("__n"), null.alias("__null"))
    rows = grouped.collect()
    kinds = {one.name: one.dataType for one in change.schema.fields}
    units = [Unit(partition=[_cell(row[one], kinds[one]) for one in partition], bucket=row[UNIT]) for row in rows]
    nulls = (msgspec.json.decode(one["__null"], type=dict) for one in rows if one["__null"] is not None)
    return Summary(sum(row["__n"] for row in rows), units, next((_describe_null(key, one) for one in nulls), ""))


def _summarise_held(change: pa.Table, partition: Sequence[str], key: Sequence[str]) -> Summary:
    found = change.group_by([*partition, UNIT]).aggregate([]).to_pylist()
    units = [Unit(partition=[cell(row[one]) for one in partition], bucket=row[UNIT]) for row in found]
    shown = [one for one in (*key, SEQUENCE) if one in change.column_names]
    for name in key:
        if change[name].null_count:
            [example] = change.filter(pc.is_null(change[name])).slice(0, 1).select(shown).to_pylist()
            return Summary(len(change), units, _describe_null(key, example))
    return Summary(len(change), units, "")


def _cell(value: object, kind: DataType) -> Cell:
    """Return a collected value of a partition's column as its records have it: Spark's own times are UTC."""
    if isinstance(kind, TimestampType) and isinstance(value, datetime):
        value = value.replace(tzinfo=UTC)
    return cell(value)


def _describe_null(key: Sequence[str], values: Mapping[str, object]) -> str:
    null = next(one for one in key if values.get(one) is None)
    said = ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)
    found = f" (for example where {said})" if said else ""
    return f"{null}, of its key, is null in a row{found}: leave such rows out by WHERE"
