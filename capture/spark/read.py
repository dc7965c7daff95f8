"""What runs in the executor: objects come in from any store by our own client, rows of the envelope go out."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # missing from its stub
from pyspark.sql.types import DataType, StructType
from pyspark.util import PythonEvalType

from capture.stores import open_store
from capture.writers.envelope import SCHEMA, with_envelope

BATCH_ROWS = 8192
LINES = pa.schema([("line", pa.string())])

Batches = Iterator[pa.RecordBatch]


def read_parquet(spark: SparkSession, store_url: str, paths: Iterable[str], schema: str) -> DataFrame:
    """The rows of these Parquet objects; `schema` is the envelope's in Spark's words."""
    return map_in_arrow(_named(spark, paths), partial(_each, store_url, _parquet_rows), StructType.fromDDL(schema))


def read_ndjson(spark: SparkSession, store_url: str, paths: Iterable[str], schema: str) -> DataFrame:
    """The rows of these objects of JSON lines. A line that is not of `schema` fails the query."""
    lines = map_in_arrow(_named(spark, paths), partial(_each, store_url, _lines), StructType.fromDDL("line STRING"))
    row = F.from_json(F.col("line"), schema, {"mode": "FAILFAST"})
    return lines.select(row.alias("row")).select("row.*")


def map_in_arrow(rows: DataFrame, function: Callable[[Batches], Batches], schema: DataType) -> DataFrame:
    """`DataFrame.mapInArrow` without its one obstacle: that method imports pandas, which neither side then uses."""
    column = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(
        *(rows[name] for name in rows.columns)
    )
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def _named(spark: SparkSession, paths: Iterable[str]) -> DataFrame:
    return spark.createDataFrame([(path,) for path in paths], "path STRING")


def _each(store_url: str, rows_of: Callable[[bytes], Batches], named: Batches) -> Batches:
    store = open_store(store_url)
    for batch in named:
        for path in batch["path"].to_pylist():
            yield from rows_of(asyncio.run(store.get(path)))


def _parquet_rows(data: bytes) -> Batches:
    file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    for batch in file.iter_batches(BATCH_ROWS, columns=SCHEMA.names):
        yield from with_envelope(pa.Table.from_batches([batch])).to_batches()


def _lines(data: bytes) -> Batches:
    lines = data.decode().split("\n")  # splitlines() ends lines at characters that JSON leaves as they are, too
    for start in range(0, len(lines), BATCH_ROWS):
        wanted = [line for line in lines[start : start + BATCH_ROWS] if line]
        yield pa.RecordBatch.from_pydict({"line": wanted}, LINES)
