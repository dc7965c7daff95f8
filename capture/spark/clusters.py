"""Sessions on a cluster: waits for executors, and has the settings that YARN needs."""

import time
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from capture.errors import SparkError

AT_ONCE = {"spark.scheduler.minRegisteredResourcesRatio": "0"}
"""With this setting Spark itself does not wait for executors: it would give no reason, and continue without them."""

OTHERS_TIMEOUT = 30.0
"""Seconds to wait for all executors; after that the work begins with those that are ready."""

YARN = {
    **AT_ONCE,
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "20000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "5000",
}
"""Settings for YARN, unless others are given. A manager that can't be reached is reported after a minute; the default
is a quarter of an hour."""

YARN_TIMEOUT = 600.0
"""Seconds in which at least one executor must register, as on Kubernetes."""

POLL = 1.0  # seconds


def await_executors(spark: SparkSession, within: float, why: Callable[[], str]) -> None:
    """Wait for `spark.executor.instances` executors; without executors, jobs would wait without end.

    SparkError if none has registered `within` seconds, with the last reason of `why`, or if Spark stopped because all
    failed. With dynamic allocation it does not wait.
    """
    conf, context = spark.sparkContext.getConf(), spark.sparkContext._jsc.sc()
    if conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return
    backend, wanted = context.schedulerBackend(), int(conf.get("spark.executor.instances", "2") or 2)
    began, reason = time.monotonic(), "the cluster does not say why"
    while not context.isStopped():
        here, waited = backend.getExecutorIds().size(), time.monotonic() - began
        if here >= wanted or (here and waited > OTHERS_TIMEOUT):
            return
        reason = why() or reason
        if waited > within:
            raise SparkError(f"no executor registered within {within:g} s: {reason}")
        time.sleep(POLL)
    raise SparkError(
        "all executors have failed; Spark's log and theirs say why. One with another secret or certificate is refused,"
        " for example"
    )


def is_yarn(properties: Mapping[str, str]) -> bool:
    """Return whether `spark.master` means YARN."""
    return properties.get("spark.master") == "yarn"


def await_yarn(spark: SparkSession) -> None:
    """Wait until executors are ready. SparkError if none has registered, or all have failed."""
    await_executors(spark, YARN_TIMEOUT, lambda: "YARN's page of the application shows what it waits for")
