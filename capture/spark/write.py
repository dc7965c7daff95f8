"""What runs in the executor: sorted rows come in, a table file goes to the store, facts about it come out."""

import asyncio
import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.compact import Group, Merged
from capture.errors import SparkError
from capture.manifest import Stored
from capture.sequences import Sequences
from capture.stores import open_store
from capture.writers.envelope import SCHEMA, VERSION
from capture.writers.parquet import COMPRESSION_LEVEL, REPETITIVE, SEARCHED

ROW_GROUP_ROWS = 128 * 1024
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Whichever is reached first ends a row group: memory stays bounded whatever the size of a message."""

READ_BYTES = 1024 * 1024


def write_and_report(
    store_url: str, group: Group, stored_ns: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Store the rows of `group`, which come sorted by sequence, once each; yields one row, a `Merged` as JSON.

    What `group.exclude` names is left out. When nothing is left, no object is made. Raises SparkError, and stores
    nothing, unless exactly the messages that the entries of the inputs name were read; else what the store raises.
    """
    with tempfile.TemporaryDirectory() as folder, _TableFile(Path(folder) / "table.parquet") as file:
        distinct = Distinct(Sequences.from_text(group.exclude))
        for batch in batches:
            file.add(distinct.of(pa.Table.from_batches([batch])))
        _check(group, distinct.rows_in, file.sequences)
        output = file.finish(group, stored_ns)
        if output is not None:
            asyncio.run(open_store(store_url).put(group.output, file.path, if_absent=True))
    merged = Merged(output=output, rows_in=distinct.rows_in, duplicates=distinct.rows_in - len(file.sequences))
    yield pa.RecordBatch.from_pydict({"merged": [msgspec.json.encode(merged).decode()]})


class Distinct:
    """Lets each sequence through once, and those of `exclude` not at all; counts the rows that it saw."""

    def __init__(self, exclude: Sequences) -> None:
        self.rows_in = 0
        self._exclude = exclude
        self._last = -1

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows to keep. Raises SparkError when the rows are not sorted by sequence."""
        if not rows.num_rows:
            return rows
        sequences = rows["sequence"].combine_chunks()
        if sequences.null_count:
            raise SparkError("a message without a sequence was read")
        steps = pc.pairwise_diff(pa.concat_arrays([pa.array([self._last]), sequences])).slice(1)
        if pc.min(steps).as_py() < 0:
            raise SparkError("rows reached the writer out of order")
        self._last = sequences[-1].as_py()
        self.rows_in += rows.num_rows
        return self._without_excluded(rows.filter(pc.not_equal(steps, 0)))

    def _without_excluded(self, rows: pa.Table) -> pa.Table:
        if not self._exclude:
            return rows
        held = Sequences.from_iterable(rows["sequence"].to_pylist()) & self._exclude
        return rows.filter(pc.invert(pc.is_in(rows["sequence"], pa.array(held, pa.int64())))) if held else rows


def _check(group: Group, rows_in: int, written: Sequences) -> None:
    expected = sum(block.count for block in group.inputs)
    if rows_in != expected:
        raise SparkError(f"the inputs hold {expected} messages by their entries, {rows_in} were read")
    held = Sequences.union_of(Sequences.from_text(block.sequences) for block in group.inputs)
    wanted = held - Sequences.from_text(group.exclude)
    if written != wanted:
        differing = (wanted - written) | (written - wanted)
        raise SparkError(f"sequences {differing.describe()} differ between the inputs' entries and what was read")


class _TableFile:
    """A Parquet file that is written row group by row group, and the facts about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sequences = Sequences()
        self._waiting: list[pa.Table] = []
        self._writer = pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=REPETITIVE,
            write_statistics=SEARCHED,
            data_page_version="1.0",  # Iceberg's vectorised reader can't read version 2
            write_page_index=True,
            write_page_checksum=True,
            sorting_columns=pq.SortingColumn.from_ordering(SCHEMA, [("sequence", "ascending")]),
        )

    def __enter__(self) -> "_TableFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    def add(self, rows: pa.Table) -> None:
        self.sequences |= Sequences.from_iterable(rows["sequence"].to_pylist())
        self._waiting.append(rows.select(SCHEMA.names).cast(SCHEMA))
        while sum(table.num_rows for table in self._waiting) >= ROW_GROUP_ROWS:
            self._write(ROW_GROUP_ROWS)
        if sum(table.nbytes for table in self._waiting) >= ROW_GROUP_BYTES:
            self._write(ROW_GROUP_ROWS)

    def finish(self, group: Group, stored_ns: int) -> Stored | None:
        """Complete the file. None when it has no rows."""
        self._write(ROW_GROUP_ROWS)
        if not self.sequences:
            return None
        first, last, count = self.sequences.first, self.sequences.last, len(self.sequences)
        self._writer.add_key_value_metadata(
            {
                "capture.version": str(VERSION),
                "capture.stream": group.stream,
                "capture.first": str(first),
                "capture.last": str(last),
                "capture.count": str(count),
            }
        )
        self._writer.close()
        return Stored(
            path=group.output,
            stream=group.stream,
            key=group.key,
            interval=group.interval,
            first=first,
            last=last,
            count=count,
            bytes=self.path.stat().st_size,
            sha256=_sha256(self.path),
            format="parquet",
            sequences=self.sequences.to_text(),
            stored_ns=stored_ns,
        )

    def _write(self, rows: int) -> None:
        waiting = pa.concat_tables(self._waiting) if self._waiting else SCHEMA.empty_table()
        if waiting.num_rows:
            self._writer.write_table(waiting.slice(0, rows), row_group_size=rows)
        rest = waiting.slice(rows)
        self._waiting = [rest] if rest.num_rows else []


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while data := stream.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()
