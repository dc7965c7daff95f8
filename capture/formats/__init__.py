"""Formats of stored blocks: Parquet, NDJSON, CSV and raw."""

from capture.formats.choose import read_object, reader, writer
from capture.formats.contract import Format, check_format
from capture.ingest.block import Writer

__all__ = ["Format", "Writer", "check_format", "read_object", "reader", "writer"]
