"""The entry of a table file in an Iceberg manifest: its place, its partition, and the bounds of its columns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatsAggregator
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from capture.archive.manifest import Stored, is_block
from capture.archive.sequences import Sequences
from capture.errors import CompactionError
from capture.formats.envelope import SCHEMA
from capture.iceberg.position_deletes import find_masked
from capture.iceberg.shapes import ARCHIVE, OWN_PARTITION, Shape
from capture.maintenance.merge.schema_evolution import add_block
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty.wire.background import map_concurrently

TAIL = 64 * 1024
"""Bytes at the end of a file that are read first: most footers are shorter."""
MAGIC = b"PAR1"
SEQUENCE = "sequence"
LONGEST_BOUND = 32
"""Characters in the bounds of a text: enough for most subjects."""

_BOUNDED = (
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    StringType,
    DateType,
    TimestampType,
    TimestamptzType,
)


async def read_footer(store: Store, one: Stored) -> pq.FileMetaData:
    """Return the footer of a table file. Raises CompactionError if it has none, or not the recorded number of rows."""
    tail = await store.get_range(one.path, max(0, one.bytes - TAIL), TAIL)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if tail[-4:] != MAGIC or length > one.bytes:
        raise CompactionError(f"{one.path} has no Parquet footer: it can't be in the table; run: capture verify --deep")
    if length > len(tail):
        tail = await store.get_range(one.path, one.bytes - length, length)
    try:
        footer = pq.read_metadata(pa.BufferReader(MAGIC + tail[-length:]))
    except (pa.ArrowException, OSError) as error:
        raise CompactionError(f"the Parquet footer of {one.path} can't be read: {error}") from error
    if footer.num_rows != one.count:
        raise CompactionError(f"{one.path} has {footer.num_rows} rows by its footer, its record says {one.count}")
    return footer


@dataclass(frozen=True)
class Facts:
    """What a commit reads of a file: its footer, and the positions of the rows that it masks."""

    footer: pq.FileMetaData
    masked: Sequence[int] = ()


async def read_facts(store: Store, one: Stored, footer: pq.FileMetaData | None = None) -> Facts:
    """Return the facts of a file; of a block, all rows are masked but one for each sequence in its record.

    CompactionError as `read_footer`, or if it has no row for a sequence in its record. NotStoredError; StoreError.
    """
    footer = footer or await read_footer(store, one)
    if not is_block(one.path) or len(shown := Sequences.from_bytes(one.sequences)) == one.count:
        return Facts(footer)
    try:
        return Facts(footer, find_masked(await _read_sequences(store, one, footer), shown))
    except CompactionError as error:
        raise CompactionError(f"the rows of {one.path} are not those of its record: {error}") from error


async def _read_sequences(store: Store, one: Stored, footer: pq.FileMetaData) -> list[int]:
    """Return the sequence of each row: the exact set does not say in which order they are, or which one is repeated.

    Reads only this column of the file. CompactionError if it can't be read.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    data = bytearray(one.bytes)  # zeros, except for that column

    async def read(column: Any) -> None:
        start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        end = start + column.total_compressed_size
        if not 0 <= start < end <= one.bytes:
            raise CompactionError(f"its footer names bytes {start} to {end}, and it has {one.bytes}")
        data[start:end] = await store.get_range(one.path, start, end - start)

    def decode() -> list[int]:
        file = pq.ParquetFile(pa.BufferReader(data), metadata=footer)
        rows: list[int] = file.read([SEQUENCE], use_threads=False)[SEQUENCE].to_pylist()
        return rows

    wanted = [column for column in columns if column.path_in_schema == SEQUENCE]
    await map_concurrently(wanted, read, at_once=REQUESTS_AT_ONCE)
    try:
        return await asyncio.to_thread(decode)
    except (pa.ArrowException, OSError, KeyError) as error:  # pyarrow's error about a damaged page is an OSError
        raise CompactionError(f"its sequences can't be read: {error}") from error


def fit(footer: pq.FileMetaData, columns: pa.Schema) -> pa.Schema | None:
    """Return these typed columns of the table with those of a block; None if one has another type. Pure.

    The table gets new columns, and widens those that it has, as a merge would do. Engines could not read a column that
    is not the table's, or would read another type.
    """
    found = footer.schema.to_arrow_schema()
    wider = columns if {*found.names} <= {*SCHEMA.names, *columns.names} else None
    for typed in (wider, add_block(columns, found)):
        if typed is not None:
            known = {field.name: field.type for field in (*SCHEMA, *typed)}
            if all(known.get(field.name) == field.type for field in found):
                return typed
    return None


def data_file(
    location: str,
    one: Stored,
    footer: pq.FileMetaData,
    schema: Schema,
    shape: Shape = ARCHIVE,
    types: StructType = OWN_PARTITION,
) -> DataFile:
    """Return the manifest's entry of this table file, or of this block, at `location`. Pure.

    CompactionError if it is in no partition of these types.
    """
    if (partition := shape.place(one, types)) is None:
        raise CompactionError(f"{one.path} is in the partition {one.key}, which is not of the table's types: {types}")
    columns = _Columns({field.name: field for field in schema.fields if field.field_type.is_primitive})
    starts = [columns.add(footer.row_group(number)) for number in range(footer.num_row_groups)]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=one.count,
        file_size_in_bytes=one.bytes,
        column_sizes=dict(columns.sizes),
        value_counts=dict(columns.values),
        null_value_counts={one: count for one, count in columns.nulls.items() if one not in columns.unknown},
        nan_value_counts={},
        lower_bounds={name: value for name, bounds in columns.items() if (value := bounds.min_as_bytes()) is not None},
        upper_bounds={name: value for name, bounds in columns.items() if (value := bounds.max_as_bytes()) is not None},
        key_metadata=None,
        split_offsets=starts,
        equality_ids=None,
        sort_order_id=shape.find_order(one),
    )


class _Columns:
    """The statistics of columns over all row groups, by field id. `unknown`: some row group has none of the column."""

    def __init__(self, fields: dict[str, NestedField]) -> None:
        self._fields = fields
        self._bounds: dict[int, StatsAggregator] = {}
        self.sizes: Counter[int] = Counter()
        self.values: Counter[int] = Counter()
        self.nulls: Counter[int] = Counter()
        self.unknown: set[int] = set()

    def add(self, group: Any) -> int:
        """Add a row group. Return its offset in the file."""
        for column in (group.column(number) for number in range(group.num_columns)):
            if field := self._fields.get(column.path_in_schema):
                self._add(field, column)
        first = group.column(0)
        return int(first.dictionary_page_offset if first.has_dictionary_page else first.data_page_offset)

    def items(self) -> Iterator[tuple[int, StatsAggregator]]:
        """Yield the bounds of each column that has bounds in every row group."""
        return ((one, bounds) for one, bounds in self._bounds.items() if one not in self.unknown)

    def _add(self, field: NestedField, column: Any) -> None:
        one = field.field_id
        self.sizes[one] += column.total_compressed_size
        self.values[one] += column.num_values
        if not column.is_stats_set or not column.statistics.has_null_count:
            self.unknown.add(one)
            return
        self.nulls[one] += column.statistics.null_count
        if isinstance(field.field_type, _BOUNDED) and column.statistics.has_min_max:
            longest = LONGEST_BOUND if isinstance(field.field_type, StringType) else None
            bounds = self._bounds.setdefault(one, StatsAggregator(field.field_type, column.physical_type, longest))
            bounds.update_min(column.statistics.min)
            bounds.update_max(column.statistics.max)
