"""Commits the tables of the pipelines: files, progress and the metadata for other engines in one fenced step."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, HeadPointer, Retired, current, old_documents
from capture.archive.iceberg_state import ICEBERG
from capture.archive.index.contents import commit, find_orphans, read_paths
from capture.archive.index.tree import Index, Where
from capture.archive.index.update import held_of, update_held
from capture.archive.manifest import TABLE, Stored
from capture.archive.picture import GRACE
from capture.archive.retired_pages import RETIRED, RetiredPage, move, read_retired
from capture.archive.sequences import Sequences
from capture.archive.table import Exposure, TableChange, Unexposed
from capture.errors import PipelineError
from capture.pipelines.document import Pipelines, PipelineTable, progress_of
from capture.stores.contract import REQUESTS_AT_ONCE, Listing, Store
from natty.wire.background import map_concurrently

Listed = TypeVar("Listed", Retired, RetiredPage)

MOST_DELETED = 5_000
"""Leftovers that one cleaning deletes; nothing is committed meanwhile. If there are more, the next one follows soon."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a commit changes: these tables, and the files that came and that went, which name their tables as streams.

    `progress` has for each table and stream (`progress_of`) the sequences whose messages the table has now, too; the
    sets in `anew` are emptied before. If the tables have the `same_rows`, in other files, readers of what is new skip
    the commit.
    """

    tables: Mapping[str, PipelineTable]
    came: Sequence[Stored] = ()
    gone: Sequence[Stored] = ()
    progress: Mapping[str, Sequences] = field(default_factory=dict)
    anew: Sequence[str] = ()
    same_rows: bool = False


@dataclass
class PipelineLeading:
    """The term of the pipelines' leader: the only one that changes their tables.

    It commits `pointer`; documents name it as `node`. Objects that nothing needs are deleted after `grace` seconds.
    `exposure` is how other engines read the tables. Several runs may use it at once: commits take turns, and each
    starts from the one before.
    """

    store: Store
    pointer: HeadPointer
    node: str = ""
    grace: float = GRACE
    exposure: Exposure = field(default_factory=Unexposed)
    elapsed: Callable[[], float] = time.monotonic
    index: Index = field(init=False)
    _committed: tuple[Head, Pipelines] | None = field(default=None, init=False, repr=False)
    _cleaned: float = field(default=-math.inf, init=False, repr=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    _runs: list[float] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self.index = Index(self.store, Pipelines.PAGES)

    async def read(self, now: float) -> Pipelines:
        """Return the committed tables; the first call of a term commits them again under its token.

        FencedError if the term is over; ManifestError if the document is missing or was changed; StoreError.
        """
        async with self._turn:
            return await self._read(now)

    async def _read(self, now: float) -> Pipelines:
        if self._committed is None:
            head, document = await current(self.store, self.pointer, Pipelines, now)
            await self.exposure.announce(document, check=self.pointer.check)
            self._committed = head, document
        return self._committed[1]

    @contextmanager
    def run(self, now: float) -> Iterator[None]:
        """While the body runs, delete nothing that a run which began at `now` reads or has written."""
        self._runs.append(now)
        try:
            yield
        finally:
            self._runs.remove(now)

    async def list_files(self, table: str, document: Pipelines | None = None) -> list[Stored]:
        """Return the files of a table, those with tombstones too: of this document, or of the last one.

        Raises as `read`.
        """
        document = document or await self.read(time.time())
        return [one async for part in self.index.scan(document.index, Where(stream=table)) for one in part]

    async def read_progress(self, pipeline: str, stream: str) -> Sequences:
        """Return exactly the sequences of a stream whose messages a pipeline's table has. Raises as `read`."""
        document = await self.read(time.time())
        return await held_of(self.index, document.progress, progress_of(pipeline, stream))

    async def commit(self, change: Change, now: float) -> Pipelines:
        """Commit a change, with the metadata for other engines, and return the tables as committed.

        PipelineError if the store does not have a file that came as it is recorded. FencedError if the term is over;
        ManifestError; StoreError. After a failure the next call reads what is committed.
        """
        async with self._turn:
            return await self._commit(change, now)

    async def _commit(self, change: Change, now: float) -> Pipelines:
        before = await self._read(now)
        assert self._committed
        (head, _), self._committed = self._committed, None
        await self._check_files(change.came)
        number, names = head.number + 1, {one.path for one in change.gone}
        progress = await update_held(
            self.index, before.progress, change.progress, change.anew, token=self.pointer.token, number=number
        )
        gone = [one async for one in self._find(before, change.gone)]
        after = msgspec.structs.replace(
            before,
            files=[*change.came],
            tables=before.tables | dict(change.tables),
            progress=progress.version,
            leader=self.node,
            created=now,
            retired=[*self._keep_retired(before.retired, now), *(Retired(path, now) for path in sorted(names))],
            retired_pages=self._keep_retired(before.retired_pages, now),
        )

        async def files(table: str) -> AsyncIterator[list[Stored]]:
            async for part in self.index.scan(before.index, Where(stream=table)):
                yield [one for one in part if one.path not in names]
            yield [one for one in change.came if one.stream == table]

        exposed = await self.exposure.expose(
            TableChange(after, change.came, gone, files, self.pointer.token, now, same_rows=change.same_rows)
        )
        retired, pages = await move(self.store, exposed.retired, token=self.pointer.token, number=number)
        exposed = msgspec.structs.replace(exposed, retired=retired, retired_pages=[*exposed.retired_pages, *pages])
        head, document = await commit(
            self.index,
            self.pointer,
            head,
            before.with_listed(gone),
            exposed,
            now=now,
            grace=self.grace,
            beside=[progress],
        )
        self._committed = head, document.with_listed([])
        await self.exposure.announce(document, check=self.pointer.check)
        return self._committed[1]

    async def clean(self, now: float) -> None:
        """Delete what no document names any more, and what killed runs have left, if that is due.

        Raises as `read`.
        """
        if self.elapsed() < self._cleaned + self.grace / 2:
            return
        self._cleaned, before = self.elapsed(), min([now, *self._runs]) - self.grace
        folders = (TABLE, ICEBERG, RETIRED, Pipelines.FOLDER, Pipelines.PAGES)
        objects = [one for folder in folders for one in await self.store.list(folder)]  # before the document is read
        async with self._turn:  # no other commit has begun: see find_orphans
            await self._delete(objects, before, now)

    async def _delete(self, objects: Listing, before: float, now: float) -> None:
        document = await self._read(now)
        moved = await read_retired(self.store, document.retired_pages)
        retired = {path: page.since for page, paths in moved.items() for path in paths}
        retired |= {one.path: one.since for one in document.retired}
        named = document.list_named() | await read_paths(self.index, document) | retired.keys()
        files = [one for one in objects if one.path.startswith((TABLE, ICEBERG, RETIRED))]
        superfluous = [
            *(one.path for one in files if retired.get(one.path, now) < before),
            *(one.path for one in files if one.path not in named and one.modified < before),
            *old_documents(document, objects, before),
            *await find_orphans(self.index, document, objects, before),
        ]
        if len(superfluous) > MOST_DELETED:
            self._cleaned = -math.inf
        await chain.delete(self.store, self.pointer, superfluous[:MOST_DELETED])

    def _keep_retired(self, retired: Sequence[Listed], now: float) -> list[Listed]:
        """Return the retired objects, or pages of them, without those that the last cleanings have deleted."""
        return [one for one in retired if one.since >= min([now, *self._runs]) - 3 * self.grace]

    async def _find(self, document: Pipelines, gone: Iterable[Stored]) -> AsyncIterator[Stored]:
        """Yield the records of these files as the index has them. PipelineError if it does not have one."""
        from capture.archive.index.page import place_of

        wanted = {place_of(one): one for one in gone}
        found = await self.index.find(document.index, wanted)
        for place, one in wanted.items():
            if place not in found:
                raise PipelineError(f"{one.path} is not a file of the table of {one.stream}: nothing was committed")
            yield found[place]

    async def _check_files(self, came: Sequence[Stored]) -> None:
        """Raise PipelineError unless the store has each file with the recorded number of bytes."""

        async def check(one: Stored) -> None:
            if len(await self.store.get_range(one.path, one.bytes - 1, 2)) != 1:
                raise PipelineError(
                    f"{one.path} has not the {one.bytes:,} bytes that were written: nothing was committed"
                )

        await map_concurrently(came, check, at_once=REQUESTS_AT_ONCE)
