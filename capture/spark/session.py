import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from capture.errors import SparkError
from capture.spark import class_data, gateway
from capture.spark.exercise import exercise
from capture.spark.failure import sentence
from capture.spark.java import Java, choose
from capture.spark.options import SparkOptions
from capture.spark.properties import read_properties

ARROW_BATCH_ROWS = 65_536
"""Of rows that go to Python: ids and sequences alone. A limit in bytes makes Spark look at the whole batch at each row,
where a column is nested: 60 µs a message with headers."""

ENCRYPTS = "spark.io.encryption.enabled"
"""The setting that says whether what lies on the disks of driver and executors is encrypted."""

QUICKLY = "-XX:TieredStopAtLevel=1"
"""Java compiles what it runs quickly rather than well."""

ENCRYPTED = {ENCRYPTS: "true", "spark.io.encryption.keySizeBits": "256"}


@contextmanager
def start(options: SparkOptions) -> Iterator[SparkSession]:
    """A Spark session in a JVM of its own; both end with the block. One at a time in a process.

    The first one of this Java and Spark is preceded by a short one, of which the archive of classes is made, unless
    `options.class_data` says not to. SparkError when no Java is found, or JVM or cluster do not come up.
    """
    java, properties = choose(options.java), _properties(options)
    check_master(properties["spark.master"])

    def record(flags: list[str]) -> None:
        local = {**properties, "spark.master": "local[1]"}
        with _session(java, local, options.driver_memory, flags, end_within=class_data.RECORD_TIMEOUT) as spark:
            exercise(spark)

    flags = class_data.flags(java, record) if options.class_data else []
    if not options.queries:
        flags = [*flags, QUICKLY]
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
        try:
            spark = SparkSession.builder.getOrCreate()
        except Exception as error:
            said = sentence(error)  # while there is a JVM: errors of Java's are asked for there
            _forget_gateway()
            raise SparkError(f"Spark did not start with {properties['spark.master']}: {said}") from None
        try:
            yield spark
        finally:
            spark.stop()
            _forget_gateway()


def check_master(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """SparkError if Spark can't find the cluster that `master` means; it would say so in its log alone."""
    if master == "yarn" and not (environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR")):
        raise SparkError(
            "spark.master is yarn, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set: one of them names the folder"
            " of the cluster's yarn-site.xml and core-site.xml"
        )
    if master.startswith("sc://"):
        raise SparkError(
            f"spark.master is {master}: the compaction needs a session of its own, whose jobs end with its term, and"
            " Spark Connect has none; the data source jetstream works there"
        )


def _properties(options: SparkOptions) -> dict[str, str]:
    return {
        "spark.app.name": "capture",
        "spark.master": options.master,
        "spark.scheduler.mode": "FAIR",  # several groups side by side, each a job of one task
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
        **(ENCRYPTED if options.encrypted else {}),
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # a damaged block must not become a sound table
        **(read_properties(options.properties_file) if options.properties_file else {}),
        **options.properties,
    }


def _forget_gateway() -> None:
    """pyspark keeps the first gateway for ever; a session started later has its own."""
    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
