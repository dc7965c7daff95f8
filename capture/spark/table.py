import re
from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from capture.archive.manifest import Stored
from capture.formats.envelope import SCHEMA
from capture.maintenance.merge.inputs import Columns
from capture.maintenance.merge.schema_evolution import write_columns
from capture.spark.read import read_objects
from capture.stores import FileStore, open_store

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
    """The messages in these objects of the store, with the envelope's columns and their typed ones.

    Duplicates are not removed. A damaged or missing object fails the query that reads it. Plain Parquet files are read
    by Spark itself; what is in another format, compressed, encrypted or in another store by our own client in the
    executors, which need the store's credentials and CAPTURE_KEYS in their environment, or the keys in `key_file`. With
    `checked` our client reads all, since Spark compares no object with its SHA-256.
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
    """The envelope, and the JSON payload's fields as columns; null where the payload is not of this schema.

    A field of the payload hides a column of the same name: whoever names it in the schema wants it.
    """
    parsed = messages.withColumn("__parsed", F.from_json(F.col("payload").cast("string"), payload_schema))
    fields = parsed.select("__parsed.*").columns
    hidden = {name.lower() for name in fields}
    kept = [F.col(f"`{name}`") for name in messages.columns if name.lower() not in hidden]
    return parsed.select(*kept, *(F.col("__parsed").getField(name).alias(name) for name in fields))


def location(store: FileStore, path: str) -> str:
    """Where Hadoop finds this object: a file URL whose special characters stand for themselves.

    StoreUnreadableError if a symbolic link leads there, which Hadoop would follow.
    """
    return "file:" + _GLOB.sub(r"\\\1", str(store.file(path)))
