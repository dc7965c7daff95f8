"""Reads the rows of a pipeline's files as far as their record and their order say something about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.sequences import Sequences
from capture.errors import FormatError
from capture.pipelines.upkeep import SEQUENCE


@dataclass(frozen=True)
class FileRows:
    """A file's number of rows, and its columns. `orders` are the values of SEQUENCE; None if the file has none.

    `unordered` rows have none in that column. `keys` are the rows' keys, if they were asked for.
    """

    rows: int
    columns: Sequence[str]
    orders: Sequences | None
    keys: pa.Table | None
    unordered: int = 0


def read_file_rows(file: IO[bytes], key: Sequence[str]) -> FileRows:
    """Return what is to know of a Parquet file's rows. FormatError if it can't be read, or is without a key column."""
    try:
        opened = pq.ParquetFile(file)
        columns = opened.schema_arrow.names
        known = {one.lower(): one for one in columns}  # Spark does not tell upper case from lower case
        if missing := [one for one in key if one.lower() not in known]:
            raise FormatError(f"it has no column {missing[0]}, which is in the key")
        wanted = [known[one.lower()] for one in key]
        orders, unordered = None, 0
        if SEQUENCE in columns:
            read = opened.read(columns=[SEQUENCE]).column(0)
            unordered = read.null_count
            orders = Sequences.union_of(
                Sequences.from_iterable(chunk.drop_null().to_numpy(zero_copy_only=False)) for chunk in read.chunks
            )
        keys = opened.read(columns=wanted).select(wanted) if key else None
        return FileRows(opened.metadata.num_rows, columns, orders, keys, unordered)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"it is not readable as Parquet: {error}") from error


def count_repeated(keys: Sequence[pa.Table]) -> int:
    """Return how many of these rows have the key of another one before them."""
    together = pa.concat_tables(keys, promote_options="permissive")
    return int(together.num_rows - together.group_by(together.column_names).aggregate([]).num_rows)
