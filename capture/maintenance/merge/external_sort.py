"""Sorts rows: in memory if they fit, otherwise by sorted runs in temporary files.

This is an external merge sort (Knuth, The Art of Computer Programming, vol. 3, 5.4). Its memory does not grow with the
number of rows. It takes about twice the limit, since sorting copies the rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from capture.errors import CompactionError
from capture.maintenance.merge.scratch_file import Temporary

ORDER = [("sequence", "ascending"), ("deliveries", "ascending")]
"""Of several copies of a message the first delivery comes first."""
MEMORY_BYTES = 64 << 20
"""Size of the rows in memory above which they are sorted and written to a file."""
PIECE_BYTES = 512 << 10
"""About this much of each run is in memory while runs are merged, unless a single message is larger."""
MOST_RUNS = 64
"""When there are this many files, they are merged into one, so that a merge fits in memory for any number of rows."""


class Runs:
    """Takes rows and returns them in order, once. Its files are in `folder`; the caller deletes it."""

    def __init__(
        self, folder: Path, schema: pa.Schema, memory_bytes: int = MEMORY_BYTES, *, encrypted: bool = False
    ) -> None:
        self._folder = folder
        self._schema = schema
        self._memory_bytes = memory_bytes
        self._encrypted = encrypted
        self._names = count()
        self._files: list[Temporary] = []
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"Runs({self._bytes:,} bytes in memory, {len(self._files)} files)"

    def add(self, rows: pa.Table) -> None:
        """Take rows of the schema. CompactionError if there is no space for a file."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes > self._memory_bytes:
            self._files.append(self._write(self._drain()))
            if len(self._files) == MOST_RUNS:
                files, self._files = self._files, []
                self._files.append(self._write(_merge([_read(file) for file in files])))

    def sort(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows by ORDER, some at a time; equal ones in the order in which they were added."""
        return _merge([*map(_read, self._files), self._drain()])

    def _drain(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in memory, sorted."""
        rows = pa.concat_tables([self._schema.empty_table(), *self._waiting]).combine_chunks()
        self._waiting, self._bytes = [], 0
        order = pc.sort_indices(rows, ORDER)
        step = max(1, PIECE_BYTES * len(rows) // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            yield from rows.take(order.slice(start, step)).combine_chunks().to_batches()

    def _write(self, rows: Iterator[pa.RecordBatch]) -> Temporary:
        run = Temporary(self._folder / f"run-{next(self._names)}", encrypted=self._encrypted)
        try:
            with run.open_to_write() as file, pa.ipc.new_stream(file, self._schema) as writer:
                for batch in rows:
                    writer.write_batch(batch)
        except OSError as error:
            raise CompactionError(
                f"rows that don't fit in memory could not be written to {self._folder.parent}: "
                f"{error.strerror or error}; free space there, or set TMPDIR"
            ) from error
        return run


def _read(run: Temporary) -> Iterator[pa.RecordBatch]:
    """Yield a run, and delete its file."""
    with run.open_to_read() as file, pa.ipc.open_stream(file) as reader:
        run.path.unlink()
        yield from reader


class _Run:
    """Sorted rows, the next of which are in memory."""

    def __init__(self, pieces: Iterator[pa.RecordBatch]) -> None:
        self._pieces = pieces
        self.rows = next(pieces, None)

    @property
    def last(self) -> int:
        """The last sequence in memory. Not valid at the end."""
        assert self.rows is not None
        return int(self.rows.column("sequence")[-1].as_py())

    def take(self, upto: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows up to this sequence, which is at most `last`; copies of its message may follow later."""
        while self.rows is not None:
            sequences = self.rows.column("sequence")
            place = bisect_right(range(len(sequences)), upto, key=lambda at: sequences[at].as_py())
            if not place:
                return
            yield self.rows[:place]
            self.rows = self.rows[place:] if place < len(sequences) else next(self._pieces, None)


def _merge(pieces: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of sorted runs in order. Each step takes the rows that are surely complete."""
    active = [run for run in map(_Run, pieces) if run.rows is not None]
    while active:
        upto = min(run.last for run in active)
        parts = [rows for run in active for rows in run.take(upto)]
        yield from parts if len(parts) == 1 else _sort(pa.Table.from_batches(parts))
        active = [run for run in active if run.rows is not None]


def _sort(rows: pa.Table) -> list[pa.RecordBatch]:
    rows = rows.combine_chunks()
    batches: list[pa.RecordBatch] = rows.take(pc.sort_indices(rows, ORDER)).combine_chunks().to_batches()
    return batches
