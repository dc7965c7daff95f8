"""Merges small files of a pipeline's table, in the driver's process: what it reads and writes is Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa

from capture.archive.manifest import Stored
from capture.errors import PipelineError
from capture.maintenance.merge.schema_evolution import read_columns
from capture.pipelines.derivation import PackedFiles, Packing, Unit
from capture.pipelines.upkeep import SEQUENCE
from capture.spark.derive_task import UNIT, Fact, Writing, numbered_file, read_files, write_units
from capture.spark.failure import sentence

GROUP_ROWS, GROUP_BYTES = 256 * 1024, 32 << 20
"""Rows that are written at a time, and together decoded by readers: so many, or of so many bytes in memory."""


def pack(asked: Packing) -> PackedFiles:
    """Write the merged files; return facts about them. PipelineError, whose text names the table, for any fault.

    It holds one small file of each unit in memory, GROUP_BYTES of rows, and the merged file that it writes.
    """
    columns = pa.schema([*read_columns(asked.columns), pa.field(SEQUENCE, pa.int64())])
    writing = Writing(store=asked.store, folder=asked.folder, columns=columns, partition=asked.partition)
    try:
        [said] = write_units(writing, (one for files in asked.packs for one in _read(asked.store, columns, files)))
        facts = [msgspec.json.decode(one, type=Fact) for one in said["facts"].to_pylist()]
    except Exception as error:
        raise PipelineError(f"small files of {asked.table} can't be merged: {sentence(error)}") from error
    return PackedFiles(came=[one.file for one in facts if one.file])


def _read(store: str, columns: pa.Schema, files: Sequence[Stored]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the files of a unit, with UNIT, in few batches."""
    bucket = Unit.from_text(files[0].key).bucket
    named = [msgspec.json.encode(numbered_file(one)).decode() for one in files]
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in read_files(store, columns, iter([pa.RecordBatch.from_pydict({"file": named})])):
        held.append(batch)
        rows, size = rows + len(batch), size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            yield from _join(held, bucket)
            held, rows, size = [], 0, 0
    yield from _join(held, bucket)


def _join(held: Sequence[pa.RecordBatch], bucket: int) -> Iterator[pa.RecordBatch]:
    if held:
        rows = pa.Table.from_batches(held)
        rows = rows.append_column(UNIT, pa.repeat(pa.scalar(bucket, pa.int32()), len(rows)))
        yield from rows.combine_chunks().to_batches()
