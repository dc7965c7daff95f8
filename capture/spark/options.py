from collections.abc import Mapping, Sequence

import msgspec

MASTER = "local[2]"
DRIVER_MEMORY = "1g"
"""Of the JVM; a merge's rows are in its workers. Queries spill beyond it."""


class SparkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Spark is started.

    `java` is a Java home or a `java` executable; None looks for one (`capture.spark.java.choose`). `properties` are
    Spark's own settings and win over ours, `spark.master` too; they never appear on a command line, so secrets may
    stand there, or in `properties_file`, a file as `spark-submit` takes it, over which `properties` win.
    `queries` says that it answers queries: rows then go through the JVM, where Java's optimising compiler pays. A merge
    has none there, and without that compiler takes half the time to its first commit, and less memory.
    `encrypted` says that what lies on the disks of driver and executors is encrypted with a key of the session's own,
    unless `properties` say otherwise: SparkDriver sets it where there are keys.
    `environment` names variables that Spark's processes get besides those that they need: a query can read them.
    `class_data` keeps an archive of Spark's classes in the user's cache: a session then starts in half the time.
    """

    master: str = MASTER
    driver_memory: str = DRIVER_MEMORY
    java: str | None = None
    properties: Mapping[str, str] = {}
    properties_file: str = ""
    class_data: bool = True
    environment: Sequence[str] = ()
    queries: bool = False
    encrypted: bool = False

    def __repr__(self) -> str:
        return f"SparkOptions(master={self.master!r}, java={self.java!r}, properties={sorted(self.properties)})"
