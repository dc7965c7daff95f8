from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from capture.spark import gateway
from capture.spark.java import choose
from capture.spark.options import SparkOptions

ARROW_BATCH_ROWS = 65_536
ARROW_BATCH_BYTES = 16 * 1024 * 1024
"""Whichever is reached first, so that messages of a megabyte do not fill a worker's memory."""


@contextmanager
def start(options: SparkOptions) -> Iterator[SparkSession]:
    """A Spark session in a JVM of its own; both end with the block. One at a time in a process.

    Raises SparkError when no Java is found or the JVM does not come up.
    """
    with gateway.running(choose(options.java), _properties(options), memory=options.driver_memory):
        spark = SparkSession.builder.getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
            _forget_gateway()


def _properties(options: SparkOptions) -> dict[str, str]:
    return {
        "spark.app.name": "capture",
        "spark.master": options.master,
        "spark.scheduler.mode": "FAIR",  # several groups side by side, each a job of one task
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(ARROW_BATCH_BYTES),
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # a damaged block must not become a sound table
        **options.properties,
    }


def _forget_gateway() -> None:
    """pyspark keeps the first gateway for ever; a session started later has its own."""
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
