from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from capture import chain
from capture.chain import Head, HeadPointer, HeadReader, Retired, current, old_documents
from capture.errors import ManifestError, NotStored
from capture.manifest import (
    BLOCKS,
    ENTRIES,
    Manifest,
    Stored,
    decode_entry,
    entry_block,
    entry_path,
)
from capture.stores.contract import Listing, Store
from capture.table import Table

GRACE = 3600.0
"""Seconds before a block that nothing names is deleted, and one that the table has consumed.

It is what readers of an older picture get, and what a writer has between a block and its entry. Whoever writes a block
gives up, without an ack, if its entry was not durable within half of this.
"""
CONCURRENCY = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep is to do: commit `manifest` (None: nothing changed), then delete entries, then objects.

    `let_go` counts the blocks that the table has consumed; `dangling` are entries whose block is not in the store: left
    alone, to be looked at.
    """

    adopt: list[Stored]
    let_go: int
    remove_entries: list[str]
    remove_objects: list[str]
    manifest: Manifest | None
    dangling: list[str]


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What a sweep did: counts, the committed head, and what an operator should look at (`dangling`, `unreadable`).

    `let_go` are blocks that the table has consumed, `forgotten` those of them that are deleted by now.
    """

    head: Head
    adopted: int = 0
    messages: int = 0
    let_go: int = 0
    forgotten: int = 0
    removed_entries: int = 0
    removed_objects: int = 0
    dangling: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def plan_sweep(
    manifest: Manifest,
    table: Table | None,
    entries: Iterable[Stored],
    objects: Listing,
    *,
    now: float,
    grace: float = GRACE,
) -> SweepPlan:
    """Decide what to adopt, what to let go and what to remove; pure.

    `objects` is a listing of the archive, in which blocks were listed before entries, and both before the manifest was
    read: then what nothing names was not merely overtaken. `entries` are the listed entries that were read. The table
    is a committed one, however old: what it names as consumed stays consumed.
    """
    listed = {one.path for one in objects}
    consumed = set(table.consumed) if table else set()
    known = _known(manifest)
    settled = known | consumed
    unadopted = [one for one in entries if one.path not in settled]
    adopt = sorted((one for one in unadopted if one.path in listed), key=lambda one: one.path)
    named = known | {one.path for one in adopt}
    settled |= named
    waiting = [one for one in manifest.blocks if one.path not in consumed]
    let_go = [Retired(one.path, now) for one in manifest.blocks if one.path in consumed]
    kept = [one for one in manifest.retired if _is_kept(one, table, listed, now - grace)]
    changed = adopt or let_go or len(kept) < len(manifest.retired) or (table and manifest.table)
    return SweepPlan(
        adopt=adopt,
        let_go=len(let_go),
        remove_entries=sorted(one for one in listed if one.startswith(ENTRIES) and entry_block(one) in settled),
        remove_objects=[
            *old_documents(manifest, objects, now - grace),
            *(one.path for one in manifest.retired if one.path in listed and one.since < now - grace),
            *_leftovers(named, listed, objects, now - grace),
        ],
        manifest=msgspec.structs.replace(
            manifest,
            blocks=[*waiting, *adopt],
            retired=[*kept, *let_go],
            of_table=max(manifest.of_table, table.number if table else 0),
            table=[] if table else manifest.table,
            created=now,
        )
        if changed
        else None,
        dangling=sorted(one.path for one in unadopted if one.path not in listed),
    )


def _known(manifest: Manifest) -> set[str]:
    return {one.path for part in (manifest.blocks, manifest.retired) for one in part}


def _is_kept(one: Retired, table: Table | None, listed: set[str], before: float) -> bool:
    """Tell whether a retired object stays in the manifest: until its grace is over, and it is gone *with its entry*.

    An entry that outlived this record would look like a new one, and its rows would be adopted a second time. What
    format 1 retired of its table stays until there is a table that has taken it over.
    """
    if not one.path.startswith(BLOCKS):
        return table is None
    return one.since >= before or one.path in listed or entry_path(one.path) in listed


