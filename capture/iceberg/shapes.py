"""The two kinds of tables, and what differs between them: an archive's, and those of pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final, Protocol

import msgspec
import pyarrow.parquet as pq
from pyiceberg.expressions.literals import literal
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from capture.archive.iceberg_state import Layout
from capture.archive.manifest import Stored, is_block
from capture.iceberg import columns, derived_columns

OWN_PARTITION: Final = columns.PARTITIONS.partition_type(columns.FIRST)
"""The partitions of an archive's table."""

_DIGITS = Context(prec=60)


class Shape(Protocol):
    """The columns, partitions and order of rows of a table."""

    def new_metadata(self, location: str) -> TableMetadata:
        """Return the metadata of a table without snapshots."""
        ...

    def evolve(self, metadata: TableMetadata, files: FileIO) -> TableMetadata:
        """Return the metadata with the table's columns and partitions of today. Columns that remain keep their ids."""
        ...

    def cover(self, metadata: TableMetadata, footers: Iterable[pq.FileMetaData]) -> TableMetadata:
        """Return the metadata with what readers need to read the files with these footers."""
        ...

    def renames(self, before: TableMetadata, after: TableMetadata) -> bool:
        """Return whether readers would misread earlier snapshots with the metadata `after`."""
        ...

    def place(self, one: Stored, partition: StructType) -> Record | None:
        """Return the partition of a file, as Iceberg has its values; None if they are not of these types."""
        ...

    def find_order(self, one: Stored) -> int | None:
        """Return the id of the order of a file's rows; None if it is not known."""
        ...


@dataclass(frozen=True)
class ArchiveShape:
    """The shape of an archive's table: the envelope and typed columns, by key and interval, in the stream's order."""

    columns: str = ""

    def new_metadata(self, location: str) -> TableMetadata:
        """Return the metadata of a table without snapshots."""
        return columns.new_metadata(location)

    def evolve(self, metadata: TableMetadata, files: FileIO) -> TableMetadata:
        """Return the metadata with all columns; they are only added or widened."""
        return columns.evolve(metadata, self.columns, files)

    def cover(self, metadata: TableMetadata, footers: Iterable[pq.FileMetaData]) -> TableMetadata:
        """Return the metadata: files have no other columns than the table."""
        return metadata

    def renames(self, before: TableMetadata, after: TableMetadata) -> bool:
        """Return False: a name stays that of its column."""
        return False

    def place(self, one: Stored, partition: StructType = OWN_PARTITION) -> Record:
        """Return the key and the interval of a file."""
        return Record(one.key, one.interval * 1_000_000)

    def find_order(self, one: Stored) -> int | None:
        """Return the order of table files; a block may hold messages in another order."""
        return None if is_block(one.path) else columns.ORDER.order_id


@dataclass(frozen=True)
class DerivedShape:
    """The shape of a pipeline's table: its own columns, by the values of some, in no order."""

    columns: str
    partition: tuple[str, ...]

    def new_metadata(self, location: str) -> TableMetadata:
        """Return the metadata of a table without snapshots."""
        return derived_columns.new_metadata(location, self.columns, self.partition)

    def evolve(self, metadata: TableMetadata, files: FileIO) -> TableMetadata:
        """Return the metadata with exactly the table's columns and its partitions."""
        return derived_columns.evolve(metadata, self.columns, self.partition)

    def cover(self, metadata: TableMetadata, footers: Iterable[pq.FileMetaData]) -> TableMetadata:
        """Return the metadata with names for the columns that only files have."""
        return derived_columns.cover(metadata, (one.schema.to_arrow_schema() for one in footers))

    def renames(self, before: TableMetadata, after: TableMetadata) -> bool:
        """Return whether a name now belongs to another column, or files are in partitions of a deleted one."""
        return derived_columns.renames(before, after)

    def place(self, one: Stored, partition: StructType) -> Record | None:
        """Return the partition of a file, which is in its record's key."""
        *cells, _ = msgspec.json.decode(one.key, type=list[Any])
        kinds = [field.field_type for field in partition.fields]
        try:
            return Record(*(_read_cell(cell, kind) for cell, kind in zip(cells, kinds, strict=True)))
        except (ValueError, ArithmeticError):
            return None

    def find_order(self, one: Stored) -> int | None:
        """Return None: rows have no order."""
        return None


ARCHIVE: Final = ArchiveShape()


def shape_of(layout: Layout) -> Shape:
    """Return the shape of a table with this layout."""
    if layout.partition is None:
        return ArchiveShape(layout.columns)
    return DerivedShape(layout.columns, layout.partition)


def partition_types(metadata: TableMetadata) -> Mapping[int, StructType]:
    """Return the types of partitions by the number of the spec, for those specs whose columns the table has."""
    return {one.spec_id: one.partition_type(metadata.schema()) for one in derived_columns.list_specs(metadata)}


def _read_cell(cell: Any, kind: IcebergType) -> Any:
    """Return Iceberg's value of a cell of a partition, as JSON has it. ValueError; ArithmeticError."""
    match kind, cell:
        case _, None:
            return None
        case (StringType(), str()) | (BooleanType(), bool()):
            return cell
        case (IntegerType() | LongType(), int()) if not isinstance(cell, bool):
            return cell
        case ((DateType() | TimestampType() | TimestamptzType()), str()):
            return literal(cell).to(kind).value
        case DecimalType(), str() | int():
            value = Decimal(cell)
            exact = value.quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)
            if exact != value:
                raise ValueError(f"{cell} is not a {kind}")
            return exact
    raise ValueError(f"{cell!r} is not a {kind}")
