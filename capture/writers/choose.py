from __future__ import annotations

from capture.errors import ConfigError
from capture.writers.contract import Writer
from capture.writers.ndjson import NdjsonWriter
from capture.writers.parquet import ParquetWriter

WRITERS: dict[str, type[Writer]] = {"parquet": ParquetWriter, "ndjson": NdjsonWriter}


def writer(name: str) -> Writer:
    """Return the writer of this name. ConfigError, with the known names, if there is none."""
    if name not in WRITERS:
        raise ConfigError(f"there is no writer {name!r}; the known ones are {', '.join(WRITERS)}")
    return WRITERS[name]()
