"""The merge of an archive: every message of a stream once, in the order of their sequences.

The record of an object names exactly the sequences that it holds. So the merge decides before it opens anything which
object gives which message. It opens objects in the order in which they are needed, and its memory does not grow with
the archive.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from capture.archive.chain import HeadReader
from capture.archive.encryption import Keys
from capture.archive.heads import newest_readers
from capture.archive.index.tree import ALL, Where
from capture.archive.manifest import Manifest, Stored
from capture.archive.sequences import MAXIMUM
from capture.archive.table import Table
from capture.archive.trust import NO_CHECKS, Trust, read_trusted
from capture.errors import ManifestError, NotStoredError
from capture.formats.batches import PIECE_BYTES, PIECE_ROWS, cut, pieces
from capture.formats.envelope import SCHEMA
from capture.maintenance.sweep import find_existing, read_entries
from capture.reading.cursor import Cursor, position, read_share
from capture.reading.shares import EVERYTHING, Selection, Share, shares
from capture.reading.spool import Room, Spooled, Work, keep, spool
from capture.stores.contract import Store
from natty import Natty
from natty.wire.background import Ahead

MEMORY_BYTES = 64 << 20
"""The memory of a merge: a quarter each for fetched objects, for decoded pieces, for pieces that are sorted, and for
the object that is being decoded. What does not fit is in temporary files."""
AHEAD, AHEAD_SMALL = 2, 32
"""Objects that are fetched before they are needed: of any size, and if together they take half of that quarter."""
FAN_IN = 8
"""Objects that are open at once, each with a piece. If more overlap, some are merged into one first."""
SMALLEST_PIECE = 16 << 10  # bytes


class Look(Protocol):
    """Reads again which objects hold the messages of a stream."""

    def __call__(self, where: Where = ALL) -> Awaitable[list[Stored]]:
        """Return those that `where` finds."""
        ...


def make_look(
    store: Store, stream: str = "", *, natty: Natty | None = None, archive: str = "", trust: Trust = NO_CHECKS
) -> Look:
    """Return a function that lists the objects of a stream, or of all: adopted, in the table, or not adopted yet.

    With `natty` it reads the committed heads of the archive of this name; without, the newest documents in the store.
    It raises ManifestError for a document that is damaged, missing, or of a newer format, and the errors of `trust`.
    """
    heads: tuple[HeadReader | None, HeadReader | None] = (None, None)
    if natty is not None:
        newest = newest_readers(natty, archive, store)
        heads = newest[Manifest], newest[Table]

    async def look(where: Where = ALL) -> list[Stored]:
        where = where if not stream else replace(where, stream=stream)
        entries, unreadable = await read_entries(store)  # before the picture: see there
        if unreadable:
            raise ManifestError(unreadable[0])
        picture = await read_trusted(store, *heads, trust, where)
        waiting = picture.list_unadopted(entries)
        found = [*picture.files, *picture.blocks, *await find_existing(store, waiting)]
        trust.check_objects(found)
        return found

    return look


async def read_stored(
    store: Store,
    look: Look,
    *,
    selection: Selection = EVERYTHING,
    keys: Keys | None = None,
    columns: Sequence[str] = SCHEMA.names,
    memory_bytes: int = MEMORY_BYTES,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield every selected message of the archive once, in order, with these columns of the envelope.

    A block that is compacted and deleted meanwhile is read from the table. FormatError names an object that differs
    from its record or can't be read; KeyMissingError and CipherError an object that can't be decrypted; NotStoredError
    an object that was deleted and not replaced. SpillError: the disk for temporary files is full.
    """
    last, missing = selection.start_sequence - 1, ""
    wanted = [name for name in SCHEMA.names if name in {"sequence", *columns, *selection.columns}]
    while True:
        objects = await look(replace(selection, start_sequence=last + 1).where)
        if missing in {one.path for one in objects}:
            raise NotStoredError(f"there is no {missing} in {store.url}, and the archive still names it")
        plan = shares(objects, replace(selection, start_sequence=last + 1))
        try:
            async with aclosing(
                merge_shares(store, plan, keys=keys, columns=wanted, memory_bytes=memory_bytes)
            ) as batches:
                async for batch in batches:
                    last = batch.column("sequence")[-1].as_py()
                    if len(some := selection.of(batch)):
                        yield some.select(list(columns))
            return
        except GoneError as gone:
            missing = gone.path


