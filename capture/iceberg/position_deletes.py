"""Position deletes: a small Parquet file masks rows of one data file, in every snapshot that has both.

A data file and the deletes of its repeated rows are added by the same snapshot, so no reader sees these rows twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from capture.archive.sequences import Sequences
from capture.errors import CompactionError
from capture.iceberg.memory_catalog import MemoryFiles

PATH, POSITION = 2147483546, 2147483545
"""The field ids that Iceberg reserves for the columns of such a file."""

_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION)}),
    ]
)


def find_masked(rows: Iterable[int], shown: Sequences) -> list[int]:
    """Return the positions of the rows to mask, so that the other rows have each sequence of `shown` once; pure.

    `rows` are the sequences of a file's rows, in its order. Of equal ones, the first stays. CompactionError if the file
    has none for one of `shown`.
    """
    left = set(shown)
    masked: list[int] = []
    for position, sequence in enumerate(rows):
        if sequence in left:
            left.remove(sequence)
        else:
            masked.append(position)
    if left:
        raise CompactionError(f"no row has sequence {min(left)}")
    return masked


def write_deletes(data_file: str, positions: Sequence[int]) -> bytes:
    """Return a file that masks these rows of the data file at this location, which its entry has byte for byte.

    Positions are counted from 0 over the whole data file; here they are sorted, and each is there once.
    """
    rows = sorted(set(positions))
    file = io.BytesIO()
    pq.write_table(pa.table([pa.array([data_file] * len(rows)), pa.array(rows, pa.int64())], schema=_SCHEMA), file)
    return file.getvalue()


def delete_entry(location: str, data: bytes, masked: DataFile) -> DataFile:
    """Return the manifest's entry of such a file, whose content is `data`.

    It has the partition of the data file that it masks, and equal bounds on its location: so readers open it only for
    that data file, and Polars reads it without pyiceberg.
    """
    bound = {PATH: masked.file_path.encode()}
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=masked.partition,
        record_count=pq.read_metadata(pa.BufferReader(data)).num_rows,
        file_size_in_bytes=len(data),
        lower_bounds=bound,
        upper_bounds=bound,
    )


def mask(files: MemoryFiles, location: str, entry: DataFile, positions: Sequence[int]) -> DataFile | None:
    """Write the file that masks these rows of the data file with this entry. Return its entry; None without rows."""
    if not positions:
        return None
    data = write_deletes(entry.file_path, positions)
    files.write(location, data)
    return delete_entry(location, data, entry)


def masked_location(entry: DataFile) -> str:
    """Return the location of the data file that an entry is about: of a delete file, the one that it masks."""
    if entry.content == DataFileContent.DATA:
        return entry.file_path
    return entry.lower_bounds[PATH].decode()
