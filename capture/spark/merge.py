from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # missing from its stub
from pyspark.sql.types import StringType, StructField, StructType
from pyspark.util import PythonEvalType

from capture.compact import Group, Merged
from capture.spark.table import load
from capture.spark.write import write_and_report

_REPORT = StructType([StructField("merged", StringType())])


def merge(spark: SparkSession, store_url: str, group: Group, *, stored_ns: int = 0) -> Merged:
    """Write the group's inputs as one table file, sorted by sequence, each sequence once; says what became of them.

    One task, no shuffle: read → sort → write. The executor puts the file into the store itself and reports its facts;
    it counts only once a manifest names it. `stored_ns` becomes the file's. Of copies of a message the first delivery
    is kept. Raises SparkError unless exactly the messages that the inputs' entries name were read and written.
    """
    messages = load(spark, store_url, [block.path for block in group.inputs])
    rows = messages.coalesce(1).sortWithinPartitions("sequence", "deliveries")
    [report] = _map_in_arrow(rows, partial(write_and_report, store_url, group, stored_ns)).collect()
    return msgspec.json.decode(report["merged"], type=Merged)


def _map_in_arrow(
    rows: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
) -> DataFrame:
    """`DataFrame.mapInArrow` without its one obstacle: that method imports pandas, which neither side then uses."""
    column = vectorized_udf(function, returnType=_REPORT, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)(
        *(rows[name] for name in rows.columns)
    )
    return DataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)
