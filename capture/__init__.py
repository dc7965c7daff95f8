"""Continuous capture of JetStream streams: every message in a file, none missing, compacted on Spark."""

from capture.errors import CaptureError, ConfigError, Fenced, ManifestError, SparkError, StoreError

__all__ = ["CaptureError", "ConfigError", "Fenced", "ManifestError", "SparkError", "StoreError"]
