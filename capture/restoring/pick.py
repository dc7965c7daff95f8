"""Selects messages of an archive and reads their rows: each once, ascending, in bounded memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from capture.archive.encryption import Keys
from capture.archive.sequences import MAXIMUM, Sequences, SetSum
from capture.errors import ManifestError, NotStoredError
from capture.reading.merge import GoneError, merge_shares
from capture.reading.shares import Selection, Share
from capture.reading.supply import Supply
from capture.restoring.archive import COLUMNS, as_columns
from capture.stores.contract import Store

MEMORY_BYTES = 32 << 20
"""Memory of the merge. A restore uses as much again for the archive's bytes that it sends to the server."""
KEPT = [*COLUMNS.names, "subject_raw"]


async def rows_of(
    store: Store, supply: Supply, wanted: Sequences, *, keys: Keys | None = None
) -> AsyncGenerator[pa.Table, None]:
    """Yield these messages of a stream, with `archive.COLUMNS`: ascending, each once.

    Objects that hold none of them are not read. If an object or a page of the index was replaced and deleted meanwhile,
    it continues with the archive as it is then. Raises the errors of `reading.merge.merge_shares` and `Supply.shares`.
    """
    last, failed = 0, ""
    while True:
        plan = supply.shares(wanted)
        try:
            async with aclosing(merge_shares(store, plan, keys=keys, columns=KEPT, memory_bytes=MEMORY_BYTES)) as each:
                async for batch in each:
                    last = batch.column("sequence")[-1].as_py()
                    yield as_columns(batch)
            return
        except (NotStoredError, ManifestError) as error:
            newer = await supply.renew(last) if _is_gone(error) and str(error) != failed else None
            if newer is None:
                raise
            supply, wanted, failed = newer, wanted.within(last + 1, MAXIMUM), str(error)


def _is_gone(error: NotStoredError | ManifestError) -> bool:
    """Return whether something was deleted that an earlier state of the archive had."""
    return isinstance(error, GoneError) or isinstance(error.__cause__, NotStoredError)


async def find_selected(
    store: Store, supply: Supply, selection: Selection, wanted: Sequences, *, keys: Keys | None = None
) -> Sequences:
    """Return the wanted sequences that are selected. An object is read only if its record does not decide it.

    Raises the errors of `reading.merge.merge_shares` and `Supply.shares`.
    """
    found = SetSum()

    async def list_doubtful() -> AsyncGenerator[Share, None]:
        async with aclosing(supply.shares(wanted, selection)) as plan:
            async for share in plan:
                if selection.takes_all_of(share.stored):
                    found.add(share.given, len(share.stored.sequences))
                else:
                    yield share

    columns = ["sequence", *sorted(selection.columns)]
    async with aclosing(
        merge_shares(store, list_doubtful(), keys=keys, columns=columns, memory_bytes=MEMORY_BYTES)
    ) as batches:
        async for batch in batches:
            found.add(Sequences.from_iterable(selection.of(batch).column("sequence").to_pylist()), batch.nbytes)
    return found.all
