"""The columns of a table whose rows may all be computed again: they come, widen, go, and change their types.

Columns keep their ids by Iceberg's rules: a column that is gone is deleted; one whose type changed to one that Iceberg
can't promote it to is another column, with an id of its own. Files have no field ids: the table's name mapping does
that. It also names columns that are in files and not in the table, as some readers refuse a name without an id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count

import pyarrow as pa
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from capture.errors import CompactionError
from capture.iceberg.columns import PROPERTIES
from capture.maintenance.merge.schema_evolution import read_columns

MAPPING = "schema.name-mapping.default"


def new_metadata(location: str, columns: str, partition: Sequence[str]) -> TableMetadata:
    """Return the metadata of a table without snapshots: format version 2, partitioned by the values of columns."""
    schema = Schema(*_read_fields(columns, count(1)))
    fields = (
        PartitionField(source, PARTITION_FIELD_ID_START + place, IdentityTransform(), name)
        for place, (source, name) in enumerate(_find_sources(schema, partition))
    )
    metadata = new_table_metadata(schema, PartitionSpec(*fields), UNSORTED_SORT_ORDER, location, dict(PROPERTIES))
    return _set_mapping(metadata, _name(metadata.schema().as_struct()))


def evolve(metadata: TableMetadata, columns: str, partition: Sequence[str]) -> TableMetadata:
    """Return the metadata with exactly these columns, in this order, and partitioned by these."""
    fresh = count(metadata.last_column_id + 1)
    fields = _continue_fields(metadata.schema().as_struct(), StructType(*_read_fields(columns, fresh)))
    schema, updates = _change_schema(metadata, fields)
    updates += _change_partition(metadata, schema, partition)
    changed = update_table_metadata(metadata, tuple(updates)) if updates else metadata
    return _set_mapping(changed, _join(_name(changed.schema().as_struct()), _mapping(changed)))


def cover(metadata: TableMetadata, files: Iterable[pa.Schema]) -> TableMetadata:
    """Return the metadata with a field id for each name in these files, also of columns that the table does not have.

    Such an id belongs to no column, as that of a deleted one.
    """
    mapping, fresh = _mapping(metadata), count(metadata.last_column_id + 1)
    for one in dict.fromkeys(files):
        mapping = _join(mapping, _name_all(one, fresh))
    return _set_mapping(metadata, mapping)


def renames(before: TableMetadata, after: TableMetadata) -> bool:
    """Return whether the files of earlier snapshots would be misread with the metadata `after`.

    So it is if a name now belongs to another column, or if files are partitioned by a column that was deleted.
    """
    return _differ(_mapping(before), _mapping(after)) or len(after.partition_specs) > len(list_specs(after))


def name_as(metadata: TableMetadata, covered: TableMetadata) -> TableMetadata:
    """Return the metadata with the names and ids of another state of it (`cover`)."""
    return metadata.model_copy(update={"properties": covered.properties, "last_column_id": covered.last_column_id})


def without_unknown_specs(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata without the partition specs of deleted columns, which some readers refuse."""
    return metadata.model_copy(update={"partition_specs": list_specs(metadata)})


def list_specs(metadata: TableMetadata) -> list[PartitionSpec]:
    """Return the partition specs whose columns the table has."""
    known = {field.field_id for field in metadata.schema().fields}
    return [one for one in metadata.partition_specs if all(field.source_id in known for field in one.fields)]


# --- columns ---------------------------------------------------------------------------------------------------------


def _read_fields(columns: str, fresh: Iterator[int]) -> list[NestedField]:
    """Return the columns with new ids. All of them may be null, and so may the fields within them.

    CompactionError if Iceberg does not have such a type, or can't tell two names apart.
    """
    schema = pa.schema([field.remove_metadata() for field in read_columns(columns)])
    try:
        struct = pyarrow_to_schema(schema, NameMapping(_name_all(schema, fresh))).as_struct()
    except (ValueError, TypeError, UnsupportedPyArrowTypeException) as error:
        raise CompactionError(f"an Iceberg table can't have these columns: {error}") from error
    return _continue_fields(struct, struct)


def _continue_fields(known: StructType, wanted: StructType) -> list[NestedField]:
    """Return the wanted fields; those that are continued have the ids that they had, the others are new."""
    fields = []
    for one in wanted.fields:
        before = known.field_by_name(one.name)
        kind = None if before is None else _promote(before.field_type, one.field_type)
        if before is None or kind is None:
            fields.append(NestedField(one.field_id, one.name, one.field_type, required=False))
        else:
            fields.append(NestedField(before.field_id, one.name, kind, required=False))
    return fields


def _promote(known: IcebergType, wanted: IcebergType) -> IcebergType | None:
    """Return the wanted type with the ids of the known one; None if a column can't change from the one to the other."""
    match known, wanted:
        case StructType(), StructType():
            return StructType(*_continue_fields(known, wanted))
        case ListType(), ListType():
            element = _promote(known.element_type, wanted.element_type)
            return None if element is None else ListType(known.element_id, element, element_required=False)
        case MapType(), MapType():
            value = _promote(known.value_type, wanted.value_type)
            if value is None or _promote(known.key_type, wanted.key_type) != known.key_type:
                return None
            return MapType(known.key_id, known.key_type, known.value_id, value, value_required=False)
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return wanted
        case DecimalType(), DecimalType() if known.scale == wanted.scale and known.precision <= wanted.precision:
            return wanted
    return wanted if known == wanted else None


