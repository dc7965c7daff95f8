"""Merges a file group: read, sort, drop duplicates, write, store. Memory is bounded for a file group of any size."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from capture.archive.encryption import ENDING, Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Sequences
from capture.errors import AlreadyStoredError, CompactionError
from capture.formats.envelope import SCHEMA
from capture.maintenance.engine import FileGroup, Merged, Part
from capture.maintenance.merge.external_sort import MEMORY_BYTES, Runs
from capture.maintenance.merge.inputs import input_rows
from capture.maintenance.merge.same_output import find_same_output
from capture.maintenance.merge.table_file import Distinct, TableFile
from capture.stores.contract import Store, read_ahead


async def merge_group(
    store: Store,
    group: FileGroup,
    columns: pa.Schema,
    keys: Keys | None,
    *,
    stored_ns: int,
    part: Part | None = None,
    repeated: Sequences | None = None,
    memory_bytes: int = MEMORY_BYTES,
    encrypted: bool = False,
    scratch: Path | None = None,
) -> Merged:
    """Write the outputs of a group, with these typed columns; with a `part` only that one, from the inputs it needs.

    `repeated` are the sequences to leave out for their message ids, if they were determined before. Temporary files are
    encrypted if an input or an output is, or with `encrypted`. They are in a folder in `scratch`, by default in the
    system's temporary folder, and are deleted at the end. CompactionError, without storing the output, unless it read
    exactly the messages that the inputs' entries name. Another CaptureError if an input can't be read or an output not
    stored.
    """
    parts = [part] if part else group.parts
    first, last = parts[0].first, parts[-1].last
    paths = [*(one.path for one in group.inputs), *(one.output for one in parts)]
    encrypted = encrypted or any(path.endswith(f".{ENDING}") for path in paths)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, ExitStack() as files:
        runs = Runs(Path(folder), pa.schema([*SCHEMA, *columns]), memory_bytes, encrypted=encrypted)
        thread = files.enter_context(ThreadPoolExecutor(1))  # one thread: each keeps freed memory in its heap
        async with aclosing(aiter(read_ahead(store, inputs_of(group, first, last)))) as inputs:
            async for one, data in inputs:
                rows = input_rows(data, one, columns, keys)
                await asyncio.get_running_loop().run_in_executor(thread, _take, runs, rows, first, last)
        outputs = [
            files.enter_context(TableFile(Path(folder) / f"table-{number}", group, mine, columns, encrypted=encrypted))
            for number, mine in enumerate(parts)
        ]
        distinct = Distinct(group.excluded | (repeated or Sequences()))
        ids = Ids(asked=group.distinct == "message_id" and repeated is None)
        for kept in _drop_duplicates(runs.sort(), distinct, ids):
            for mine, output in zip(parts, outputs, strict=True):
                output.add(kept if len(parts) == 1 else _within(kept, mine.first, mine.last))
        repeated = repeated or ids.repeated
        for mine, output in zip(parts, outputs, strict=True):
            _check(group, mine, distinct.exclude | repeated, output.sequences)
        stored = [await _store_output(store, output, stored_ns, keys) for output in outputs]
    return Merged(
        outputs=[one for one in stored if one],
        rows_in=distinct.rows_in,
        duplicates=distinct.rows_in - sum(one.count for one in stored if one),
        repeated=repeated.to_text(),
        conflicts=sum((output.conflicts for output in outputs), Counter()),
    )


def inputs_of(group: FileGroup, first: int, last: int) -> list[Stored]:
    """Return the inputs that hold sequences from the first to the last."""
    if (first, last) == (0, MAXIMUM):
        return group.inputs
    return [one for one in group.inputs if Sequences.from_bytes(one.sequences).within(first, last)]


class Ids:
    """Tracks the message ids seen so far, if asked to: its memory grows with the number of messages that have one."""

    def __init__(self, *, asked: bool) -> None:
        self._asked = asked
        self._seen: set[str] = set()
        self._repeated: list[int] = []

    @property
    def repeated(self) -> Sequences:
        """The sequences that were left out."""
        return Sequences.from_iterable(self._repeated)

    def first_of(self, rows: pa.Table) -> pa.Table:
        """Return the rows, which ascend, without those whose message id an earlier row has."""
        if not self._asked:
            return rows
        found = []
        for sequence, name in zip(rows["sequence"].to_pylist(), rows["message_id"].to_pylist(), strict=True):
            if name and name in self._seen:
                found.append(sequence)
            elif name:
                self._seen.add(name)
        self._repeated += found
        return rows.filter(pc.invert(pc.is_in(rows["sequence"], pa.array(found, pa.int64())))) if found else rows


def _take(runs: Runs, rows: Iterable[pa.Table], first: int, last: int) -> None:
    for some in rows:
        runs.add(_within(some, first, last))


def _drop_duplicates(rows: Iterator[pa.RecordBatch], distinct: Distinct, ids: Ids) -> Iterator[pa.Table]:
    for batch in rows:
        yield ids.first_of(distinct.of(pa.Table.from_batches([batch])))


def _within(rows: pa.Table, first: int, last: int) -> pa.Table:
    if (first, last) == (0, MAXIMUM) or not len(rows):
        return rows
    return rows.filter(pc.and_(pc.greater_equal(rows["sequence"], first), pc.less_equal(rows["sequence"], last)))


def _check(group: FileGroup, part: Part, exclude: Sequences, written: Sequences) -> None:
    held = Sequences.union_of(Sequences.from_bytes(one.sequences) for one in group.inputs)
    wanted = (held - exclude).within(part.first, part.last)
    if written != wanted:
        differing = (wanted - written) | (written - wanted)
        raise CompactionError(f"sequences {differing.describe()} differ between the inputs' entries and what was read")


async def _store_output(store: Store, file: TableFile, stored_ns: int, keys: Keys | None) -> Stored | None:
    """Complete a file and put it into the store; None if it has no rows.

    An executor may be lost between its put and its answer. The executor that merges in its place makes the same file,
    and finds it in the store. AlreadyStoredError if the store holds other bytes at this path.
    """
    output = file.finish(stored_ns, keys)
    if output is None:
        return None
    try:
        await store.put(output.path, file.content, if_absent=True)
    except AlreadyStoredError:
        found = await find_same_output(store, output, file.content, keys)
        if found is None:
            raise
        return found
    return output
