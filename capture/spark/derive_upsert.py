"""Puts a few new rows into the files of their units, without Spark's rows: what a task reads and writes is Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from capture.pipelines.derivation import OutputFile, Unit
from capture.pipelines.upkeep import HIDDEN, SEQUENCE
from capture.spark.derive_store import cell
from capture.spark.derive_task import DEAD, NEW, UNIT, VIOLATED, Batches, TableFile, Writing, read_files, write_units

UNIT_BYTES = 32 << 20
"""A task holds the rows of a unit in memory: of files with so many bytes at most."""
_PLACE = f"{HIDDEN}place"


class Touched(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that a change is in, and the table's files of it."""

    unit: Unit
    files: list[TableFile] = []

    @property
    def bytes(self) -> int:
        """The bytes of its files."""
        return sum(one.bytes for one in self.files)


def list_touched(units: Sequence[Unit], files: Sequence[OutputFile]) -> list[Touched]:
    """Return these units with their files."""
    found: dict[str, list[TableFile]] = {one.to_text(): [] for one in units}
    for one in files:
        named = TableFile(path=one.path, bytes=one.bytes, sha256=one.sha256, dead=one.tombstones)
        found[one.unit.to_text()].append(named)
    return [Touched(unit=one, files=found[one.to_text()]) for one in units]


@dataclass(frozen=True)
class Upsert:
    """A change: new rows with NEW, DEAD and UNIT, and how files are written. Called in a task, with `Touched` as JSON.

    Of the rows with a key, among these and those of the unit's files, the one with the highest sequence is written.
    """

    writing: Writing
    change: pa.Table

    def __call__(self, packed: Batches) -> Batches:
        """Yield a `Fact` for each file of these units."""
        yield from write_units(self.writing, self._merge(packed))

    def _merge(self, packed: Batches) -> Iterator[pa.RecordBatch]:
        writing, change = self.writing, self.change.cast(_allow_nulls(self.change.schema))
        mine = self._split(change)
        descending = [(SEQUENCE, "descending"), (NEW, "descending")]
        order = [*((name, "ascending") for name in writing.key), *descending]
        for batch in packed:
            for text in batch["unit"].to_pylist():
                one = msgspec.json.decode(text, type=Touched)
                rows = pa.concat_tables([mine[one.unit.to_text()], *self._read(one, change.schema)])
                yield from rows.sort_by(order).combine_chunks().to_batches()

    def _read(self, one: Touched, wanted: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of the unit's files in the form of the change's."""
        if not one.files:
            return
        schema = pa.schema([*self.writing.columns, pa.field(DEAD, pa.bool_())])
        packed = pa.RecordBatch.from_pydict({"file": [msgspec.json.encode(file).decode() for file in one.files]})
        rows = pa.Table.from_batches(read_files(self.writing.store, schema, iter([packed])), schema)
        given = {UNIT: one.unit.bucket, NEW: False, VIOLATED: None}  # conditions are of new rows
        for name, value in given.items():
            if name in wanted.names:
                rows = rows.append_column(name, pa.repeat(pa.scalar(value, wanted.field(name).type), len(rows)))
        yield rows.select(wanted.names).cast(wanted)

    def _split(self, change: pa.Table) -> Mapping[str, pa.Table]:
        """Return the new rows of each unit."""
        names = [*self.writing.partition, UNIT]
        groups = change.select(names).append_column(_PLACE, pa.array(range(len(change)), pa.int64()))
        found = groups.group_by(names).aggregate([(_PLACE, "list")]).to_pylist()
        return {
            Unit(partition=[cell(one[name]) for name in self.writing.partition], bucket=one[UNIT]).to_text(): (
                change.take(pa.array(one[f"{_PLACE}_list"], pa.int64()))
            )
            for one in found
        }


def _allow_nulls(schema: pa.Schema) -> pa.Schema:
    """Return the schema with columns, and parts of them, that may be null: those of other rows may be."""
    return pa.schema([_loosen(one) for one in schema])


def _loosen(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_loosen(one) for one in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_loosen(kind.value_field))
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, _loosen(kind.item_field))
    return pa.field(field.name, kind)
