"""DataFrames of what a pipeline's run reads: messages, rows of other pipelines, and the table's own files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cached_property, partial, reduce

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import BooleanType, StructField, StructType

from capture.archive.encryption import ENDING, Keys
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import is_open
from capture.errors import PipelineError
from capture.formats.envelope import SCHEMA
from capture.maintenance.merge.inputs import Columns, columns_of
from capture.maintenance.merge.schema_evolution import read_columns, write_columns
from capture.pipelines.derivation import INFER, Input, OutputFile, Part
from capture.pipelines.upkeep import HIDDEN, SEQUENCE
from capture.spark.derive_task import DEAD, TableFile, numbered_file, read_files, read_parts, take_given
from capture.spark.frames import field_names, load, location, map_in_arrow, with_payload
from capture.stores import FileStore, open_store

TIME = "time"
INFERRED = 10_000
"""The type of payloads is inferred from so many messages, the first ones."""
CORRUPT = "_corrupt_record"
"""Spark's column for what is not JSON."""
SLICE_BYTES = 16 << 20
"""About this many bytes of objects are read by one task."""

_DELETES = """
CASE WHEN startswith(stream, 'KV_')
THEN get(headers['KV-Operation'], 0) IN ('DEL', 'PURGE') OR map_contains_key(headers, 'Nats-Marker-Reason')
ELSE length(payload) = 0 END
"""
"""Whether a message deletes its key. In a bucket, which may have empty values: a delete, a purge, or a marker.
In another stream any publisher may set these headers, and they mean nothing: an empty message does."""


class Source:
    """An input of a run as DataFrames, in this session."""

    def __init__(
        self, scope: SparkSession, given: Input, held: DataFrame | None = None, *, latest: bool = False
    ) -> None:
        self.given = given
        self._scope, self._held = scope, held
        self._latest = latest
        self.inferred = ""
        """The type of the payloads, if it was inferred."""

    def new(self) -> DataFrame:
        """Return the rows that the last committed run did not have, with SEQUENCE; of kind "latest" also with DEAD."""
        if self.given.columns:
            return self._rows_of_pipeline(self.given.new, self.given.after)
        return self._frame(self.given.new, self._held if self.given.held else None)

    def all(self) -> DataFrame:
        """Return all rows, as `new`. PipelineError if the run was only given the new ones."""
        if self.given.held or (self.given.new and not self.given.all):
            raise PipelineError("it asks for all rows of an input, and this run has only the new ones")
        return self._frame(self.given.all)

    @cached_property
    def _columns(self) -> Columns:
        """The typed columns of all objects that the run reads: the same for new messages and for all."""
        objects = {one.stored.path: one.stored for one in (*self.given.all, *self.given.new)}
        keys = Keys.load(self.given.key_file)
        found = asyncio.run(columns_of(open_store(self.given.store), list(objects.values()), keys, self.given.typed))
        for why in found.failed.values():
            raise PipelineError(why)
        return found

    def _frame(self, parts: Sequence[Part], held: DataFrame | None = None) -> DataFrame:
        if self.given.columns:
            return self._rows_of_pipeline(parts)
        if held is not None and self.given.held:
            some = self.given.held.given
            messages = map_in_arrow(held, partial(take_given, some), held.schema) if some else held
        else:
            messages = self._messages(parts)
        if self.given.is_plain:
            messages = _as_streamed(messages)
        if self.given.since_ns:
            messages = messages.where(F.col("time_ns") >= self.given.since_ns)
        return self._add_columns(messages)

    def _messages(self, parts: Sequence[Part]) -> DataFrame:
        given, columns = self.given, self._columns
        whole = [one.stored for one in parts if not one.given]
        some = [one for one in parts if one.given]
        schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in [*SCHEMA, *columns.run]])
        frames = []
        if whole:
            frames.append(_under(load(self._scope, given.store, whole, columns, key_file=given.key_file), schema))
        if some:
            rows = spread(self._scope, "part", some, sum(one.stored.bytes for one in some))
            read = partial(read_parts, given.store, write_columns(columns.run), given.key_file)
            frames.append(map_in_arrow(rows, read, schema))
        return reduce(DataFrame.union, frames) if frames else self._scope.createDataFrame([], schema)

    def _add_columns(self, messages: DataFrame) -> DataFrame:
        """Return the messages with the time, their order, whether they delete their key, and the payload's fields."""
        names = {name.lower() for name in messages.columns}
        if TIME not in names:
            messages = messages.withColumn(TIME, F.expr("timestamp_micros(time_ns div 1000)"))
        messages = messages.withColumn(SEQUENCE, F.col("sequence"))
        if self._latest:
            messages = messages.withColumn(DEAD, F.coalesce(F.expr(_DELETES), F.lit(False)))
        if self.given.payload_schema == INFER:
            self.inferred = self.inferred or self._infer(messages)
        schema = self.inferred or self.given.payload_schema
        if not schema:
            return messages
        if wrong := [one for one in field_names(schema) if one.startswith(HIDDEN)]:
            raise PipelineError(f"its schema has the field {wrong[0]}: names with {HIDDEN} are for a pipeline's own")
        return with_payload(messages, schema)

    def _infer(self, messages: DataFrame) -> str:
        """Return the type of the first payloads that are JSON objects, in Spark's DDL. PipelineError if none is."""
        first = messages.where("length(payload) > 0").orderBy("sequence").limit(INFERRED).select("payload")
        texts = [bytes(one["payload"]).decode("utf-8", "replace") for one in first.collect()]
        found = self._scope.read.json(self._scope.sparkContext.parallelize(texts, 1))
        fields = [one for one in found.schema.fields if one.name != CORRUPT and not one.name.startswith(HIDDEN)]
        if not fields:
            raise PipelineError(
                f"none of the first {len(texts):,} payloads is a JSON object, so its types can't be inferred: give a"
                " schema"
            )
        return StructType(fields).toDDL()

    def _rows_of_pipeline(self, parts: Sequence[Part], after: int = 0) -> DataFrame:
        """Return the rows of the runs after `after` in these files."""
        visible = read_columns(self.given.columns)
        schema = pa.schema([*visible, pa.field(SEQUENCE, pa.int64())])
        files = [numbered_file(one.stored, after) for one in parts if is_open(one.stored.format)]
        size = sum(one.stored.bytes for one in parts)
        rows = _read(self._scope, self.given.store, files, size, schema)
        return rows.withColumn(DEAD, F.lit(False)) if self._latest else rows


