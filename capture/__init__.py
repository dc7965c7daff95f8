"""Continuous capture of JetStream streams: every message in a file, none missing, compacted on Spark."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # `X as X` exports a name
    from capture.errors import (
        CaptureError as CaptureError,
        ConfigError as ConfigError,
        Fenced as Fenced,
        ManifestError as ManifestError,
        SparkError as SparkError,
        StoreError as StoreError,
    )
    from capture.reading.read import read as read, read_batches as read_batches
    from capture.restoring.restore import restore as restore
else:  # the same names, each imported when it is first used (PEP 562)
    _HOMES = {
        "capture.errors": ["CaptureError", "ConfigError", "Fenced", "ManifestError", "SparkError", "StoreError"],
        "capture.reading.read": ["read", "read_batches"],
        "capture.restoring.restore": ["restore"],
    }
    _HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
    __all__ = sorted(_HOME_OF)

    def __getattr__(name):
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found

    def __dir__():
        return sorted({*globals(), *__all__})
