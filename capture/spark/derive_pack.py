"""Merges small files of a pipeline's table, in the driver's process: what it reads and writes is Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic as now

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.manifest import Stored
from capture.errors import FormatError, PipelineError
from capture.maintenance.merge.inputs import BATCH_BYTES, BATCH_ROWS, fetch_blocking
from capture.maintenance.merge.schema_evolution import adapt, find_column, read_columns
from capture.pipelines.derivation import OutputFile, PackedFiles, PackedUnit, Packing, Unit
from capture.pipelines.packing import TARGET_BYTES
from capture.pipelines.upkeep import HIDDEN, SEQUENCE
from capture.spark.derive_output import holds
from capture.spark.derive_task import UNIT, Fact, Writing, bring_under, numbered_file, write_units
from capture.spark.failure import sentence
from capture.stores import open_store

GROUP_ROWS, GROUP_BYTES = 256 * 1024, 32 << 20
"""Rows that are written at a time, and together decoded by readers: so many, or of so many bytes in memory."""
LAST_FILE = 5.0
"""Seconds that the last file may take after the time of the merge: otherwise its unit is given up."""
LARGE_BYTES = TARGET_BYTES // 2
"""A file that has more bytes without its compression is not small. The files of a unit have at most TARGET_BYTES."""


def pack(asked: Packing) -> PackedFiles:
    """Write the merged files; return facts about them. PipelineError, whose text names the table, if that fails.

    It holds a few small files as they are stored, GROUP_BYTES of rows, and the merged files until they are stored. Rows
    are decoded BATCH_BYTES at a time, unless a row is larger; with long texts that rows share, BATCH_ROWS.
    """
    columns = pa.schema([*read_columns(asked.columns), pa.field(SEQUENCE, pa.int64())])
    writing = Writing(store=asked.store, folder=asked.folder, columns=columns, partition=asked.partition)
    reading = _Reading(asked, columns, now() + asked.seconds)
    try:
        [said] = write_units(writing, reading.read())
    except Exception as error:
        raise PipelineError(f"small files of {asked.table} can't be merged: {sentence(error)}") from error
    facts = [msgspec.json.decode(one, type=Fact) for one in said["facts"].to_pylist()]
    came = [one.file for one in facts if one.file]
    return PackedFiles(units=[one.conclude([file for file in came if file.unit == one.unit]) for one in reading.units])


@dataclass
class _Merged:
    """The files of a unit that were read, and those that stay."""

    unit: Unit
    taken: list[Stored] = field(default_factory=list)
    large: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    failed: str = ""

    def conclude(self, came: Sequence[OutputFile]) -> PackedUnit:
        """Return what became of the files, if these were written."""
        rows, wanted = sum(one.rows for one in came), sum(one.count for one in self.taken)
        if not self.failed and rows != wanted:
            self.failed = f"its files have {wanted:,} rows by their records, and {rows:,} were found"
        is_done = len(self.taken) > 1 and not self.failed
        return PackedUnit(
            unit=self.unit.to_text(),
            came=[*came] if is_done else [],
            gone=[one.path for one in self.taken] if is_done else [],
            large=self.large,
            refused=self.refused,
            failed=self.failed,
        )


class _Late(Exception):
    """The time is over."""


class _Reading:
    """Reads the small files of one unit after the other; a fault of a file, or of a unit, stops no other."""

    def __init__(self, asked: Packing, columns: pa.Schema, ends: float) -> None:
        self._asked, self._columns, self._ends = asked, columns, ends
        self._store = open_store(asked.store)
        self.units: list[_Merged] = []

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the units, with UNIT, in few batches."""
        for files in self._asked.packs:
            unit = _Merged(Unit.from_text(files[0].key))
            try:
                self._check_time()
                yield from _join(self._read(unit, files), unit.unit.bucket)
            except _Late:
                if not self.units:  # it had all the time
                    unit.failed = f"it took longer than {self._asked.seconds:g} s"
                    self.units.append(unit)
                return
            except Exception as error:
                unit.failed = sentence(error)
            self.units.append(unit)

    def _read(self, unit: _Merged, files: Sequence[Stored]) -> Iterator[pa.Table]:
        left = TARGET_BYTES
        with closing(fetch_blocking(self._store, files)) as found:
            for one, data in found:
                if len(unit.taken) > 1 and now() >= self._ends:
                    return  # the others are for another merge
                self._check_time()
                try:
                    file = self._open(one, data)
                except (FormatError, pa.ArrowException) as error:
                    unit.refused[one.path] = sentence(error)
                    continue
                groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
                size = sum(group.total_byte_size for group in groups)
                if size > LARGE_BYTES:
                    unit.large.append(one.path)
                    continue
                if size > left:
                    return
                left -= size
                unit.taken.append(one)
                width = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
                most = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, width)))
                for batch in file.iter_batches(most, use_threads=False):
                    self._check_time(LAST_FILE)
                    yield bring_under(pa.Table.from_batches([batch]), numbered_file(one), self._columns)

    def _open(self, one: Stored, data: bytes) -> pq.ParquetFile:
        """Return the file. FormatError if it was changed, or has a column that the table can't have."""
        if sha256(data).hexdigest() != one.sha256:
            raise FormatError(f"{one.path} was changed: its SHA-256 is not the recorded one")
        file = pq.ParquetFile(pa.BufferReader(data))
        for column in file.schema_arrow:
            name = find_column(column.name, self._columns.names)
            if column.name.startswith(HIDDEN):
                continue
            if name not in self._columns.names:
                raise FormatError(f"{one.path} has the column {column.name}, which its table does not have")
            kind, found = self._columns.field(name).type, adapt(column.type)
            if not holds(kind, found):
                raise FormatError(f"{one.path} has the column {name} of type {found}, and its table of {kind}")
        return file

    def _check_time(self, more: float = 0.0) -> None:
        if now() >= self._ends + more:
            raise _Late


def _join(tables: Iterator[pa.Table], bucket: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in few batches, with UNIT."""
    held: list[pa.Table] = []
    rows = size = 0
    for some in tables:
        held.append(some)
        rows, size = rows + len(some), size + some.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield from _add_unit(held, bucket)
            rows = size = 0
    yield from _add_unit(held, bucket)


def _add_unit(held: list[pa.Table], bucket: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are held, which are let go."""
    if held:
        rows = pa.concat_tables(held)
        held.clear()
        rows = rows.append_column(UNIT, pa.repeat(pa.scalar(bucket, pa.int32()), len(rows))).combine_chunks()
        yield from rows.to_batches()