def count_new(given: Input) -> int:
    """Return the number of new rows of an input."""
    if given.held:
        return given.held.count
    if given.rows is not None:
        return given.rows
    return sum(len(Sequences.from_text(one.given)) if one.given else one.stored.count for one in given.new)


def load_table(
    scope: SparkSession, store_url: str, files: Sequence[OutputFile], schema: StructType, *, here: bool = False
) -> DataFrame:
    """Return the rows of these files of the pipeline's table, with DEAD: whether they are in a file of tombstones.

    This process reads files that are read `here`.
    """
    store = open_store(store_url)
    fields = [one for one in schema.fields if one.name != DEAD]
    full = StructType([*fields, StructField(DEAD, BooleanType())])
    if here or not isinstance(store, FileStore):
        named = [TableFile(path=one.path, bytes=one.bytes, sha256=one.sha256, dead=one.tombstones) for one in files]
        arrow = pa.schema([pa.field(one.name, to_arrow(one)) for one in full.fields])
        return _read(scope, store_url, named, sum(one.bytes for one in files), arrow, here=here)
    frames = []
    for dead in (False, True):
        if paths := [location(store, one.path) for one in files if one.tombstones is dead]:
            reader = scope.read.schema(StructType(fields)).option("recursiveFileLookup", "true")
            frames.append(reader.parquet(*paths).withColumn(DEAD, F.lit(dead)))
    return reduce(DataFrame.unionByName, frames) if frames else scope.createDataFrame([], full)


def to_arrow(field: StructField) -> pa.DataType:
    """Return Arrow's type of a column."""
    return to_arrow_type(field.dataType, timezone="UTC")


def find_encrypted(given: Input) -> str:
    """Return the path of an object that is encrypted; "" if none is."""
    objects = (one.stored for one in (*given.new, *given.all))
    return next((one.path for one in objects if ENDING in one.format.split(".")[1:]), "")


def size_of(given: Input) -> int:
    """Return the bytes of the objects that a run reads of an input, or of the payloads that a query holds."""
    held = given.held.bytes if given.held else 0
    return held + sum(one.stored.bytes for one in (*given.new, *given.all))


def _read(
    scope: SparkSession, store: str, files: Sequence[TableFile], size: int, schema: pa.Schema, *, here: bool = False
) -> DataFrame:
    kinds = from_arrow_schema(schema)
    if not files:
        return scope.createDataFrame([], kinds)
    if here:
        named = pa.RecordBatch.from_pydict({"file": [msgspec.json.encode(one).decode() for one in files]})
        return scope.createDataFrame(pa.Table.from_batches(read_files(store, schema, iter([named])), schema), kinds)
    return map_in_arrow(spread(scope, "file", files, size), partial(read_files, store, schema), kinds)


def spread(scope: SparkSession, column: str, items: Sequence[msgspec.Struct], size: int) -> DataFrame:
    """Return the items, as JSON, in so many partitions that a task reads about SLICE_BYTES."""
    cores = scope.sparkContext.defaultParallelism
    slices = min(len(items), max(cores, -(-size // SLICE_BYTES)))
    packed = [(msgspec.json.encode(one).decode(),) for one in items]
    rows = scope.sparkContext.parallelize(packed, slices)
    return scope.createDataFrame(rows, f"{column} STRING")


def _as_streamed(messages: DataFrame) -> DataFrame:
    """Return messages with the columns of a stream: without typed ones, and the same values wherever they are read."""
    known = {"deliveries": F.lit(1).cast("int"), "error": F.lit(None).cast("string")}  # of their capture
    return messages.select(*(known.get(name, F.col(name)).alias(name) for name in SCHEMA.names))


def _under(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return the rows with all columns of the schema; null where the objects do not have one."""
    held = set(rows.columns)
    if rows.schema.simpleString() == schema.simpleString():
        return rows

    def column(one: StructField) -> Column:
        value = F.col(f"`{one.name}`") if one.name in held else F.lit(None)
        return value.cast(one.dataType).alias(one.name)

    return rows.select(*(column(one) for one in schema.fields))
