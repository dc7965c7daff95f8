"""What executors do in a pipeline's run: read rows of objects and of the table's files, write files of its units."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.errors import FormatError
from capture.maintenance.merge.inputs import fetch_blocking, input_rows
from capture.maintenance.merge.schema_evolution import read_columns
from capture.pipelines.derivation import OutputFile, Part, Unit
from capture.pipelines.upkeep import HIDDEN, SEQUENCE
from capture.spark.derive_store import Uploads, cell
from capture.stores import open_store

UNIT, NEW, DEAD, VIOLATED = f"{HIDDEN}unit", f"{HIDDEN}new", f"{HIDDEN}dead", f"{HIDDEN}violated"
"""Columns of rows on their way to a file: the bucket; whether this run made the row; whether no reader may see it; the
numbers of the conditions that it does not meet."""
REASON = "reason"
"""The column of quarantined rows with the first condition that they did not meet."""

FILE_BYTES = 128 << 20
"""A unit's file is closed when it has this many bytes, and another begins."""
COMPRESSION_LEVEL = 3
READ_ROWS = 64 * 1024
"""Rows of a table's file that are decoded at a time."""

Batches = Iterator[pa.RecordBatch]
Unique = Literal["", "last", "once"]


# --- reading ---------------------------------------------------------------------------------------------------------


def read_parts(store_url: str, columns: str, key_file: str, packed: Batches) -> Batches:
    """Yield the messages of the parts (JSON of `Part`) with these typed columns: of each given sequence one."""
    store, keys, typed = open_store(store_url), Keys.load(key_file), read_columns(columns)
    for batch in packed:
        parts = [msgspec.json.decode(text, type=Part) for text in batch["part"].to_pylist()]
        with closing(fetch_blocking(store, [one.stored for one in parts])) as found:
            for (one, data), part in zip(found, parts, strict=True):
                left = Sequences.from_text(part.given) if part.given else None
                for rows in input_rows(data, one, typed, keys):
                    if left is not None:
                        rows, left = _take(rows, left)
                    yield from rows.combine_chunks().to_batches()


def take_given(given: str, batches: Batches) -> Batches:
    """Yield the messages with these sequences (`Sequences.to_text`), each once."""
    left = Sequences.from_text(given)
    for batch in batches:
        rows, left = _take(pa.Table.from_batches([batch]), left)
        yield from rows.combine_chunks().to_batches()


def _take(rows: pa.Table, left: Sequences) -> tuple[pa.Table, Sequences]:
    """Return the first row of each of these sequences, and the sequences that are left."""
    numbers = rows["sequence"].combine_chunks()
    if not len(numbers):
        return rows, left
    bounds = pc.min_max(numbers)
    here = left.within(bounds["min"].as_py(), bounds["max"].as_py())
    mask = pc.is_in(numbers, pa.array(here, pa.int64()))
    rows, numbers = rows.filter(mask), numbers.filter(mask)
    if pc.count_distinct(numbers).as_py() < len(numbers):
        seen: dict[int, int] = {}
        for at, number in enumerate(numbers.to_pylist()):
            seen.setdefault(number, at)
        rows = rows.take(pa.array(seen.values(), pa.int64()))
        numbers = rows["sequence"].combine_chunks()
    return rows, left - Sequences.from_iterable(numbers.to_pylist())


class TableFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a pipeline's table to read. `order` is the `__sequence` of its rows; None: they have their own.

    Rows with one up to `after` are left out.
    """

    path: str
    bytes: int
    sha256: str
    order: int | None = None
    after: int = 0
    dead: bool = False


def numbered_file(stored: Stored, after: int = 0) -> TableFile:
    """Return a file whose rows are numbered by the runs that made them; only runs after `after` count."""
    order, after = (stored.first, 0) if stored.first == stored.last else (None, after if stored.first <= after else 0)
    return TableFile(path=stored.path, bytes=stored.bytes, sha256=stored.sha256, order=order, after=after)


def read_files(store_url: str, schema: pa.Schema, packed: Batches) -> Batches:
    """Yield the rows of files (JSON of `TableFile`) under this schema; columns that a file does not have are null."""
    store = open_store(store_url)
    for batch in packed:
        files = [msgspec.json.decode(text, type=TableFile) for text in batch["file"].to_pylist()]
        with closing(fetch_blocking(store, files)) as fetched:
            for one, data in fetched:
                if hashlib.sha256(data).hexdigest() != one.sha256:
                    raise FormatError(f"{one.path} was changed: its SHA-256 is not the recorded one")
                for some in pq.ParquetFile(pa.BufferReader(data)).iter_batches(READ_ROWS):
                    yield from bring_under(pa.Table.from_batches([some]), one, schema).combine_chunks().to_batches()


def bring_under(rows: pa.Table, one: TableFile, schema: pa.Schema) -> pa.Table:
    """Return those rows of a file that count, under this schema; columns that the file does not have are null."""
    if one.order is not None:
        rows = _with(rows, SEQUENCE, pa.repeat(pa.scalar(one.order, pa.int64()), len(rows)))
    if one.after:
        rows = rows.filter(pc.greater(rows[SEQUENCE], one.after))
    if DEAD in schema.names:
        rows = _with(rows, DEAD, pa.repeat(pa.scalar(one.dead), len(rows)))
    for name in schema.names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(len(rows), schema.field(name).type))
    return rows.select(schema.names).cast(schema)


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    kept = [one for one in rows.column_names if one != name]
    return rows.select(kept).append_column(name, values)


# --- writing ---------------------------------------------------------------------------------------------------------


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task reports: a file that it wrote, rows that met a condition not, or why the run fails."""

    file: OutputFile | None = None
    quarantined: bool = False
    violations: dict[int, int] = {}
    example: str = ""
    error: str = ""


@dataclass(frozen=True)
class Writing:
    """How rows become files. They are sorted by `partition`, UNIT and `key`; then, if `unique` is "last", descending.

    `columns` are those of a table's file; those of a file that no reader sees are `key` and the hidden ones. Of rows
    with a key, "last" writes the first that comes, "once" allows no second; no column of `required` is null. Rows that
    do not meet one of the `conditions` are counted and not written, and with `on_violation` "quarantine" written to
    other files. `keeps_state` says that they go to the files that no reader sees, since later rows are merged with
    them.
    """

    store: str
    folder: str
    columns: pa.Schema
    partition: Sequence[str] = ()
    key: Sequence[str] = ()
    required: Sequence[str] = ()
    unique: Unique = ""
    conditions: Sequence[str] = ()
    on_violation: str = "fail"
    keeps_state: bool = False

    @property
    def hidden_columns(self) -> pa.Schema:
        """The columns of a file that no reader sees."""
        return pa.schema([one for one in self.columns if one.name in self.key or one.name.startswith(HIDDEN)])

    @property
    def quarantine_columns(self) -> pa.Schema:
        """The columns of a quarantined row."""
        visible = [one for one in self.columns if not one.name.startswith(HIDDEN)]
        return pa.schema([*visible, pa.field(REASON, pa.string())])


def write_units(writing: Writing, batches: Batches) -> Batches:
    """Write the files of some units; rows of a unit follow each other. Yield a `Fact` for each file."""
    with closing(Uploads(open_store(writing.store))) as uploads:
        task = _Task(writing, uploads)
        try:
            for batch in batches:
                task.add(batch)
        except _Fault as fault:
            task.facts = [Fact(error=str(fault))]
        else:
            task.finish()
    said = [msgspec.json.encode(one).decode() for one in task.facts]
    yield pa.RecordBatch.from_pydict({"facts": pa.array(said, pa.string())})


class _Fault(Exception):
    """The rows can't be a table's; the text says why."""


