"""The sweep: adopts stored blocks into the manifest, retires superfluous ones, and deletes leftovers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, HeadReader, current
from capture.archive.index.contents import (
    Indexes,
    commit,
    ensure_index,
    find_consumed,
    find_orphans,
    read_paths,
    renew,
)
from capture.archive.index.held import read_lowest
from capture.archive.index.page import place_of
from capture.archive.index.tree import Index
from capture.archive.index.update import held_of
from capture.archive.index.version import Version
from capture.archive.manifest import (
    BLOCKS,
    ENTRIES,
    Manifest,
    Stored,
    decode_entry,
    entry_block,
    entry_path,
    is_outside,
    select_blocks,
)
from capture.archive.picture import GRACE
from capture.archive.retention import EVERYTHING, Expired, Retention
from capture.archive.retired_pages import read_retired
from capture.archive.sequences import MAXIMUM, Sequences
from capture.archive.table import Table, first_table
from capture.archive.trust import NO_CHECKS, Trust
from capture.errors import ManifestError, NotStoredError
from capture.maintenance.expiring import Expiring, find_expiring
from capture.maintenance.leading import Leading
from capture.maintenance.sweep_plan import NOWHERE, Rest, SweepPlan, plan_sweep
from capture.stores.contract import REQUESTS_AT_ONCE, Listing, ObjectInfo, Store, is_path
from natty.wire.background import map_concurrently

MOST_ENTRY_BYTES = 64 << 20
"""Of an entry. Its largest part is the set of its block's sequences, some MB for a block of millions."""
MOST_SAID = 20  # unreadable entries in the log

log = logging.getLogger("capture.sweep")


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """The result of a sweep: counts, the committed head, and what an operator should check (`dangling`, `unreadable`).

    `let_go` are blocks that the table has consumed, `expired` those that retention removes, `forgotten` those of both
    that are deleted by now. `manifest` is the committed one, and `table` the one that it is based on, empty if there is
    none; both without lists of objects, which their indexes have.
    """

    head: Head
    manifest: Manifest
    table: Table
    adopted: int = 0
    messages: int = 0
    let_go: int = 0
    expired: int = 0
    forgotten: int = 0
    removed_entries: int = 0
    removed_objects: int = 0
    dangling: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Preview:
    """What a sweep would do, which table files retention would remove, and which blocks were retired before."""

    plan: SweepPlan
    files: list[Expired]
    let_go: set[str]


async def sweep(
    leading: Leading,
    *,
    now: float,
    retention: Retention = EVERYTHING,
    begins: Mapping[str, int] = NOWHERE,
    trust: Trust = NO_CHECKS,
    outside: bool = False,
) -> SweepReport:
    """Adopt stored blocks into the manifest, retire those that the table has consumed or that retention removes.

    A full sweep lists the blocks, and deletes leftovers and what was retired. A sweep may be stopped at any point and
    run again, or run twice at once: it deletes an object only after the manifest that makes it superfluous is
    committed. FencedError if this term is over; nothing is deleted then. `begins` are the first sequences of the
    streams, read before `now` (Unix seconds). Entries that `trust` refuses are not adopted: they stay, and are reported
    like unreadable entries. `outside`: the nodes' layout stores blocks outside of `blocks/`; if the manifest
    names such a block, leftovers are looked for there in any case.
    """
    store, pointer, indexes, grace = leading.store, leading.pointer, leading.indexes, leading.grace
    clock = leading.start_clock(now)
    archive = _Archive(indexes, leading.other_head, leading.begin())
    objects = await archive.list_objects(outside)
    head, manifest = await current(store, pointer, Manifest, clock(), renew=partial(_renew, indexes.blocks))
    if archive.full and not outside and _names_outside(manifest):
        objects = await archive.list_objects(outside=True)
        head, manifest = await current(store, pointer, Manifest, clock())
    seen = await archive.read(manifest, objects, retention, now, trust)
    plan = seen.plan(now, grace, retention, begins)
    if plan.manifest is not None:
        after = msgspec.structs.replace(plan.manifest, leader=leading.node)
        head, manifest = await commit(indexes.blocks, pointer, head, seen.manifest, after, now=clock(), grace=grace)
    orphans = await find_orphans(indexes.blocks, manifest, objects, now - grace) if archive.full else []
    await chain.delete(store, pointer, [*plan.remove_entries, *plan.remove_objects, *orphans])
    table = seen.table or await ensure_index(indexes.files, first_table(manifest))
    leading.end(manifest.index.objects, archive.listed if archive.full else None)
    return _report(plan, head, seen, manifest, table, len(orphans))


