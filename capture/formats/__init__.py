"""Formats of stored blocks: Parquet, NDJSON, CSV, raw, and your own."""

from capture.formats.choose import read_object, reader, writer
from capture.formats.contract import Format, check_writer
from capture.ingest.block import SealedBlock, Writer

__all__ = ["Format", "SealedBlock", "Writer", "check_writer", "read_object", "reader", "writer"]
