"""What Spark on YARN needs of us: an end where its manager can't be reached, and executors that come."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from capture.spark.arrival import AT_ONCE, await_executors

PLACES = {
    **AT_ONCE,
    "spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": "20000",
    "spark.hadoop.yarn.resourcemanager.connect.retry-interval.ms": "5000",
}
"""Settings, unless others are given. Where the manager can't be reached, that is said after a minute; by default a
quarter of an hour goes by."""

EXECUTORS_TIMEOUT = 600.0
"""Seconds in which one must have come, as on Kubernetes."""


def is_master(properties: Mapping[str, str]) -> bool:
    """Whether `spark.master` means YARN."""
    return properties.get("spark.master") == "yarn"


def settle(spark: SparkSession) -> None:
    """Wait until executors are there. SparkError when none has come, or all have failed."""
    await_executors(spark, EXECUTORS_TIMEOUT, lambda: "YARN's page of the application says what it waits for")
