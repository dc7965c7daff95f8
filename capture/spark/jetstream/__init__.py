"""The Spark data source `jetstream`."""

from capture.spark.jetstream.data_source import DefaultSource

__all__ = ["DefaultSource"]
