from functools import partial

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from capture.compact import Group, Merged
from capture.spark.read import map_in_arrow
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
    [report] = map_in_arrow(rows, partial(write_and_report, store_url, group, stored_ns), _REPORT).collect()
    return msgspec.json.decode(report["merged"], type=Merged)