async def preview(
    store: Store,
    manifest_head: HeadReader,
    table_head: HeadReader,
    *,
    now: float,
    grace: float = GRACE,
    retention: Retention = EVERYTHING,
    outside: bool = False,
) -> Preview:
    """Return what leaders would do now; it changes nothing. `outside` as in `sweep`."""
    archive = _Archive(Indexes(store), table_head, full=True)
    objects = await archive.list_objects(outside)
    manifest = await chain.read(store, await manifest_head(), Manifest)
    if not outside and _names_outside(manifest):
        objects = await archive.list_objects(outside=True)
        manifest = await chain.read(store, await manifest_head(), Manifest)
    seen = await archive.read(await ensure_index(archive.indexes.blocks, manifest), objects, retention, now, NO_CHECKS)
    plan = seen.plan(now, grace, retention, NOWHERE)
    files = seen.table.files if seen.table else seen.manifest.table
    blocks = [*(plan.manifest or seen.manifest).blocks, *(one.object for one in plan.expired)]
    expired = retention.find_expired([*blocks, *files], now, elsewhere=seen.rest.bytes)
    ours = {one.path for one in files}
    return Preview(plan, [one for one in expired if one.object.path in ours], {one.path for one in manifest.retired})


@dataclass(frozen=True)
class _Seen:
    """What a sweep has read: the documents with the objects that it may change in their lists, and the rest."""

    manifest: Manifest
    table: Table | None
    entries: list[Stored]
    objects: Listing
    unreadable: list[str]
    rest: Rest
    full: bool

    def plan(self, now: float, grace: float, retention: Retention, begins: Mapping[str, int]) -> SweepPlan:
        return plan_sweep(
            self.manifest,
            self.table,
            self.entries,
            self.objects,
            now=now,
            grace=grace,
            retention=retention,
            begins=begins,
            rest=self.rest,
            full=self.full,
        )


