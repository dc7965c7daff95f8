"""DataFrames of stored objects: Spark reads plain Parquet files itself, our reader in the executors the others."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial, reduce

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # missing from its stub
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType
from pyspark.util import PythonEvalType

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.errors import ConfigError
from capture.formats.envelope import SCHEMA
from capture.maintenance.merge.inputs import Columns, fetch_blocking, input_rows
from capture.maintenance.merge.schema_evolution import read_columns, write_columns
from capture.stores import FileStore, open_store

Batches = Iterator[pa.RecordBatch]
_GLOB = re.compile(r"([\\*?\[\]{}])")


def load(
    spark: SparkSession,
    store_url: str,
    objects: Sequence[Stored],
    columns: Columns,
    *,
    key_file: str = "",
    checked: bool = False,
) -> DataFrame:
    """Return the messages in these objects of the store, with the envelope's and their typed columns.

    Duplicates are not removed. A damaged or missing object fails the query that reads it. Spark itself reads plain
    Parquet files. Our own client in the executors reads objects that have another format, are compressed or encrypted,
    or are in another store. The executors then need the store's credentials and CAPTURE_KEYS in their environment, or
    the keys in `key_file`. With `checked` our client reads all objects, since Spark does not compare them with their
    SHA-256.
    """
    typed = columns.of(objects)
    schema = StructType([StructField(one.name, from_arrow_type(one.type)) for one in [*SCHEMA, *typed]])
    store = open_store(store_url)
    where_they_are = isinstance(store, FileStore) and not checked
    by_spark = {one.path for one in objects if where_they_are and columns.is_alike(one)}
    frames = []
    if isinstance(store, FileStore) and by_spark:
        # recursiveFileLookup: `stream=…/key=…` in a path must not become columns, which would replace those in the file
        reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
        frames.append(reader.parquet(*(location(store, one.path) for one in objects if one.path in by_spark)))
    if others := [one for one in objects if one.path not in by_spark]:
        frames.append(read_objects(spark, store_url, others, write_columns(typed), schema, key_file))
    return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], schema)


def with_payload(messages: DataFrame, payload_schema: str) -> DataFrame:
    """Return the envelope, and the JSON payload's fields as columns; null if the payload does not have this schema.

    A field of the payload hides a column of the same name, since the schema names it explicitly.
    """
    parsed = messages.withColumn("__parsed", F.from_json(F.col("payload").cast("string"), payload_schema))
    fields = field_names(payload_schema)
    hidden = {name.lower() for name in fields}
    kept = [F.col(f"`{name}`") for name in messages.columns if name.lower() not in hidden]
    return parsed.select(*kept, *(F.col("__parsed").getField(name).alias(name) for name in fields))


def field_names(payload_schema: str) -> list[str]:
    """Return the names of the fields of a payload, given its type in Spark's DDL. ConfigError if it is not a struct."""
    kind = DataType.fromDDL(payload_schema)
    if not isinstance(kind, StructType):
        raise ConfigError(f"the payload's schema is {kind.simpleString()}: give columns: 'country STRING, n INT'")
    return kind.names


def location(store: FileStore, path: str) -> str:
    """Return Hadoop's URL of this object: a file URL with escaped special characters.

    StoreUnreadableError if its path has a symbolic link, which Hadoop would follow.
    """
    return "file:" + _GLOB.sub(r"\\\1", str(store.file(path)))


def read_objects(
    spark: SparkSession, store_url: str, objects: Iterable[Stored], columns: str, schema: DataType, key_file: str
) -> DataFrame:
    """Return the rows of these objects of any format, with the envelope's and these typed columns, as in `schema`.

    An object that is damaged, missing, or encrypted with a key that is not in `key_file` fails the query.
    """
    named = [(msgspec.json.encode(msgspec.structs.replace(one, sequences=b"")).decode(),) for one in objects]
    rows = spark.createDataFrame(named, "stored STRING")
    return map_in_arrow(rows, partial(_rows, store_url, columns, key_file), schema)


def map_in_arrow(rows: DataFrame, function: Callable[[Batches], Batches], schema: DataType) -> DataFrame:
    """As `DataFrame.mapInArrow`, without importing pandas, which that method does and neither side uses."""
    column = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(
        *(rows["`" + name.replace("`", "``") + "`"] for name in rows.columns)  # a name may have a dot
    )
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def _rows(store_url: str, columns: str, key_file: str, named: Batches) -> Batches:
    store, keys, typed = open_store(store_url), Keys.load(key_file), read_columns(columns)
    for batch in named:
        objects = [msgspec.json.decode(text, type=Stored) for text in batch["stored"].to_pylist()]
        with closing(fetch_blocking(store, objects)) as found:
            for one, data in found:
                for rows in input_rows(data, one, typed, keys):
                    yield from rows.combine_chunks().to_batches()