class GoneError(NotStoredError):
    """An object to read is not in the store any more; `path` is its path."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


# --- the steps of the merge ------------------------------------------------------------------------------------------


async def merge_shares(
    store: Store,
    plan: Iterable[Share] | AsyncGenerator[Share, None],
    *,
    keys: Keys | None = None,
    columns: Sequence[str] = SCHEMA.names,
    memory_bytes: int = MEMORY_BYTES,
    also: pa.RecordBatch | None = None,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of a plan of `shares`, in order. Raises as `stored` does, and GoneError.

    A plan may be made while it is read. It is sorted by the first sequences of its shares. Objects of different keys
    and nodes overlap, so FAN_IN are open at once. `also` are rows of other sequences that are merged with them. It
    takes `memory_bytes`, and the memory of FAN_IN messages if they are larger than a piece.
    """
    opener = _Opener(keys, columns, memory_bytes)
    active = [Cursor(iter([also]), len(also))] if also else []
    worker = ThreadPoolExecutor(1, "capture-merge")  # Arrow reuses freed memory in the same thread only
    work = partial(asyncio.get_running_loop().run_in_executor, worker)

    async def fetch(share: Share) -> Spooled:
        return await _fetch(store, share.stored, opener.room, work)

    async with Ahead(
        plan,
        fetch,
        most=AHEAD_SMALL,
        most_bytes=memory_bytes // 8,
        size=lambda share: share.stored.bytes,
        least=AHEAD,
        discard=Spooled.close,
    ) as waiting:
        try:
            while (share := await waiting.first()) or active:
                while share and share.given.first <= min((one.head for one in active), default=MAXIMUM):
                    if len(active) >= FAN_IN:
                        await work(opener.fold, active)
                    await work(opener.open, share, await waiting.take(), active)
                    share = await waiting.first()
                upto = share.given.first - 1 if share else MAXIMUM
                rows = await work(_step, active, upto, opener.piece_bytes)
                active = [one for one in active if not one.ended]
                for batch in rows:
                    yield batch
        finally:
            worker.submit(_close, active)  # after the running step
            worker.shutdown(wait=False)


def _close(cursors: list[Cursor]) -> None:
    for one in cursors:
        one.close()


def _step(active: list[Cursor], upto: int, most_bytes: int) -> list[pa.RecordBatch]:
    """Return the next rows, up to the sequence to which every open object is decoded."""
    upto = min([upto, *(one.last for one in active)])
    parts = [one.take(upto) for one in active if one.head <= upto]
    if len(parts) == 1:
        return parts
    rows = pa.Table.from_batches(parts).sort_by("sequence").combine_chunks()
    return [piece for batch in rows.to_batches(max_chunksize=PIECE_ROWS) for piece in cut(batch, most_bytes)]


class _Opener:
    """Opens objects and divides the memory among those that are open at the same time."""

    def __init__(self, keys: Keys | None, columns: Sequence[str], memory_bytes: int) -> None:
        self.room = Room(memory_bytes // 4)
        self.piece_bytes = max(SMALLEST_PIECE, min(PIECE_BYTES, memory_bytes // 4 // FAN_IN))
        self._keys = keys
        self._columns = columns
        self._where_it_is: Cursor | None = None

    def open(self, share: Share, spooled: Spooled, active: list[Cursor]) -> None:
        """Add the cursor of an object.

        One object at a time is decoded while it is read, since a decoder takes memory. The others are decoded one
        after the other, and their rows are kept.
        """
        rows = pieces(spooled.source, share.stored, self._keys, columns=self._columns, piece_bytes=self.piece_bytes)
        mine, count = read_share(share, rows), len(share.given)
        try:
            if self._where_it_is is None or self._where_it_is.ended:
                self._where_it_is = Cursor(mine, count, spooled.close)
                active.append(self._where_it_is)
                return
            active.append(Cursor(keep(mine, self.room), count))
        except BaseException:
            spooled.close()
            raise
        spooled.close()

    def fold(self, active: list[Cursor]) -> None:
        """Merge the half with the fewest rows left into one cursor, so that rows are copied as rarely as possible."""
        active.sort(key=lambda one: one.left)
        few = active[: FAN_IN // 2]
        count = sum(one.left for one in few)
        active[: len(few)] = [Cursor(keep(self._rows_of(few), self.room), count)]

    def _rows_of(self, cursors: list[Cursor]) -> Iterator[pa.RecordBatch]:
        while cursors:
            yield from _step(cursors, MAXIMUM, self.piece_bytes)
            cursors = [one for one in cursors if not one.ended]


async def _fetch(store: Store, stored: Stored, room: Room, work: Work) -> Spooled:
    try:
        return await spool(store, stored, room, work)
    except NotStoredError as error:
        raise GoneError(stored.path, str(error)) from error


def slice_after(rows: pa.RecordBatch | None, sequence: int, upto: int) -> pa.RecordBatch | None:
    """Return the rows after a sequence, up to another one, included; None if there are none."""
    if not rows:
        return None
    return rows[position(rows, sequence, bisect_right) : position(rows, upto, bisect_right)] or None