@dataclass
class _Archive:
    """Reads what a sweep needs of an archive; a `full` one needs a listing of all blocks.

    The store has `listed` so many objects for it.
    """

    indexes: Indexes
    table_head: HeadReader
    full: bool
    listed: int = 0

    @property
    def store(self) -> Store:
        return self.indexes.store

    async def list_objects(self, outside: bool) -> Listing:
        """List the archive in the order that plan_sweep needs."""
        listings = [await self.store.list("" if outside else BLOCKS)] if self.full else []
        for folder in (ENTRIES, Manifest.FOLDER, *((Manifest.PAGES,) if self.full else ())):
            listings.append(await self.store.list(folder))
        self.listed += sum(map(len, listings))
        if self.full and outside:
            listings[0] = select_blocks(listings[0])
        return [one for found in listings for one in found]

    async def read(self, manifest: Manifest, objects: Listing, retention: Retention, now: float, trust: Trust) -> _Seen:
        """Return the documents with the objects that a sweep may change, and the entries that were listed."""
        compacted = await self.table_head()
        table = None if compacted is None else await chain.read(self.store, compacted, Table)
        table = await ensure_index(self.indexes.files, table) if table else None
        entries, unreadable = await _read(self.store, _unknown_entries(manifest, objects))
        if refused := trust.list_refused(entries):
            entries = [one for one in entries if not trust.list_refused([one])]
            unreadable = [*unreadable, *refused]
        blocks = self.indexes.blocks
        adopted = [*(await blocks.find(manifest.index, map(place_of, entries))).values()]
        known = {one.path for one in adopted}
        fresh = [one for one in entries if one.path not in known]
        listed = {one.path for one in objects}
        overtaken = await find_existing(self.store, [one for one in fresh if one.path not in listed])
        objects = [*objects, *(ObjectInfo(one.path, one.bytes, now) for one in overtaken)]
        listed |= {one.path for one in overtaken}
        consumed: list[Stored] = []
        if table and table.number != manifest.of_table:  # otherwise a sweep has let them go
            consumed = await find_consumed(blocks, manifest, table)
        adding = [one for one in fresh if one.path in listed]
        expiring = await self._find_expiring(manifest, table, retention, now, adding, consumed)
        loaded = {one.path: one for one in await blocks.wholes(adopted)}
        loaded |= {one.path: one for part in (consumed, expiring.objects[0]) for one in part}
        if table:
            table = table.with_listed(expiring.objects[1])
        gone = {one.stream for one in fresh if one.path not in listed}
        rest = Rest(
            held={stream: await self._held(manifest, table, stream) for stream in sorted(gone)},
            lowest=await self._read_lowest(manifest, table),
            bytes=expiring.elsewhere,
            paths=await read_paths(blocks, manifest) if self.full else (),
            needed=await self._find_needed(manifest, table) if self.full else {},
        )
        return _Seen(manifest.with_listed([*loaded.values()]), table, entries, objects, unreadable, rest, self.full)

    async def _find_expiring(
        self,
        manifest: Manifest,
        table: Table | None,
        retention: Retention,
        now: float,
        adding: list[Stored],
        consumed: list[Stored],
    ) -> Expiring:
        sources = [(self.indexes.blocks, manifest.index), (self.indexes.files, table.index if table else Version())]
        adding = adding if table else [*adding, *manifest.table]
        return await find_expiring(retention, sources, now, adding=adding, left_out=consumed)

    async def _read_lowest(self, manifest: Manifest, table: Table | None) -> dict[str, int]:
        """Return the lowest sequence in the indexes of each stream of which something was removed."""
        removed = {one.stream for one in (*manifest.removed, *(table.removed if table else ()))}
        lowest: dict[str, int] = {}
        for index, version in ((self.indexes.blocks, manifest.index), *self._of_files(table)):
            for stream in removed & version.streams.keys():
                first = await read_lowest(version.streams[stream].held, index.set_page)
                lowest[stream] = min(lowest.get(stream, MAXIMUM), MAXIMUM if first is None else first)
        return lowest

    async def _find_needed(self, manifest: Manifest, table: Table | None) -> dict[str, float]:
        """Return what the table shows to other engines (see `Rest`); all retired blocks if the table is too old.

        So it is if the store has a later table than the head names, whose leader died before it committed it: the next
        leader commits it, and it may show blocks that were adopted at that time.
        """
        documents = await self.store.list(Table.FOLDER) if manifest.retired else []
        stored = [parts[0] for one in documents if (parts := chain.document_parts(Table, one.path))]
        if max([manifest.of_table, *stored]) > (table.number if table else 0):
            return {one.path: math.inf for one in manifest.retired}
        if table is None:
            return {}
        shown = [one.path async for part in self.indexes.files.scan(table.shown) for one in part]
        held = [path for one in table.iceberg.values() for path in one.list_held()]
        pages = await read_retired(self.store, table.retired_pages)
        retired = {path: page.since for page, paths in pages.items() for path in paths}
        retired |= {one.path: one.since for one in table.retired}
        return retired | dict.fromkeys([*shown, *held], math.inf)

    def _of_files(self, table: Table | None) -> list[tuple[Index, Version]]:
        return [(self.indexes.files, table.index)] if table else []

    async def _held(self, manifest: Manifest, table: Table | None, stream: str) -> Sequences:
        held = await held_of(self.indexes.blocks, manifest.index, stream)
        return held | await held_of(self.indexes.files, table.index, stream) if table else held


