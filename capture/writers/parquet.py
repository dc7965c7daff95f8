from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from capture.block import SealedBlock
from capture.writers.envelope import SCHEMA, VERSION, to_table

COMPRESSION_LEVEL = 1  # of zstd: the compaction writes the lasting file
REPETITIVE = ["stream", "subject", "error"]  # a dictionary pays here; elsewhere it is built and thrown away
SEARCHED = ["stream", "sequence", "time_ns", "subject", "message_id"]  # columns with minimum and maximum
COUNTING = {"sequence": "DELTA_BINARY_PACKED", "time_ns": "DELTA_BINARY_PACKED"}  # next to nothing where they rise


class ParquetWriter:
    """Parquet: zstd, checksums on its pages, a page index, and what the block is in the file's metadata."""

    suffix = ".parquet"
    format = "parquet"

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as a Parquet file."""
        sink = pa.BufferOutputStream()
        pq.write_table(
            to_table(block).replace_schema_metadata(_facts(block)),
            sink,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=REPETITIVE,
            column_encoding=COUNTING,
            write_statistics=SEARCHED,
            data_page_version="1.0",
            write_page_index=True,
            write_page_checksum=True,
        )
        return bytes(sink.getvalue())


def read_back(data: bytes) -> pa.Table:
    """Return the rows of a Parquet block as a table of SCHEMA; page checksums are verified."""
    return pq.read_table(pa.BufferReader(data), page_checksum_verification=True).select(SCHEMA.names).cast(SCHEMA)


def _facts(block: SealedBlock) -> dict[str, str]:
    return {
        "capture.version": str(VERSION),
        "capture.stream": block.stream,
        "capture.first": str(block.first),
        "capture.last": str(block.last),
        "capture.count": str(block.count),
    }
