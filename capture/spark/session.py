from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from capture.spark import class_data, gateway
from capture.spark.exercise import exercise
from capture.spark.java import Java, choose
from capture.spark.options import SparkOptions
from capture.spark.properties import read_properties

ARROW_BATCH_ROWS = 65_536
ARROW_BATCH_BYTES = 16 * 1024 * 1024
"""Whichever is reached first, so that messages of a megabyte do not fill a worker's memory."""


@contextmanager
def start(options: SparkOptions) -> Iterator[SparkSession]:
    """A Spark session in a JVM of its own; both end with the block. One at a time in a process.

    The first one of this Java and Spark is preceded by a short one, of which the archive of classes is made, unless
    `options.class_data` says not to. Raises SparkError when no Java is found or the JVM does not come up.
    """
    java, properties = choose(options.java), _properties(options)

    def record(flags: list[str]) -> None:
        local = {**properties, "spark.master": "local[1]"}
        with _session(java, local, options.driver_memory, flags, end_within=class_data.RECORD_TIMEOUT) as spark:
            exercise(spark)

    flags = class_data.flags(java, record) if options.class_data else []
    with _session(java, properties, options.driver_memory, flags) as spark:
        yield spark


@contextmanager
def _session(
    java: Java,
    properties: Mapping[str, str],
    memory: str,
    flags: list[str],
    *,
    end_within: float = gateway.END_TIMEOUT,
) -> Iterator[SparkSession]:
    with gateway.running(java, properties, memory=memory, flags=flags, end_within=end_within):
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
        **(read_properties(options.properties_file) if options.properties_file else {}),
        **options.properties,
    }


def _forget_gateway() -> None:
    """pyspark keeps the first gateway for ever; a session started later has its own."""
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