async def _renew(index: Index, manifest: Manifest) -> tuple[Manifest, Mapping[str, bytes]]:
    outside = any(is_outside(one.path) for one in manifest.blocks)
    renewed, pages = await renew(index, manifest)
    return msgspec.structs.replace(renewed, outside=manifest.outside or outside), pages


def _names_outside(manifest: Manifest) -> bool:
    paths = [*(one.path for one in manifest.blocks), *(one.path for one in manifest.retired)]
    return manifest.outside or any(map(is_outside, paths))


async def find_existing(store: Store, blocks: Sequence[Stored]) -> list[Stored]:
    """Return the blocks that exist. The writer of a block that does not exist gave it up without an ack."""

    async def exists(one: Stored) -> bool:
        try:
            await store.get_range(one.path, 0, 1)
        except NotStoredError:
            return False
        return True

    found = await map_concurrently(blocks, exists, at_once=REQUESTS_AT_ONCE)
    return [one for one, is_there in zip(blocks, found, strict=True) if is_there]


def _unknown_entries(manifest: Manifest, objects: Listing) -> Listing:
    """Return the listed entries whose block is not retired: only these are read."""
    retired = {one.path for one in manifest.retired}
    return [one for one in objects if one.path.startswith(ENTRIES) and entry_block(one.path) not in retired]


async def read_entries(store: Store) -> tuple[list[Stored], list[str]]:
    """Return the stored blocks that may not be adopted yet, and the problems of unreadable entries.

    For readers: call it before `read_picture`, and pass its blocks to `Picture.unadopted`.
    """
    return await _read(store, await store.list(ENTRIES))


async def _read(store: Store, listed: Iterable[ObjectInfo]) -> tuple[list[Stored], list[str]]:
    """Return the readable entries, and the problems of the others: a bad entry does not stop the sweep."""
    entries: list[Stored] = []
    unreadable: list[str] = []

    async def read(one: ObjectInfo) -> None:
        path = one.path
        try:
            if not is_path(path):
                path = repr(path)  # of a file that another program has made, and perhaps not text
                raise ManifestError(f"{path} is not the path of an entry")
            if one.bytes > MOST_ENTRY_BYTES:
                raise ManifestError(f"{path} has {one.bytes:,} bytes, and no entry has more than {MOST_ENTRY_BYTES:,}")
            entry = decode_entry(await store.get(path), path)
            if entry_path(entry.path) != path:
                raise ManifestError(f"{path} is the entry of another block, {entry.path}")
            entries.append(entry)
        except NotStoredError:  # another sweep adopted it
            pass
        except ManifestError as error:
            if len(unreadable) < MOST_SAID:
                log.error("%s", error, extra={"action": "read_entry", "path": path})
            unreadable.append(str(error))

    await map_concurrently(listed, read, at_once=REQUESTS_AT_ONCE)
    if len(unreadable) > MOST_SAID:
        log.error("%d entries can't be read, more than are named", len(unreadable), extra={"action": "read_entry"})
    return entries, sorted(unreadable)


def _report(plan: SweepPlan, head: Head, seen: _Seen, after: Manifest, table: Table, orphans: int) -> SweepReport:
    added = plan.let_go + len(plan.expired)
    return SweepReport(
        head=head,
        manifest=after,
        table=table,
        adopted=len(plan.adopt),
        messages=sum(one.count for one in plan.adopt),
        let_go=plan.let_go,
        expired=len(plan.expired),
        forgotten=len(seen.manifest.retired) + added - len(after.retired),
        removed_entries=len(plan.remove_entries),
        removed_objects=len(plan.remove_objects) + orphans,
        dangling=plan.dangling,
        unreadable=seen.unreadable,
    )
