import re
from collections.abc import Iterable
from functools import reduce

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F

from capture.spark.read import read_ndjson, read_parquet
from capture.stores import FileStore, open_store

_COLUMNS = {
    "stream": "STRING",
    "sequence": "BIGINT",
    "time_ns": "BIGINT",
    "subject": "STRING",
    "headers": "MAP<STRING, ARRAY<STRING>>",
    "header_block": "BINARY",
    "message_id": "STRING",
    "deliveries": "INT",
    "payload": "BINARY",
    "error": "STRING",
    "subject_raw": "BINARY",
    "origin_stream": "STRING",
    "origin_sequence": "BIGINT",
}

ENVELOPE = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
"""`capture.writers.envelope.SCHEMA` in Spark's words."""

NDJSON = ENVELOPE.replace("BINARY", "STRING") + "".join(
    f", {name}_base64 STRING" for name in ("payload", "header_block", "subject_raw")
)
"""The same as lines of JSON, where bytes that are no text are in base64."""

_GLOB = re.compile(r"([\\*?\[\]{}])")


def load(spark: SparkSession, store_url: str, paths: Iterable[str]) -> DataFrame:
    """The messages in these objects of the store, Parquet and NDJSON alike, with the envelope's columns.

    Duplicates are not removed. A damaged or missing object fails the query that reads it. Files are read by Spark
    itself, other stores by our own client in the executors, which need its credentials in their environment.
    """
    parquet, ndjson = _by_format(paths)
    frames = []
    if isinstance(store := open_store(store_url), FileStore):
        if parquet:
            frames.append(_reader(spark, ENVELOPE).parquet(*(location(store, path) for path in parquet)))
        if ndjson:
            frames.append(_from_json(_reader(spark, NDJSON).json([location(store, path) for path in ndjson])))
    else:
        if parquet:
            frames.append(read_parquet(spark, store_url, parquet, ENVELOPE))
        if ndjson:
            frames.append(_from_json(read_ndjson(spark, store_url, ndjson, NDJSON)))
    return reduce(DataFrame.union, frames) if frames else spark.createDataFrame([], ENVELOPE)


def with_payload(messages: DataFrame, payload_schema: str) -> DataFrame:
    """The envelope, and the JSON payload's fields as columns; null where the payload is not of this schema.

    A field of the payload hides a column of the envelope of the same name: whoever names it in the schema wants it.
    """
    parsed = messages.withColumn("__parsed", F.from_json(F.col("payload").cast("string"), payload_schema))
    fields = parsed.select("__parsed.*").columns
    hidden = {name.lower() for name in fields}
    kept = [F.col(name) for name in messages.columns if name.lower() not in hidden]
    return parsed.select(*kept, *(F.col("__parsed").getField(name).alias(name) for name in fields))


def location(store: FileStore, path: str) -> str:
    """Where Hadoop finds this object: a file URL whose special characters stand for themselves."""
    return "file:" + _GLOB.sub(r"\\\1", str(store.root / path))


def _by_format(paths: Iterable[str]) -> tuple[list[str], list[str]]:
    parquet: list[str] = []
    ndjson: list[str] = []
    for path in paths:
        (parquet if path.endswith(".parquet") else ndjson).append(path)
    return parquet, ndjson


def _reader(spark: SparkSession, schema: str) -> DataFrameReader:
    # recursiveFileLookup: `stream=…/key=…` in a path must not become columns, which would replace those in the file
    return spark.read.schema(schema).option("recursiveFileLookup", "true").option("mode", "FAILFAST")


def _from_json(lines: DataFrame) -> DataFrame:
    payload = F.coalesce(F.col("payload").cast("binary"), F.unbase64("payload_base64"))
    columns = {"payload": payload} | {name: F.unbase64(f"{name}_base64") for name in ("header_block", "subject_raw")}
    return lines.select(*(columns.get(name, F.col(name)).alias(name) for name in _COLUMNS))
