"""Selects messages of an archive and reads their rows: each once, ascending, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing

import pyarrow as pa

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.formats import reader
from capture.reading.merge import merge_shares
from capture.reading.shares import Selection, narrow, shares
from capture.restoring.archive import COLUMNS, as_columns
from capture.stores.contract import Store

MEMORY_BYTES = 32 << 20
"""Memory of the merge. A restore uses as much again for the archive's bytes that it sends to the server."""
KEPT = [*COLUMNS.names, "subject_raw"]


async def rows_of(
    store: Store, objects: Iterable[Stored], wanted: Sequences, *, keys: Keys | None = None
) -> AsyncGenerator[pa.Table, None]:
    """Yield these messages from the objects of a stream, with `archive.COLUMNS`: ascending, each once.

    Objects that hold none of them are not read. Raises the errors of `reading.merge.merge_shares`.
    """
    plan = narrow(shares(objects), wanted)
    async with aclosing(merge_shares(store, plan, keys=keys, columns=KEPT, memory_bytes=MEMORY_BYTES)) as batches:
        async for batch in batches:
            yield as_columns(batch)


async def find_selected(
    store: Store, objects: Iterable[Stored], selection: Selection, wanted: Sequences, *, keys: Keys | None = None
) -> Sequences:
    """Return the wanted sequences that are selected. An object is read only if its record does not decide it.

    Raises the errors of `reading.merge.merge_shares`.
    """
    plan = narrow(shares(objects, selection), wanted)
    found = [share.given for share in plan if selection.takes_all_of(share.stored)]
    doubtful = [share for share in plan if not selection.takes_all_of(share.stored)]
    columns = ["sequence", *sorted(selection.columns)]
    async with aclosing(
        merge_shares(store, doubtful, keys=keys, columns=columns, memory_bytes=MEMORY_BYTES)
    ) as batches:
        async for batch in batches:
            found.append(Sequences.from_iterable(selection.of(batch).column("sequence").to_pylist()))
    return Sequences.union_of(found)


def unfit(objects: Iterable[Stored]) -> list[str]:
    """Return the paths of objects from which no exact restore is possible: their format does not keep whole messages.

    FormatError if this version does not know a format.
    """
    return [one.path for one in objects if not reader(one.format).restorable]


def fit(objects: Sequence[Stored]) -> list[Stored]:
    """Return the others. FormatError."""
    spoilt = set(unfit(objects))
    return [one for one in objects if one.path not in spoilt]
