"""Writes sorted rows to a table file in Parquet, returns its facts for the table, and checks such files."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.archive.encryption import ENDING, Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.errors import CompactionError, KeyMissingError
from capture.formats.envelope import SCHEMA, VERSION
from capture.formats.parquet import COMPRESSION_LEVEL, PAGE_ROWS, REPETITIVE, SEARCHED, open_parquet
from capture.formats.schema import CONFLICTS
from capture.maintenance.engine import FileGroup, Part
from capture.maintenance.merge.schema_evolution import OWN
from capture.maintenance.merge.scratch_file import Temporary

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""The limit that is reached first ends a row group, so memory is bounded for messages of any size."""

READ_ROWS = 65_536


class Distinct:
    """Passes each sequence once, and those of `exclude` never; counts its input rows."""

    def __init__(self, exclude: Sequences) -> None:
        self.rows_in = 0
        self.exclude = exclude
        self._last = -1

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the rows to keep. CompactionError if the rows are not sorted by sequence."""
        if not rows.num_rows:
            return rows
        sequences = rows["sequence"].combine_chunks()
        if sequences.null_count:
            raise CompactionError("a message without a sequence was read")
        steps = pc.pairwise_diff(pa.concat_arrays([pa.array([self._last]), sequences])).slice(1)
        least = pc.min(steps).as_py()
        if least < 0:
            raise CompactionError("rows reached the writer out of order")
        self._last = sequences[-1].as_py()
        self.rows_in += rows.num_rows
        return self._drop_excluded(rows if least else rows.filter(pc.not_equal(steps, 0)))

    def _drop_excluded(self, rows: pa.Table) -> pa.Table:
        if not self.exclude:
            return rows
        held = sequences_of(rows["sequence"]) & self.exclude
        return rows.filter(pc.invert(pc.is_in(rows["sequence"], pa.array(held, pa.int64())))) if held else rows


def sequences_of(ascending: pa.ChunkedArray) -> Sequences:
    """Return the set of these sequences, which ascend and are distinct."""
    if not len(ascending):
        return Sequences()
    first, last = ascending[0].as_py(), ascending[-1].as_py()
    if last - first + 1 == len(ascending):
        return Sequences.from_range(first, last)
    return Sequences.from_iterable(ascending.to_pylist())


class TableFile:
    """One part of a file group as a Parquet file at `path`, written row group by row group.

    `columns` are its typed columns. `add` takes rows in ascending order of distinct sequences, with the envelope's
    columns and those. `sequences` and `conflicts` cover the rows added so far. With `encrypted`, no plaintext is on the
    disk, even if the file is plain in the store.
    """

    def __init__(
        self, path: Path, group: FileGroup, part: Part, columns: pa.Schema, *, encrypted: bool = False
    ) -> None:
        self.content: Path | bytes = b""
        """The content to put into the store, once the file is complete."""
        self.conflicts: Counter[str] = Counter()
        self._encrypted = encrypted
        self._parquet = Temporary(path, encrypted=encrypted)
        self._held: list[Sequences] = []
        self._group = group
        self._part = part
        self._rows_schema = pa.schema([*SCHEMA, *columns])
        self._times: list[int] = []
        self._waiting: list[pa.Table] = []
        self._rows = self._bytes = 0  # of the waiting rows
        schema = pa.schema([*SCHEMA, *OWN, *columns])
        self._file = self._parquet.open_to_write()
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[*REPETITIVE, *OWN.names, *_names_of(columns, pa.types.is_string)],
            write_statistics=[*SEARCHED, *OWN.names, *_names_of(columns, pa.types.is_primitive, pa.types.is_string)],
            data_page_version="1.0",  # Iceberg's vectorised reader can't read version 2
            write_page_index=True,
            write_page_checksum=True,
            write_batch_size=PAGE_ROWS,
            sorting_columns=pq.SortingColumn.from_ordering(schema, [("sequence", "ascending")]),
        )

    def __enter__(self) -> TableFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def sequences(self) -> Sequences:
        """The sequences of the rows."""
        return Sequences.union_of(self._held)

    def add(self, rows: pa.Table) -> None:
        """Take rows; full row groups are written to the disk."""
        if not rows.num_rows:
            return
        self._held.append(sequences_of(rows["sequence"]))
        times = [*self._times, *(one or 0 for one in pc.min_max(rows["time_ns"]).as_py().values())]
        self._times = [min(times), max(times)]
        if CONFLICTS in rows.column_names:
            self.conflicts.update(pc.list_flatten(rows[CONFLICTS]).to_pylist())
        self._wait(rows.select(self._rows_schema.names).cast(self._rows_schema))
        while self._rows >= ROW_GROUP_ROWS:
            self._write(ROW_GROUP_ROWS)
        if self._bytes >= ROW_GROUP_BYTES:
            self._write(ROW_GROUP_ROWS)

    def finish(self, stored_ns: int, keys: Keys | None) -> Stored | None:
        """Complete the file, encrypted if its name says so, and return its record; None if it has no rows.

        KeyMissingError if it must be encrypted and there are no keys.
        """
        self._write(ROW_GROUP_ROWS)
        sequences = self.sequences
        if not sequences:
            return None
        facts = Stored(
            path=self._part.output,
            stream=self._group.stream,
            key=self._group.key,
            interval=self._group.interval,
            first=sequences.first,
            last=sequences.last,
            count=len(sequences),
            bytes=0,
            sha256="",
            format=self._part.output.rpartition("/")[2].partition(".")[2],
            sequences=sequences.to_bytes(),
            stored_ns=stored_ns,
            min_ns=self._times[0],
            max_ns=self._times[1],
        )
        said = {"version": VERSION} | {name: getattr(facts, name) for name in ("stream", "first", "last", "count")}
        self._writer.add_key_value_metadata({f"capture.{name}": str(value) for name, value in said.items()})
        self._close()
        self.content = self._stored_content(facts, keys)
        size, digest = _measure(self.content)
        return msgspec.structs.replace(facts, bytes=size, sha256=digest)

    def _close(self) -> None:
        self._writer.close()
        self._file.close()

    def _stored_content(self, facts: Stored, keys: Keys | None) -> Path | bytes:
        path = self._parquet.path
        if not facts.format.endswith(f".{ENDING}"):
            if not self._encrypted:
                return path
            with self._parquet.open_to_read() as plain:
                return plain.read()
        if keys is None:
            raise KeyMissingError("it must be encrypted, and there are no keys: name key_file, or set CAPTURE_KEYS")
        stored = path.with_name(f"{path.name}.{ENDING}")
        with self._parquet.open_to_read() as plain, stored.open("wb") as file:
            path.unlink()
            keys.encrypt_file(plain, file, facts)
        return stored

    def _write(self, rows: int) -> None:
        waiting = pa.concat_tables(self._waiting) if self._waiting else self._rows_schema.empty_table()
        if waiting.num_rows:
            self._writer.write_table(self._add_own_columns(waiting.slice(0, rows)), row_group_size=rows)
        self._waiting, self._rows, self._bytes = [], 0, 0
        self._wait(waiting.slice(rows))

    def _wait(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes

    def _add_own_columns(self, rows: pa.Table) -> pa.Table:
        """Insert the partition's columns after the envelope's."""
        values = self._group.key, datetime.fromtimestamp(self._group.interval, UTC)
        for at, (field, value) in enumerate(zip(OWN, values, strict=True), len(SCHEMA)):
            rows = rows.add_column(at, field, pa.repeat(pa.scalar(value, field.type), len(rows)))
        return rows


def check_table_file(file: IO[bytes], stored: Stored) -> list[str]:
    """Read a table file's footer, and the sequence and time of its rows; return the differences from its record.

    It verifies page checksums. Raises pyarrow's errors if the file is not readable Parquet.
    """
    parquet = open_parquet(file, ["sequence", "time_ns"])
    found, rows, last, times, ordered = Sequences(), 0, -1, [], True
    for batch in parquet.iter_batches(READ_ROWS, columns=["sequence", "time_ns"]):
        column = pa.chunked_array([batch["sequence"]])
        steps = pc.pairwise_diff(pa.concat_arrays([pa.array([last]), batch["sequence"]])).slice(1)
        ordered = ordered and pc.min(steps).as_py() > 0
        last = column[-1].as_py()
        rows += len(column)
        found |= sequences_of(column) if ordered else Sequences.from_iterable(column.to_pylist())
        times += pc.min_max(batch["time_ns"]).as_py().values()
    wrong = [] if ordered else ["its rows are not in ascending order of their sequences, each once"]
    if found != Sequences.from_bytes(stored.sequences):
        wrong.append(f"it holds the sequences {found.describe()}")
    said = {"rows": stored.count, "first": stored.first, "last": stored.last, "min_ns": stored.min_ns}
    held = [rows, *((found.first, found.last) if found else (0, 0)), min((one for one in times if one), default=0)]
    wrong += [f"{name}: {is_}, not {was}" for (name, was), is_ in zip(said.items(), held, strict=True) if is_ != was]
    if parquet.metadata.num_rows != rows:
        wrong.append(f"its footer states {parquet.metadata.num_rows} rows, there are {rows}")
    missing = [name for name in [*SCHEMA.names, *OWN.names] if name not in parquet.schema_arrow.names]
    return [*wrong, f"it has no column {', '.join(missing)}"] if missing else wrong


def _names_of(columns: pa.Schema, *kinds: Callable[[pa.DataType], bool]) -> list[str]:
    return [field.name for field in columns if any(is_kind(field.type) for is_kind in kinds)]


def _measure(content: Path | bytes) -> tuple[int, str]:
    """Return the size and the SHA-256 of the content to store."""
    if isinstance(content, bytes):
        return len(content), hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return content.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
