"""Starts and ends a Spark session in its own JVM."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from capture.errors import SparkError
from capture.spark import class_data, clusters, gateway, kubernetes
from capture.spark.exercise import exercise
from capture.spark.failure import keep_text, sentence
from capture.spark.java import Java, choose
from capture.spark.options import SparkOptions, check_master, read_properties

ARROW_BATCH_ROWS = 65_536
"""Of rows that go to Python in a compaction: only ids and sequences."""
NESTED_BATCH_ROWS = 1000
"""The same in queries, whose rows may be messages. Spark 4.3 limits a batch to 64 MB, and measures it at each row. In a
batch of 65,536 rows that takes 80 µs if a nested column is null, as `headers` often is; with these few rows 3 µs."""

ENCRYPTS = "spark.io.encryption.enabled"
"""The setting that encrypts files on the disks of driver and executors."""

QUICKLY = "-XX:TieredStopAtLevel=1"
"""Java compiles fast, instead of compiling to fast code."""

WORKERS_END_TIMEOUT = 5  # seconds

CLUSTERS = ("spark.authenticate", "spark.ssl.", "spark.kubernetes.")
"""Prefixes of settings for other machines."""

log = logging.getLogger("capture.spark.session")

ENCRYPTED = {ENCRYPTS: "true", "spark.io.encryption.keySizeBits": "256"}


@contextmanager
def start(options: SparkOptions) -> Iterator[SparkSession]:
    """Start a Spark session in its own JVM; both end with the block. One at a time in a process.

    The first session of this Java and Spark is preceded by a short one that makes the archive of classes, unless
    `options.class_data` is off. SparkError if no Java is found, or JVM or cluster do not start.
    """
    java, properties = choose(options.java), _properties(options)
    check_master(properties["spark.master"])

    def record(flags: list[str]) -> None:
        with _session(java, _local(properties), flags, end_within=class_data.RECORD_TIMEOUT) as spark:
            try:
                exercise(spark)
            except Exception as error:  # a setting is meant for a cluster: the next session reports it
                log.debug("not all of Spark's classes could be recorded: %s", sentence(error))

    flags = class_data.flags(java, record) if options.class_data else []
    if not options.queries:
        flags = [*flags, QUICKLY]
    with _session(java, properties, flags, class_path=gateway.class_path(properties)) as spark:
        yield spark


@contextmanager
def _session(
    java: Java,
    properties: Mapping[str, str],
    flags: list[str],
    *,
    class_path: Sequence[str] = (gateway.JARS,),
    end_within: float = gateway.END_TIMEOUT,
) -> Iterator[SparkSession]:
    with gateway.run(java, properties, flags=flags, class_path=class_path, end_within=end_within):
        try:
            spark = SparkSession.builder.getOrCreate()
            if kubernetes.api_server(properties):
                kubernetes.settle(spark)
            elif clusters.is_yarn(properties):
                clusters.await_yarn(spark)
        except Exception as error:
            said = sentence(error)  # while there is a JVM: it holds the texts of Java's errors
            _forget_gateway()
            raise SparkError(f"Spark did not start with {properties['spark.master']}: {said}") from None
        try:
            yield spark
        except Exception as error:
            with suppress(Py4JError, OSError):  # the JVM is gone
                keep_text(error)
            raise
        finally:
            with suppress(Py4JError, OSError):  # the JVM is gone
                _end_workers(spark)
            spark.stop()
            _forget_gateway()


def _end_workers(spark: SparkSession) -> None:
    """End this machine's idle Python workers; Spark would do it later and log more.

    It closes their connections first. On a busy machine some then live long enough to print a traceback about that.
    """
    context = spark.sparkContext
    if context._jsc is None or context._jvm is None:  # it was stopped already
        return
    if context.statusTracker().getActiveJobsIds() or spark.streams.active:
        return
    java = context._jvm.java
    daemons = java.lang.ProcessHandle.current().children().toList()  # each ends the workers that it has forked
    for daemon in daemons:
        daemon.destroy()
    for daemon in daemons:
        daemon.onExit().get(WORKERS_END_TIMEOUT, java.util.concurrent.TimeUnit.SECONDS)


def _local(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session on this machine alone, where Spark refuses some that are meant for a cluster."""
    kept = {name: value for name, value in properties.items() if not name.startswith(CLUSTERS)}
    return {**kept, "spark.master": "local[1]", "spark.pyspark.python": sys.executable}


def _properties(options: SparkOptions) -> dict[str, str]:
    return {
        "spark.app.name": "capture",
        "spark.master": options.master,
        "spark.driver.memory": options.driver_memory,
        "spark.scheduler.mode": "FAIR",  # several groups side by side, each a job of one task
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(NESTED_BATCH_ROWS if options.queries else ARROW_BATCH_ROWS),
        **(ENCRYPTED if options.encrypted else {}),
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # a damaged block must not become a valid file
        **(read_properties(options.properties_file) if options.properties_file else {}),
        **options.properties,
    }


def _forget_gateway() -> None:
    """Make pyspark forget its gateway, which it would keep; a later session has its own."""
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