class _Task:
    def __init__(self, writing: Writing, uploads: Uploads) -> None:
        self._writing = writing
        self._uploads = uploads
        self._unit = Unit()
        self._files: dict[str, _File] = {}
        self._last: pa.RecordBatch | None = None
        self._violations: dict[int, int] = {}
        self._example = ""
        self.facts: list[Fact] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Write these rows to the files of their units."""
        writing = self._writing
        if VIOLATED in rows.schema.names:
            rows = self._check_conditions(rows)
        if writing.unique and len(rows):
            rows = self._choose(rows)
        if not len(rows):
            return
        for name in writing.required:
            if rows.column(name).null_count:
                raise _Fault(f"{name}, of its key, is null in a row of its result: leave such rows out by WHERE")
        edges = _starts([rows.column(name) for name in (*writing.partition, UNIT)])
        for first, after in zip(edges, [*edges[1:], len(rows)], strict=True):
            *values, bucket = [rows.column(name)[first].as_py() for name in (*writing.partition, UNIT)]
            self._add_to(Unit(partition=[cell(one) for one in values], bucket=bucket), rows.slice(first, after - first))

    def finish(self) -> None:
        """Close all files."""
        for kind in list(self._files):
            self._close(kind)
        self._uploads.finish()
        if self._violations:
            self.facts.append(Fact(violations=self._violations, example=self._example))

    def _add_to(self, unit: Unit, rows: pa.RecordBatch) -> None:
        if unit != self._unit:
            for kind in ("rows", "dead"):
                self._close(kind)
            self._unit = unit
        if DEAD in rows.schema.names:
            dead = pc.fill_null(rows.column(DEAD), False)
            self._append("dead", rows.filter(dead), self._writing.hidden_columns)
            rows = rows.filter(pc.invert(dead))
        self._append("rows", rows, self._writing.columns)

    def _append(self, kind: str, rows: pa.RecordBatch, columns: pa.Schema) -> None:
        if not len(rows):
            return
        if kind not in self._files:
            self._files[kind] = _File(columns)
        self._files[kind].add(rows)
        if self._files[kind].bytes >= FILE_BYTES:
            self._close(kind)

    def _close(self, kind: str) -> None:
        if (file := self._files.pop(kind, None)) is None:
            return
        quarantined = kind == "quarantined"
        unit = Unit() if quarantined else self._unit
        one = file.store(self._uploads, self._writing.folder, unit, tombstones=kind == "dead")
        self.facts.append(Fact(file=one, quarantined=quarantined))

    def _choose(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are the first with their key, also if an earlier batch ended with that key."""
        key, before = self._writing.key, self._last
        both = pa.concat_batches([before, rows]) if before is not None else rows
        starts = _starts([both.column(name) for name in key])
        is_start = pa.array([False]) if not len(both) else _mask(starts, len(both))
        repeated = pc.invert(is_start)
        if self._writing.unique == "last":
            repeated = pc.and_(repeated, _equals_previous(both))
        if before is not None:
            is_start, repeated = is_start.slice(1), repeated.slice(1)
        if at := pc.indices_nonzero(repeated).to_pylist():
            raise _Fault(_describe_repeated(rows.slice(at[0], 1), key, self._writing.unique))
        self._last = rows.slice(len(rows) - 1)
        return rows.filter(is_start)

    def _check_conditions(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Count the rows that do not meet a condition; return those that are written."""
        writing = self._writing
        found = rows.column(VIOLATED)
        violates = pc.fill_null(pc.greater(pc.list_value_length(found), 0), False)  # null: it was not checked
        bad = rows.filter(violates)
        if not len(bad):
            return rows
        counted = bad.filter(bad.column(NEW)) if writing.keeps_state else bad
        for one in pc.value_counts(counted.column(VIOLATED).flatten()).to_pylist():
            self._violations[one["values"]] = self._violations.get(one["values"], 0) + one["counts"]
        if len(counted) and not self._example:
            visible = [one.name for one in writing.columns if not one.name.startswith(HIDDEN)]
            self._example = _describe(counted, visible)
        if writing.on_violation == "quarantine" and len(counted):
            firsts = pc.list_element(counted.column(VIOLATED), 0).to_pylist()
            reasons = pa.array([writing.conditions[one] for one in firsts], pa.string())
            whole = pa.Table.from_batches([counted]).append_column(f"{HIDDEN}{REASON}", reasons)
            [ready] = whole.combine_chunks().to_batches()
            self._append("quarantined", ready, writing.quarantine_columns)
        if writing.keeps_state:
            return rows.set_column(rows.schema.get_field_index(DEAD), DEAD, violates)
        return rows.filter(pc.invert(violates))


class _File:
    """A Parquet file in memory."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._rows = 0
        self._content = io.BytesIO()
        self._parquet = pq.ParquetWriter(
            self._content,
            columns,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            data_page_version="1.0",
            write_page_checksum=True,
        )

    @property
    def bytes(self) -> int:
        return self._content.tell()

    def add(self, rows: pa.RecordBatch) -> None:
        names = [
            name if name != REASON or f"{HIDDEN}{REASON}" not in rows.schema.names else f"{HIDDEN}{REASON}"
            for name in self._columns.names
        ]
        whole = pa.Table.from_batches([rows]).select(names).rename_columns(self._columns.names).cast(self._columns)
        self._rows += len(rows)
        self._parquet.write_table(whole)

    def store(self, uploads: Uploads, folder: str, unit: Unit, *, tombstones: bool) -> OutputFile:
        self._parquet.close()
        data = self._content.getvalue()
        path = f"{folder}{unit.bucket:05d}-{uuid4().hex}.parquet"
        uploads.put(path, data)
        digest = hashlib.sha256(data).hexdigest()
        return OutputFile(path=path, unit=unit, rows=self._rows, bytes=len(data), sha256=digest, tombstones=tombstones)


def _starts(columns: Sequence[pa.Array]) -> list[int]:
    """Return the rows that differ from the one before in one of these columns, and the first."""
    count = len(columns[0])
    if not count:
        return []
    differs = pa.array([False]).take(pa.array([0] * (count - 1), pa.int64()))
    for column in columns:
        differs = pc.or_(differs, pc.invert(_equal(column.slice(1), column.slice(0, count - 1))))
    return [0, *(at + 1 for at in pc.indices_nonzero(differs).to_pylist())]


def _equal(one: pa.Array, other: pa.Array) -> pa.Array:
    """Return where the values are equal, or both null, or both not a number."""
    same = pc.fill_null(pc.equal(one, other), False)
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(one), pc.is_nan(other)), False))
    return pc.or_(same, pc.and_(pc.is_null(one), pc.is_null(other)))


def _mask(places: Sequence[int], count: int) -> pa.Array:
    return pc.is_in(pa.array(range(count), pa.int64()), pa.array(places, pa.int64()))


def _equals_previous(rows: pa.RecordBatch) -> pa.Array:
    """Return which rows have the order of the row before; both were made by this run."""
    order, new, count = rows.column(SEQUENCE), rows.column(NEW), len(rows)
    same = _equal(order.slice(1), order.slice(0, count - 1))
    both = pc.and_(pc.and_(new.slice(1), new.slice(0, count - 1)), same)
    return pa.concat_arrays([pa.array([False]), both])


def _describe_repeated(row: pa.RecordBatch, key: Sequence[str], unique: str) -> str:
    said = f"its key is not unique: {_describe(row, key)}"
    if unique == "last":
        return f"{said} is in several rows of one message (__sequence {row.column(SEQUENCE)[0].as_py()})"
    return f"{said} is in several rows of its result"


def _describe(rows: pa.RecordBatch, names: Sequence[str]) -> str:
    said = ", ".join(f"{name} = {rows.column(name)[0].as_py()}" for name in names)
    return said if len(said) <= 300 else said[:300] + "…"
