"""Merges in the executor: takes a file group, writes its files to the store, and returns facts about them."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from capture.archive.encryption import Keys
from capture.archive.sequences import Sequences
from capture.errors import CaptureError
from capture.maintenance.engine import FileGroup, Merged, Part
from capture.maintenance.merge.merge_group import merge_group
from capture.maintenance.merge.schema_evolution import read_columns
from capture.spark.scratch import Scratch
from capture.stores import open_store


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A file group, the typed columns of its files, and the time at which they are stored (Unix nanoseconds).

    If the group is split, `part` is the one to write. `repeated` (`Sequences.to_text`) are the sequences to leave out
    for their message ids; None: not determined.
    """

    group: FileGroup
    columns: str
    stored_ns: int
    part: Part | None = None
    repeated: str | None = None


@dataclass(frozen=True)
class StoreAccess:
    """Where executors find objects and keys; they read the keys there, and Spark never sends them.

    `encrypted` means that all files on an executor's disk must be encrypted.
    """

    store: str
    key_file: str = ""
    encrypted: bool = False

    def keys(self) -> Keys | None:
        """The keys, if there are any."""
        return Keys.load(self.key_file)


def carry_out(access: StoreAccess, task: bytes) -> bytes:
    """Carry out a `Task` (JSON); return a `Merged` as JSON, with the reason if the merge failed."""
    return msgspec.json.encode(asyncio.run(_merge(access, msgspec.json.decode(task, type=Task))))


async def _merge(access: StoreAccess, task: Task) -> Merged:
    repeated = None if task.repeated is None else Sequences.from_text(task.repeated)
    scratch = Scratch()  # the next executor on this machine removes what a killed one leaves
    try:
        return await merge_group(
            open_store(access.store),
            task.group,
            read_columns(task.columns),
            access.keys(),
            stored_ns=task.stored_ns,
            part=task.part,
            repeated=repeated,
            encrypted=access.encrypted,
            scratch=scratch.path,
        )
    except CaptureError as error:
        return Merged(failed=str(error))
    finally:
        scratch.remove()


def find_repeated(exclude: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield one row: the sequences (`Sequences.to_text`) with the message id of a lower one that is not in `exclude`.

    Rows are sorted by message id and sequence, and all have an id.
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