def _change_schema(metadata: TableMetadata, fields: Sequence[NestedField]) -> tuple[Schema, list[TableUpdate]]:
    """Return the schema with these columns, one that the table has had if there is one, and how to set it."""
    struct = StructType(*fields)
    if struct == metadata.schema().as_struct():
        return metadata.schema(), []
    schema, updates = next((one for one in metadata.schemas if one.as_struct() == struct), None), list[TableUpdate]()
    if schema is None:
        schema = Schema(*fields, schema_id=1 + max(one.schema_id for one in metadata.schemas))
        updates.append(AddSchemaUpdate(schema=schema))
    return schema, [*updates, SetCurrentSchemaUpdate.model_validate({"schema-id": schema.schema_id})]


# --- partitions ------------------------------------------------------------------------------------------------------


def _find_sources(schema: Schema, partition: Sequence[str]) -> list[tuple[int, str]]:
    """Return the ids and names of the columns that separate files. CompactionError if there is no such column."""
    known = {one.name: one.field_id for one in schema.fields}
    if missing := [name for name in partition if name not in known]:
        raise CompactionError(
            f"{missing[0]} is to separate files, and the table has no such column: {', '.join(known)}"
        )
    return [(known[name], name) for name in partition]


def _change_partition(metadata: TableMetadata, schema: Schema, partition: Sequence[str]) -> list[TableUpdate]:
    """Return how to set this partition spec. A field that an earlier one has keeps its id."""
    known = {(one.source_id, one.name): one.field_id for spec in metadata.partition_specs for one in spec.fields}
    fresh = count(1 + (metadata.last_partition_id or PARTITION_FIELD_ID_START - 1))
    fields = tuple(
        PartitionField(source, known.get((source, name)) or next(fresh), IdentityTransform(), name)
        for source, name in _find_sources(schema, partition)
    )
    if metadata.spec().fields == fields:
        return []
    updates: list[TableUpdate] = []
    number = next((one.spec_id for one in metadata.partition_specs if one.fields == fields), None)
    if number is None:
        number = 1 + max(one.spec_id for one in metadata.partition_specs)
        updates.append(AddPartitionSpecUpdate(spec=PartitionSpec(*fields, spec_id=number)))
    return [*updates, SetDefaultSpecUpdate.model_validate({"spec-id": number})]


# --- the mapping of names --------------------------------------------------------------------------------------------


def _mapping(metadata: TableMetadata) -> list[MappedField]:
    mapping = metadata.name_mapping()
    return list(mapping) if mapping else []


def _set_mapping(metadata: TableMetadata, mapping: list[MappedField]) -> TableMetadata:
    """Return the metadata with this mapping. No column gets an id later that the mapping has."""
    properties = {**metadata.properties, MAPPING: NameMapping(mapping).model_dump_json()}
    last = max(metadata.last_column_id, *chain((0,), _list_ids(mapping)))
    return metadata.model_copy(update={"properties": properties, "last_column_id": last})


def _name(kind: IcebergType) -> list[MappedField]:
    """Return the mapping of a type's fields."""
    match kind:
        case StructType():
            return [_map(one.field_id, one.name, _name(one.field_type)) for one in kind.fields]
        case ListType():
            return [_map(kind.element_id, "element", _name(kind.element_type))]
        case MapType():
            key = _map(kind.key_id, "key", _name(kind.key_type))
            return [key, _map(kind.value_id, "value", _name(kind.value_type))]
    return []


def _name_all(fields: Iterable[pa.Field], fresh: Iterator[int]) -> list[MappedField]:
    """Return a mapping with new ids of these fields."""
    return [_map(next(fresh), one.name, _name_within(one.type, fresh)) for one in fields]


def _name_within(kind: pa.DataType, fresh: Iterator[int]) -> list[MappedField]:
    if pa.types.is_struct(kind):
        return _name_all(kind, fresh)
    if pa.types.is_map(kind):
        return _name_all([kind.key_field.with_name("key"), kind.item_field.with_name("value")], fresh)
    if pa.types.is_nested(kind):
        return _name_all([kind.value_field.with_name("element")], fresh)
    return []


def _map(number: int, name: str, fields: list[MappedField]) -> MappedField:
    return MappedField.model_validate({"field-id": number, "names": [name], "fields": fields})


def _join(first: Iterable[MappedField], second: Iterable[MappedField]) -> list[MappedField]:
    """Return the names of both; those of both with the ids of the first."""
    left = {one.names[0]: one for one in second}
    joined = []
    for one in first:
        other = left.pop(one.names[0], None)
        fields = one.fields if other is None else _join(one.fields, other.fields)
        joined.append(one.model_copy(update={"fields": fields}))
    return [*joined, *left.values()]


def _differ(before: Iterable[MappedField], after: Iterable[MappedField]) -> bool:
    """Return whether a name in both has another id."""
    known = {one.names[0]: one for one in after}
    return any(
        one.field_id != other.field_id or _differ(one.fields, other.fields)
        for one in before
        if (other := known.get(one.names[0])) is not None  # one without fields is false
    )


def _list_ids(mapping: Iterable[MappedField]) -> Iterator[int]:
    for one in mapping:
        yield one.field_id or 0
        yield from _list_ids(one.fields)
