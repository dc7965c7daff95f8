"""Continuous capture of JetStream streams: every message in a file, none missing, compacted on Spark."""

from capture.errors import CaptureError, ConfigError, Fenced, ManifestError, SparkError, StoreError
from capture.reading.read import read, read_batches
from capture.restoring.restore import restore

__all__ = [
    "CaptureError",
    "ConfigError",
    "Fenced",
    "ManifestError",
    "SparkError",
    "StoreError",
    "read",
    "read_batches",
    "restore",
]
