from capture.spark.jetstream.source import DefaultSource

__all__ = ["DefaultSource"]
