"""The entry of a table file in an Iceberg manifest: its place, its partition, and the bounds of its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import StatsAggregator
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from capture.archive.manifest import Stored, is_block
from capture.errors import CompactionError
from capture.formats.envelope import SCHEMA
from capture.iceberg.columns import ORDER
from capture.stores.contract import Store

TAIL = 64 * 1024
"""Bytes at the end of a file that are read first: most footers are shorter."""
MAGIC = b"PAR1"
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
    except pa.ArrowException as error:
        raise CompactionError(f"the Parquet footer of {one.path} can't be read: {error}") from error
    if footer.num_rows != one.count:
        raise CompactionError(f"{one.path} has {footer.num_rows} rows by its footer, its record says {one.count}")
    return footer


def find_unfit(footer: pq.FileMetaData, columns: pa.Schema) -> str | None:
    """Return the name of a column of a block that is not one of the envelope or of these; None: it fits. Pure.

    Engines could not read such a column, or would read another type.
    """
    known = {field.name: field.type for field in (*SCHEMA, *columns)}
    found = footer.schema.to_arrow_schema()
    return next((field.name for field in found if known.get(field.name) != field.type), None)


def data_file(location: str, one: Stored, footer: pq.FileMetaData, schema: Schema) -> DataFile:
    """Return the manifest's entry of this table file, or of this block, at `location`. Pure."""
    columns = _Columns({field.name: field for field in schema.fields if field.field_type.is_primitive})
    starts = [columns.add(footer.row_group(number)) for number in range(footer.num_row_groups)]
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(one.key, one.interval * 1_000_000),
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
        sort_order_id=None if is_block(one.path) else ORDER.order_id,  # a block may hold messages in another order
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
