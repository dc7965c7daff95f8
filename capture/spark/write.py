"""What runs in the executor to merge: rows or groups come in, files go to the store, facts about them come out."""

import asyncio
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from capture.cipher import Keys
from capture.errors import CaptureError, CompactionError
from capture.merging import Group, Merged, Part
from capture.sequences import Sequences
from capture.stores import open_store
from capture.writers.evolution import read_columns
from capture.writers.inmemory import TooLarge, merge_in_memory
from capture.writers.tablefile import Distinct, TableFile

Reports = Iterator[pa.RecordBatch]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A group, the typed columns that its files get, and when they are stored (Unix nanoseconds)."""

    group: Group
    columns: str
    stored_ns: int


@dataclass(frozen=True)
class Place:
    """Where executors find objects and keys; these are read where they are needed, and never sent."""

    store: str
    key_file: str = ""

    def keys(self) -> Keys | None:
        """The keys, if there are any."""
        return Keys.load(self.key_file)


def write_and_report(place: Place, task: Task, part: Part, exclude: str, batches: Iterable[pa.RecordBatch]) -> Reports:
    """Store the rows of a part of a group, which come sorted by sequence; yields one row, a `Merged` as JSON.

    Each sequence is written once, and none of `exclude` (`Sequences.to_text`). When nothing is left, no object is made.
    CompactionError, and nothing is stored, unless exactly the messages were read that the entries of the inputs name;
    else what the store raises.
    """
    group, excluded = task.group, Sequences.from_text(exclude)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table"
        with TableFile(path, group, part, read_columns(task.columns)) as file:
            distinct = Distinct(excluded)
            for batch in batches:
                file.add(distinct.of(pa.Table.from_batches([batch])))
            _check(group, part, excluded, file.sequences)
            output = file.finish(task.stored_ns, place.keys())
        if output is not None:
            asyncio.run(open_store(place.store).put(output.path, path, if_absent=True))
    merged = Merged(
        outputs=[output] if output else [],
        rows_in=distinct.rows_in,
        duplicates=distinct.rows_in - len(file.sequences),
        conflicts=file.conflicts,
    )
    yield _report(merged)


def merge_each(place: Place, batches: Iterable[pa.RecordBatch], *, most_bytes: int) -> Reports:
    """Merge groups one after the other, each in memory; a row for each, with its number and a `Merged` as JSON.

    A group that takes more than `most_bytes` is answered by null; one that can't be merged by why.
    """
    for batch in batches:
        for number, text in zip(batch["number"].to_pylist(), batch["task"].to_pylist(), strict=True):
            task = msgspec.json.decode(text, type=Task)
            yield _report(asyncio.run(_merged(place, task, most_bytes)), number)


async def _merged(place: Place, task: Task, most_bytes: int) -> Merged | None:
    store, columns = open_store(place.store), read_columns(task.columns)
    options = {"stored_ns": task.stored_ns, "most_bytes": most_bytes}
    try:
        return await merge_in_memory(store, task.group, columns, place.keys(), **options)
    except TooLarge:
        return None
    except CaptureError as error:
        return Merged(failed=str(error))


def find_repeated(exclude: str, batches: Iterable[pa.RecordBatch]) -> Reports:
    """Yield one row, the sequences (`Sequences.to_text`) whose message id a lower one has that is not in `exclude`.

    Rows come sorted by message id and sequence, and are of messages that have an id.
    """
    excluded, repeated = Sequences.from_text(exclude), Sequences()
    last, kept = None, None
    for batch in batches:
        found = []
        for name, sequence in zip(batch["message_id"].to_pylist(), batch["sequence"].to_pylist(), strict=True):
            if sequence in excluded:
                continue
            if name != last:
                last, kept = name, sequence
            elif sequence != kept:
                found.append(sequence)
        repeated |= Sequences.from_iterable(found)
    yield pa.RecordBatch.from_pydict({"repeated": [repeated.to_text()]})


def _report(merged: Merged | None, number: int = 0) -> pa.RecordBatch:
    text = None if merged is None else msgspec.json.encode(merged).decode()
    schema = pa.schema([("number", pa.int64()), ("merged", pa.string())])
    return pa.RecordBatch.from_pylist([{"number": number, "merged": text}], schema)


def _check(group: Group, part: Part, exclude: Sequences, written: Sequences) -> None:
    held = Sequences.union_of(Sequences.from_text(one.sequences) for one in group.inputs)
    wanted = (held - exclude).within(part.first, part.last)
    if written != wanted:
        differing = (wanted - written) | (written - wanted)
        raise CompactionError(f"sequences {differing.describe()} differ between the inputs' entries and what was read")
