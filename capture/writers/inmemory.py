"""The merge of a group that fits in memory: read, sort, leave out, write. Spark's executors do so with small groups."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from capture.cipher import Keys
from capture.manifest import Stored
from capture.merging import Group, Merged, Part
from capture.sequences import Sequences
from capture.stores.contract import Store
from capture.writers.envelope import SCHEMA
from capture.writers.inputs import input_rows
from capture.writers.tablefile import Distinct, TableFile

ORDER = [("sequence", "ascending"), ("deliveries", "ascending")]
"""Of copies of a message the first delivery is kept."""


class TooLarge(Exception):
    """The rows of a group take more memory than was allowed."""


async def merge_in_memory(
    store: Store,
    group: Group,
    columns: pa.Schema,
    keys: Keys | None,
    *,
    stored_ns: int,
    most_bytes: int | None = None,
) -> Merged:
    """Write the outputs of a group, with these typed columns. CaptureError if an input can't be read or stored.

    TooLarge, and nothing is written, if its rows have more than `most_bytes` in memory.
    """
    pieces: list[pa.Table] = []
    size = 0
    for one in group.inputs:
        for rows in input_rows(await store.get(one.path), one, columns, keys):
            size += rows.nbytes
            if most_bytes is not None and size > most_bytes:
                raise TooLarge
            pieces.append(rows)
    empty = pa.schema([*SCHEMA, *columns]).empty_table()
    rows = pa.concat_tables([empty, *pieces]).sort_by(ORDER)
    distinct = Distinct(group.excluded)
    kept = distinct.of(rows)
    repeated = repeated_ids(kept) if group.distinct == "message_id" else Sequences()
    if repeated:
        kept = kept.filter(pc.invert(pc.is_in(kept["sequence"], pa.array(repeated, pa.int64()))))
    outputs, conflicts = await _written(store, group, kept, columns, keys, stored_ns)
    return Merged(
        outputs=outputs,
        rows_in=distinct.rows_in,
        duplicates=distinct.rows_in - len(kept),
        repeated=repeated.to_text(),
        conflicts=conflicts,
    )


async def _written(
    store: Store, group: Group, kept: pa.Table, columns: pa.Schema, keys: Keys | None, stored_ns: int
) -> tuple[list[Stored], Counter[str]]:
    outputs, conflicts = [], Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        for part in group.parts:
            with TableFile(Path(folder) / "table", group, part, columns) as file:
                file.add(_within(kept, part))
                output = file.finish(stored_ns, keys)
            if output is not None:
                await store.put(output.path, Path(folder) / "table", if_absent=True)
                outputs.append(output)
                conflicts += file.conflicts
    return outputs, conflicts


def _within(rows: pa.Table, part: Part) -> pa.Table:
    inside = pc.and_(pc.greater_equal(rows["sequence"], part.first), pc.less_equal(rows["sequence"], part.last))
    return rows.filter(inside)


def repeated_ids(rows: pa.Table) -> Sequences:
    """Return the sequences of rows, which ascend, whose message id an earlier row has."""
    seen: set[str] = set()
    repeated = []
    for sequence, name in zip(rows["sequence"].to_pylist(), rows["message_id"].to_pylist(), strict=True):
        if name and name in seen:
            repeated.append(sequence)
        elif name:
            seen.add(name)
    return Sequences.from_iterable(repeated)