def _leftovers(named: set[str], listed: set[str], objects: Listing, before: float) -> list[str]:
    """Return old blocks that neither the manifest nor an entry names: their writers died."""
    return [
        one.path
        for one in objects
        if one.path.startswith(BLOCKS)
        and one.path not in named
        and entry_path(one.path) not in listed
        and one.modified < before
    ]


async def sweep(
    store: Store,
    pointer: HeadPointer,
    table_head: HeadReader,
    *,
    now: float,
    grace: float = GRACE,
    node: str = "",
) -> SweepReport:
    """Adopt stored blocks into the manifest, let go of those that the table has consumed, remove leftovers.

    May be stopped anywhere and run again, or by two at once: nothing is deleted before the manifest that makes it
    superfluous is committed. Fenced, with nothing deleted, if this term is over.
    """
    objects = await store.list(BLOCKS) + await store.list(ENTRIES)  # in this order: see plan_sweep
    objects += await store.list(Manifest.FOLDER)
    head, manifest = await current(store, pointer, Manifest, now)
    compacted = await table_head()
    table = None if compacted is None else await chain.read(store, compacted, Table)
    entries, unreadable = await _read(store, _unknown(manifest, objects))
    plan = plan_sweep(manifest, table, entries, objects, now=now, grace=grace)
    if plan.manifest is not None:
        head = await chain.commit(store, pointer, head, msgspec.structs.replace(plan.manifest, leader=node))

    async def remove(path: str) -> None:
        pointer.check()
        await store.delete(path)

    await _each([*plan.remove_entries, *plan.remove_objects], remove)
    return _reported(plan, head, len(manifest.retired), unreadable)


def _unknown(manifest: Manifest, objects: Listing) -> list[str]:
    """Return the listed entries whose block the manifest doesn't know: only these are read."""
    known = _known(manifest)
    return [one.path for one in objects if one.path.startswith(ENTRIES) and entry_block(one.path) not in known]


async def read_entries(store: Store) -> tuple[list[Stored], list[str]]:
    """Return the blocks that are stored and perhaps not yet adopted, and what is wrong with entries that can't be read.

    For readers: call it before `read_picture`, and take `Picture.unadopted` of it.
    """
    return await _read(store, [one.path for one in await store.list(ENTRIES)])


async def _read(store: Store, paths: Iterable[str]) -> tuple[list[Stored], list[str]]:
    """Return the entries that can be read, and what is wrong with the others: one bad entry stops nobody."""
    entries: list[Stored] = []
    unreadable: list[str] = []

    async def read(path: str) -> None:
        try:
            entry = decode_entry(await store.get(path), path)
            if entry_path(entry.path) != path:
                raise ManifestError(f"{path} is the entry of another block, {entry.path}")
            entries.append(entry)
        except NotStored:  # another sweep adopted it
            pass
        except ManifestError as error:
            log.error("%s", error, extra={"action": "read_entry", "path": path})
            unreadable.append(str(error))

    await _each(paths, read)
    return entries, sorted(unreadable)


async def _each(paths: Iterable[str], action: Callable[[str], Awaitable[None]]) -> None:
    """Do this to every path, a few at a time; an error is raised when none of them runs any more."""
    waiting = iter(paths)

    async def work() -> None:
        for path in waiting:
            await action(path)

    results = await asyncio.gather(*(work() for _ in range(CONCURRENCY)), return_exceptions=True)
    for error in filter(None, results):
        raise error


def _reported(plan: SweepPlan, head: Head, retired: int, unreadable: list[str]) -> SweepReport:
    kept = retired if plan.manifest is None else len(plan.manifest.retired) - plan.let_go
    return SweepReport(
        head=head,
        adopted=len(plan.adopt),
        messages=sum(one.count for one in plan.adopt),
        let_go=plan.let_go,
        forgotten=retired - kept,
        removed_entries=len(plan.remove_entries),
        removed_objects=len(plan.remove_objects),
        dangling=plan.dangling,
        unreadable=unreadable,
    )
