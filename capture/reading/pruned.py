"""A dataset for Arrow and DuckDB whose objects are chosen when it is scanned, by the conditions of the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from capture.archive.index.page import Ref
from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM
from capture.formats.envelope import SCHEMA
from capture.reading.inventory import Item

_SEQUENCE = pc.field("sequence")
_TIME = pc.field("time_ns")
_STREAM = pc.field("stream")


class PrunedDataset(ds.Dataset):  # type: ignore[misc] # pyarrow has no types
    """Rows with the envelope's columns: `choose` returns the dataset that has all rows of a filter, and may have more.

    DuckDB calls `scanner` in a thread of its own, with the conditions that it pushes down, and `to_reader` of what that
    returns.
    """

    def __init__(self, choose: Callable[[pc.Expression | None], ds.Dataset]) -> None:
        self._choose = choose

    def __repr__(self) -> str:
        return "PrunedDataset()"

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return SCHEMA

    def scanner(self, **options: Any) -> Scanner:
        """Return a scanner of the chosen rows; its options are those of `pyarrow.dataset.Dataset.scanner`."""
        return Scanner(self._choose(options.get("filter")).scanner(**options))


class Scanner:
    """Rows of a scanner as a reader, made without Python's lock.

    `pyarrow.dataset.Scanner.to_reader` holds that lock while it waits for a mutex of Arrow. A thread of Arrow that has
    the mutex and closes a Python file waits for the lock: both stand still for ever. `to_batches` releases it.
    """

    def __init__(self, scanner: ds.Scanner) -> None:
        self._scanner = scanner

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows, to be read once."""
        return pa.RecordBatchReader.from_batches(self._scanner.projected_schema, self._scanner.to_batches())


def match(items: Sequence[Item], filter: pc.Expression | None) -> list[Item]:
    """Return the objects, or the pages of an index, that may have rows of a filter, by what is recorded of them.

    Arrow simplifies the filter with the ranges of each one: sequences, times, the stream.
    """
    if filter is None or not items:
        return list(items)
    fragments = ds.FileSystemDataset.from_paths(
        [str(place) for place in range(len(items))],
        schema=SCHEMA,
        format=ds.ParquetFileFormat(),
        filesystem=LocalFileSystem(),
        partitions=[_describe(one) for one in items],
    )
    return [items[int(one.path)] for one in fragments.get_fragments(filter=filter)]


def _describe(one: Stored | Ref) -> pc.Expression:
    """Return what is true of each row. The times of an object may not be recorded."""
    low, high = (one.low[0], one.high[0]) if isinstance(one, Ref) else (one.stream, one.stream)
    known = [one.first <= _SEQUENCE, one.last >= _SEQUENCE]
    known += [low == _STREAM] if low == high else [low <= _STREAM, high >= _STREAM]
    if 0 < one.max_ns < MAXIMUM:
        known += [one.min_ns <= _TIME, one.max_ns >= _TIME]
    return reduce(and_, known)
