"""The columns of an Iceberg table. It is partitioned and sorted as the archive's table files are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from capture.formats.envelope import SCHEMA
from capture.formats.schema import CONFLICTS
from capture.maintenance.merge.schema_evolution import read_columns

FIRST = Schema(
    NestedField(1, "stream", StringType()),
    NestedField(2, "key", StringType()),
    NestedField(3, "interval", TimestamptzType()),
    NestedField(4, "sequence", LongType()),
)
"""The first columns, with fixed ids: partitions and the order of rows refer to them."""
PARTITIONS = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "key"),
    PartitionField(3, 1001, IdentityTransform(), "interval"),
)
ORDER = SortOrder(SortField(source_id=4, transform=IdentityTransform()))

PROPERTIES = {"gc.enabled": "false"}  # engines must not delete files: the archive does that


def new_metadata(location: str) -> TableMetadata:
    """Return the metadata of a table without snapshots, format version 2."""
    return new_table_metadata(FIRST, PARTITIONS, ORDER, location, dict(PROPERTIES))


def evolve(metadata: TableMetadata, columns: str, files: FileIO) -> TableMetadata:
    """Return the metadata with all columns of the envelope, and the typed columns in `columns`.

    Columns keep their ids. They are only added or widened, as `Table.columns` does. Files have no field ids, so the
    table's properties map every column by its name.
    """
    past: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
    }
    present = metadata.model_copy(update=past)  # pyiceberg copies the metadata several times: it is large by its past
    return metadata if _evolve(present, columns, files) == present else _evolve(metadata, columns, files)


def _evolve(metadata: TableMetadata, columns: str, files: FileIO) -> TableMetadata:
    typed = read_columns(columns) if columns else pa.schema([])
    wanted = [*SCHEMA, *(field for field in typed if field.name != CONFLICTS)]
    if len(typed):
        wanted.append(pa.field(CONFLICTS, pa.list_(pa.string())))
    table = Table(("archive", "table"), metadata, "", files, NoopCatalog("archive"))
    transaction = Transaction(table)
    with transaction.update_schema() as update:
        update.union_by_name(pa.schema([field.with_nullable(True).remove_metadata() for field in wanted]))
    evolved_metadata = transaction.table_metadata
    mapping = {"schema.name-mapping.default": evolved_metadata.schema().name_mapping.model_dump_json()}
    if {**evolved_metadata.properties, **mapping} != evolved_metadata.properties:
        transaction.set_properties(mapping)
    return transaction.table_metadata
