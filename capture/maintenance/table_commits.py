"""Commits tables: the files and the shown blocks of a new one, with its metadata for other engines, in one step.

Merges and fresh commits of a leader take turns: each changes the table as it is when its turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, current
from capture.archive.index.contents import commit, renew
from capture.archive.index.page import place_of
from capture.archive.index.tree import Index, Where
from capture.archive.index.update import Update, held_of, update
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture
from capture.archive.retired_pages import move
from capture.archive.sequences import Sequences
from capture.archive.table import Exposure, Table, TableChange, Unexposed, first_table
from capture.errors import ManifestError, NotSweptError
from capture.maintenance.leading import Leading
from capture.stores.contract import Store


@dataclass
class TableLeading(Leading):
    """The term of the compaction's leader. Its merges and its fresh commits take turns at the table.

    `exposure` is how other engines read the table.
    """

    exposure: Exposure = field(default_factory=Unexposed)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False)
    _commits: TableCommits | None = field(default=None, init=False, repr=False)  # None: not known what is committed

    @contextlib.asynccontextmanager
    async def take_turn(self, clock: Callable[[], float], *, anew: bool = False) -> AsyncIterator[TableCommits]:
        """While the body runs, it alone changes the table. With `anew`, or after a failure, read what is committed.

        NotSweptError until the sweep's leader has made a manifest. FencedError; ManifestError; StoreError.
        """
        async with self._turn:
            commits, self._commits = self._commits, None
            if commits is None or anew:
                commits = await _take_over(self, clock())
            yield commits
            self._commits = commits


@dataclass
class TableCommits:
    """Commits the tables of a term, one after the other; `head` and `table` are the last ones.

    A table has the files in its list that a merge has loaded: see `index.contents.commit`.
    """

    leading: TableLeading
    head: Head
    table: Table

    @property
    def store(self) -> Store:
        """The archive's store."""
        return self.leading.store

    @property
    def index(self) -> Index:
        """The index of the table's files, which also reads that of the shown blocks."""
        return self.leading.indexes.files

    @property
    def blocks(self) -> Index:
        """The index of the manifest's blocks."""
        return self.leading.indexes.blocks

    async def commit(
        self, change: Callable[[Table], Table], now: float, *, show: Sequence[Stored] = (), hide: Sequence[Stored] = ()
    ) -> Table:
        """Commit the table as `change` returns it, with its metadata for other engines; return it as committed.

        Adds the blocks `show` to the shown ones, and removes those of `hide`, and those that the table consumes by this
        change. Others that show a sequence of a new file no longer do. FencedError if the term is over.
        """
        before, after = self.table, change(self.table)
        old, new = ({one.path for one in part.files} for part in (before, after))
        came = [one for one in after.files if one.path not in old]
        gone = [one for one in before.files if one.path not in new]
        if before.shown.root and after.consumed is not before.consumed:
            replaced, masked = await self._find_replaced(after, came)
            hide, show = [*hide, *replaced], [*show, *masked]
        hide = [*{one.path: one for one in hide}.values()]
        beside = await self._change_shown(show, hide)
        if beside:
            after = msgspec.structs.replace(after, shown=beside[0].version)

        async def files(stream: str) -> AsyncIterator[list[Stored]]:
            left_out = {one.path for one in (*gone, *hide)}
            for version in before.list_versions():
                async for part in self.index.scan(version, Where(stream=stream)):
                    yield await self.index.wholes([one for one in part if one.path not in left_out])
            yield [one for one in (*came, *show) if one.stream == stream]

        pointer, exposure = self.leading.pointer, self.leading.exposure
        exposed = await exposure.expose(TableChange(after, [*came, *show], [*gone, *hide], files, pointer.token, now))
        after = await self._move_retired(msgspec.structs.replace(exposed, leader=self.leading.node))
        self.head, self.table = await commit(
            self.index, pointer, self.head, before, after, now=now, grace=self.leading.grace, beside=beside
        )
        await exposure.announce(self.table, check=pointer.check)
        return self.table

    async def _move_retired(self, after: Table) -> Table:
        token, number = self.leading.pointer.token, self.head.number + 1
        retired, pages = await move(self.store, after.retired, token=token, number=number)
        return msgspec.structs.replace(after, retired=retired, retired_pages=[*after.retired_pages, *pages])

    async def _change_shown(self, show: Sequence[Stored], hide: Sequence[Stored]) -> list[Update]:
        if not show and not hide:
            return []
        token, number = self.leading.pointer.token, self.head.number + 1
        return [await update(self.index, self.table.shown, show, hide, token=token, number=number)]

    async def _find_replaced(self, after: Table, came: Sequence[Stored]) -> tuple[list[Stored], list[Stored]]:
        """Return the shown blocks to hide, and those to show again, with fewer sequences.

        To hide are those that `after` has consumed, and the others that show a sequence of a new file. These stay
        without that sequence, if they can.
        """
        shown = self.table.shown
        places = [one for one in after.consumed if not isinstance(one, str)]
        found = [*(await self.index.find(shown, places)).values()]
        paths = {one.path for one in found}
        consumed = await self.index.wholes(found)
        overlapping = await self._find_overlapping(came, consumed, paths)
        masked: list[Stored] = []
        for one in overlapping:
            if left := Sequences.from_bytes(one.sequences) - _sequences(came, one.stream):
                masked.append(msgspec.structs.replace(one, sequences=left.to_bytes()))
        if masked:
            masked, _ = await self.leading.exposure.list_fitting(after, masked)
        return [*consumed, *overlapping], masked

    async def _find_overlapping(
        self, came: Sequence[Stored], consumed: Sequence[Stored], leave: set[str]
    ) -> list[Stored]:
        found: list[Stored] = []
        for stream in sorted({one.stream for one in came} & self.table.shown.streams.keys()):
            held = await held_of(self.index, self.table.shown, stream)
            twice = (_sequences(came, stream) & held) - _sequences(consumed, stream)
            if not twice:
                continue
            where = Where(stream=stream, sequences=(twice.first, twice.last))
            async for part in self.index.scan(self.table.shown, where):
                wholes = await self.index.wholes([one for one in part if one.path not in leave])
                found += [one for one in wholes if not Sequences.from_bytes(one.sequences).isdisjoint(twice)]
        return found

    async def read_manifest(self) -> Manifest:
        """Return a manifest that is not older than the table. ManifestError if the head names no such manifest."""
        manifest = await _read_swept(self.leading)
        if not Picture(manifest, self.table).is_whole:  # a stale answer, or a head that its leader has not repaired yet
            raise ManifestError(f"manifest {manifest.number} is older than the table: nothing was compacted")
        return manifest

    async def find_dropped(self, manifest: Manifest) -> list[Stored]:
        """Return the shown blocks that a manifest does not name any more; none if they are of a later manifest."""
        found: list[Stored] = []
        if manifest.number < self.table.shown_of:
            return found
        async for part in self.index.scan(self.table.shown):
            named = await self.blocks.find(manifest.index, map(place_of, part))
            found += [one for one in part if place_of(one) not in named]
        return found


async def _take_over(leading: TableLeading, now: float) -> TableCommits:
    """Return the table under this term's token, and announce it."""

    async def first() -> Table:
        return first_table(await _read_swept(leading))

    renewed = partial(renew, leading.indexes.files)
    head, table = await current(leading.store, leading.pointer, Table, now, first, renewed)
    await leading.exposure.announce(table, check=leading.pointer.check)
    return TableCommits(leading, head, table)


async def _read_swept(leading: TableLeading) -> Manifest:
    manifest = await chain.read(leading.store, await leading.other_head(), Manifest)
    if manifest.format < Manifest.FORMAT:  # a leader of an earlier version may still change its table
        raise NotSweptError
    return manifest


def _sequences(objects: Sequence[Stored], stream: str) -> Sequences:
    return Sequences.union_of(Sequences.from_bytes(one.sequences) for one in objects if one.stream == stream)
