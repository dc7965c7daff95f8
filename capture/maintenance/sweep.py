"""The sweep: adopts stored blocks into the manifest, retires superfluous ones, and deletes leftovers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, HeadPointer, HeadReader, Retired, current, old_documents
from capture.archive.coverage import coverage
from capture.archive.manifest import (
    ENTRIES,
    Manifest,
    Stored,
    decode_entry,
    entry_block,
    entry_path,
    is_block,
    is_outside,
    list_blocks,
)
from capture.archive.picture import GRACE
from capture.archive.retention import EVERYTHING, Expired, Retention, record_removed, removed_sequences, sum_up
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.archive.trust import NO_CHECKS, Trust
from capture.errors import ManifestError, NotStoredError
from capture.stores.contract import REQUESTS_AT_ONCE, Listing, ObjectInfo, Store
from natty.wire.background import map_concurrently

MOST_ENTRY_BYTES = 64 << 20
"""Of an entry. Its largest part is the set of its block's sequences, some MB for a block of millions."""
MOST_SAID = 20  # unreadable entries in the log
NOWHERE: Mapping[str, int] = {}
"""No first sequence of any stream is known."""

log = logging.getLogger("capture.sweep")


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The work of a sweep: commit `manifest` (None: nothing changed), then delete entries, then objects.

    `let_go` counts the blocks that the table has consumed, `expired` are those that retention removes. `dangling` are
    entries whose block is not in the store, with messages that no other object holds. They are left for an operator to
    check.
    """

    adopt: list[Stored]
    let_go: int
    expired: list[Expired]
    remove_entries: list[str]
    remove_objects: list[str]
    manifest: Manifest | None
    dangling: list[str]


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """The result of a sweep: counts, the committed head, and what an operator should check (`dangling`, `unreadable`).

    `let_go` are blocks that the table has consumed, `expired` those that retention removes, `forgotten` those of both
    that are deleted by now. `manifest` is the committed one, `table` the one that it is based on, if any.
    """

    head: Head
    manifest: Manifest
    table: Table | None = None
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


def plan_sweep(
    manifest: Manifest,
    table: Table | None,
    entries: Iterable[Stored],
    objects: Listing,
    *,
    now: float,
    grace: float = GRACE,
    retention: Retention = EVERYTHING,
    begins: Mapping[str, int] = NOWHERE,
) -> SweepPlan:
    """Plan which blocks to adopt, which to retire and which objects to delete; pure.

    `objects` is a listing of the archive. Blocks were listed before entries, and both before the manifest was read, so
    an unnamed object is not just a newer one. `entries` are the listed entries that were read. The table is a committed
    one of any age: blocks that it names as consumed stay consumed. `begins` are the first sequences of the streams, as
    far as known.
    """
    listed = {one.path for one in objects}
    consumed = set(table.consumed) if table else set()
    known = manifest.list_paths()
    settled = known | consumed
    unadopted = [one for one in entries if one.path not in settled]
    gone_blocks = [one for one in unadopted if one.path not in listed]
    adopt = sorted((one for one in unadopted if one.path in listed), key=lambda one: one.path)
    named = known | {one.path for one in adopt}
    settled |= named
    waiting = [*(one for one in manifest.blocks if one.path not in consumed), *adopt]
    let_go = [Retired(one.path, now) for one in manifest.blocks if one.path in consumed]
    expired = _find_expired(manifest, table, waiting, retention, now)
    gone = {one.object.path for one in expired}
    superseded = _find_superseded(gone_blocks, manifest, waiting, table)
    settled |= superseded
    kept = [one for one in manifest.retired if _is_kept(one, table, listed, now - grace)]
    changed = adopt or let_go or expired or len(kept) < len(manifest.retired) or (table and manifest.table)
    return SweepPlan(
        adopt=adopt,
        let_go=len(let_go),
        expired=expired,
        remove_entries=sorted(one for one in listed if one.startswith(ENTRIES) and entry_block(one) in settled),
        remove_objects=[
            *old_documents(manifest, objects, now - grace),
            *(one.path for one in manifest.retired if one.path in listed and one.since < now - grace),
            *_leftovers(named, listed, objects, now - grace),
        ],
        manifest=msgspec.structs.replace(
            manifest,
            blocks=[one for one in waiting if one.path not in gone],
            retired=[*kept, *let_go, *(Retired(path, now) for path in sorted(gone))],
            of_table=max(manifest.of_table, table.number if table else 0),
            table=[] if table else manifest.table,
            removed=sum_up(
                record_removed(manifest.removed, (one.object for one in expired), now),
                _find_first_held(manifest, table, waiting, begins),
                now,
            ),
            created=now,
        )
        if changed
        else None,
        dangling=sorted(one.path for one in gone_blocks if one.path not in superseded),
    )


def _find_expired(
    manifest: Manifest, table: Table | None, blocks: list[Stored], retention: Retention, now: float
) -> list[Expired]:
    """Return the blocks that retention removes. Rules also count the table's files; the compaction removes those.

    If the table is older than the manifest's last one, sizes would not add up: then it returns none.
    """
    if manifest.of_table > (table.number if table else 0):
        return []
    ours = {one.path for one in blocks}
    files = table.files if table else manifest.table
    return [one for one in retention.find_expired([*blocks, *files], now) if one.object.path in ours]


def _find_first_held(
    manifest: Manifest, table: Table | None, waiting: list[Stored], begins: Mapping[str, int]
) -> Mapping[str, int]:
    """For streams with removals, return the sequence before which neither the archive nor the stream has a message."""
    if manifest.of_table > (table.number if table else 0):
        return NOWHERE
    held = [*waiting, *(table.files if table else manifest.table)]
    removed = {one.stream for one in (*manifest.removed, *(table.removed if table else ()))}
    firsts = {stream: [one.first for one in held if one.stream == stream] for stream in removed & begins.keys()}
    return {stream: min([begins[stream], *found]) for stream, found in firsts.items()}


def _find_superseded(entries: list[Stored], manifest: Manifest, blocks: list[Stored], table: Table | None) -> set[str]:
    """Return the blocks whose messages are also elsewhere, or were until retention removed them.

    Their writers gave these blocks up without an ack, and wrote the entry after the block was deleted as a leftover.
    """
    if not entries:
        return set()
    removed = removed_sequences(manifest.removed, table.removed if table else [])
    covered = coverage([*blocks, *(table.files if table else manifest.table)], removed)
    return {
        one.path
        for one in entries
        if (known := covered.get(one.stream)) and not Sequences.from_text(one.sequences) - known.held - known.removed
    }


def _is_kept(one: Retired, table: Table | None, listed: set[str], before: float) -> bool:
    """Return whether a retired object stays in the manifest: until its grace is over, and it is gone *with its entry*.

    An entry that outlived this record would look new, and its rows would be adopted a second time. Table files that
    format 1 retired stay until a table has taken them over.
    """
    if not is_block(one.path):
        return table is None
    return one.since >= before or one.path in listed or entry_path(one.path) in listed


def _leftovers(named: set[str], listed: set[str], objects: Listing, before: float) -> list[str]:
    """Return old blocks that neither the manifest nor an entry names: their writers died."""
    return [
        one.path
        for one in objects
        if is_block(one.path) and one.path not in named and entry_path(one.path) not in listed and one.modified < before
    ]


async def sweep(
    store: Store,
    pointer: HeadPointer,
    table_head: HeadReader,
    *,
    now: float,
    grace: float = GRACE,
    node: str = "",
    retention: Retention = EVERYTHING,
    begins: Mapping[str, int] = NOWHERE,
    trust: Trust = NO_CHECKS,
    outside: bool = False,
) -> SweepReport:
    """Adopt stored blocks into the manifest, retire those that the table has consumed or that retention removes.

    Then delete leftovers. A sweep may be stopped at any point and run again, or run twice at once: it deletes an object
    only after the manifest that makes it superfluous is committed. FencedError if this term is over; nothing is deleted
    then. `begins` are the first sequences of the streams, read before. Entries that `trust` refuses are not adopted:
    they stay, and are reported like unreadable entries. `outside` tells that the nodes' layout stores blocks outside of
    `blocks/`; if the manifest names such a block, leftovers are looked for there in any case.
    """
    objects = await _list_archive(store, outside)
    head, manifest = await current(store, pointer, Manifest, now)
    if not outside and _names_outside(manifest):
        objects = await _list_archive(store, outside=True)
        head, manifest = await current(store, pointer, Manifest, now)
    table, entries, objects, unreadable = await _read_state(store, manifest, table_head, objects)
    if refused := trust.list_refused(entries):
        entries, unreadable = [one for one in entries if not trust.list_refused([one])], [*unreadable, *refused]
    plan = plan_sweep(manifest, table, entries, objects, now=now, grace=grace, retention=retention, begins=begins)
    if plan.manifest is not None:
        head = await chain.commit(store, pointer, head, msgspec.structs.replace(plan.manifest, leader=node))
    await chain.delete(store, pointer, [*plan.remove_entries, *plan.remove_objects])
    return _report(plan, head, manifest, table, unreadable)


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
    objects = await _list_archive(store, outside)
    manifest = await chain.read(store, await manifest_head(), Manifest)
    if not outside and _names_outside(manifest):
        objects = await _list_archive(store, outside=True)
        manifest = await chain.read(store, await manifest_head(), Manifest)
    table, entries, objects, _ = await _read_state(store, manifest, table_head, objects)
    plan = plan_sweep(manifest, table, entries, objects, now=now, grace=grace, retention=retention)
    blocks = [*(plan.manifest or manifest).blocks, *(one.object for one in plan.expired)]
    files = {one.path: one for one in (table.files if table else manifest.table)}
    expired = retention.find_expired([*blocks, *files.values()], now)
    return Preview(plan, [one for one in expired if one.object.path in files], {one.path for one in manifest.retired})


async def _list_archive(store: Store, outside: bool) -> Listing:
    """List the archive in the order that plan_sweep needs."""
    return await list_blocks(store, outside=outside) + await store.list(ENTRIES) + await store.list(Manifest.FOLDER)


def _names_outside(manifest: Manifest) -> bool:
    return any(is_outside(path) for path in manifest.list_paths())


async def _read_state(
    store: Store, manifest: Manifest, table_head: HeadReader, objects: Listing
) -> tuple[Table | None, list[Stored], Listing, list[str]]:
    """Return the table, the new entries, the completed listing, and the problems of unreadable entries."""
    compacted = await table_head()
    table = None if compacted is None else await chain.read(store, compacted, Table)
    entries, unreadable = await _read(store, _unknown_entries(manifest, objects))
    return table, entries, objects + await _list_overtaken(store, entries, objects), unreadable


async def _list_overtaken(store: Store, entries: Iterable[Stored], objects: Listing) -> Listing:
    """List again blocks that were not listed although their entries were: most of them are stored by now."""
    listed = {one.path for one in objects}
    found: Listing = []

    async def look(path: str) -> None:
        found.extend(one for one in await store.list(path) if one.path == path)

    await map_concurrently([one.path for one in entries if one.path not in listed], look, at_once=REQUESTS_AT_ONCE)
    return found


def _unknown_entries(manifest: Manifest, objects: Listing) -> Listing:
    """Return the listed entries whose block is not in the manifest: only these are read."""
    known = manifest.list_paths()
    return [one for one in objects if one.path.startswith(ENTRIES) and entry_block(one.path) not in known]


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


def _report(plan: SweepPlan, head: Head, before: Manifest, table: Table | None, unreadable: list[str]) -> SweepReport:
    after = plan.manifest or before
    added = plan.let_go + len(plan.expired)
    return SweepReport(
        head=head,
        manifest=msgspec.structs.replace(after, number=head.number, token=head.token),
        table=table,
        adopted=len(plan.adopt),
        messages=sum(one.count for one in plan.adopt),
        let_go=plan.let_go,
        expired=len(plan.expired),
        forgotten=len(before.retired) + added - len(after.retired),
        removed_entries=len(plan.remove_entries),
        removed_objects=len(plan.remove_objects),
        dangling=plan.dangling,
        unreadable=unreadable,
    )
