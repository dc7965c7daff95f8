"""What runs in the executor: objects come in from any store by our own client, rows of the envelope go out."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # missing from its stub
from pyspark.sql.types import DataType
from pyspark.util import PythonEvalType

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.maintenance.merge.inputs import input_rows
from capture.maintenance.merge.schema_evolution import read_columns
from capture.stores import open_store

Batches = Iterator[pa.RecordBatch]


def read_objects(
    spark: SparkSession, store_url: str, objects: Iterable[Stored], columns: str, schema: DataType, key_file: str
) -> DataFrame:
    """The rows of these objects, of whatever format, with the envelope's and these typed columns, as in `schema`.

    An object that is damaged, missing, or encrypted with a key that is not in `key_file` fails the query.
    """
    named = [(msgspec.json.encode(msgspec.structs.replace(one, sequences="")).decode(),) for one in objects]
    rows = spark.createDataFrame(named, "stored STRING")
    return map_in_arrow(rows, partial(_rows, store_url, columns, key_file), schema)


def map_in_arrow(rows: DataFrame, function: Callable[[Batches], Batches], schema: DataType) -> DataFrame:
    """`DataFrame.mapInArrow` without its one obstacle: that method imports pandas, which neither side then uses."""
    column = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(
        *(rows[name] for name in rows.columns)
    )
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def _rows(store_url: str, columns: str, key_file: str, named: Batches) -> Batches:
    store, keys, typed = open_store(store_url), Keys.load(key_file), read_columns(columns)
    for batch in named:
        for text in batch["stored"].to_pylist():
            one = msgspec.json.decode(text, type=Stored)
            for rows in input_rows(asyncio.run(store.get(one.path)), one, typed, keys):
                yield from rows.combine_chunks().to_batches()
