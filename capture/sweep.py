from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from capture.errors import ManifestError, NotStored
from capture.manifest import (
    BLOCKS,
    ENTRIES,
    MANIFESTS,
    TABLE,
    Head,
    HeadPointer,
    Manifest,
    Retired,
    Stored,
    commit_manifest,
    current,
    decode_entry,
    entry_block,
    entry_path,
    manifest_parts,
)
from capture.stores.contract import Listing, Store

GRACE = 3600.0
"""Seconds before an object that nothing names is deleted, and one that the table replaces.

It is what readers of an older manifest get, and what a writer has between an object and its name. Whoever writes a
block gives up, without an ack, if its entry was not durable within half of this.
"""
MANIFESTS_KEPT = 20
CONCURRENCY = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """What a sweep is to do: commit `manifest` (None: nothing changed), then delete entries, then objects.

    `dangling` are entries whose block is not in the store: left alone, to be looked at.
    """

    adopt: list[Stored]
    remove_entries: list[str]
    remove_objects: list[str]
    manifest: Manifest | None
    dangling: list[str]


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """What a sweep did: counts, the committed head, and what an operator should look at (`dangling`, `unreadable`)."""

    head: Head | None
    adopted: int = 0
    messages: int = 0
    forgotten: int = 0
    removed_entries: int = 0
    removed_objects: int = 0
    dangling: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def plan_sweep(
    manifest: Manifest, entries: Iterable[Stored], objects: Listing, *, now: float, grace: float = GRACE
) -> SweepPlan:
    """Decide what to adopt and what to remove; pure.

    `objects` is a listing of the archive, in which blocks were listed before entries, and both before the manifest was
    read: then what nothing names was not merely overtaken. `entries` are the listed entries that were read.
    """
    listed = {one.path for one in objects}
    known = _known(manifest)
    unadopted = [one for one in entries if one.path not in known]
    adopt = sorted((one for one in unadopted if one.path in listed), key=lambda one: one.path)
    named = known | {one.path for one in adopt}
    kept = [one for one in manifest.retired if not _forgettable(one, listed, now - grace)]
    changed = bool(adopt) or len(kept) < len(manifest.retired)
    return SweepPlan(
        adopt=adopt,
        remove_entries=sorted(path for path in listed if path.startswith(ENTRIES) and entry_block(path) in named),
        remove_objects=[
            *_old_manifests(manifest, objects, now - grace),
            *(one.path for one in manifest.retired if one.path in listed and one.since < now - grace),
            *_leftovers(named, listed, objects, now - grace),
        ],
        manifest=msgspec.structs.replace(manifest, blocks=[*manifest.blocks, *adopt], retired=kept, created=now)
        if changed
        else None,
        dangling=sorted(one.path for one in unadopted if one.path not in listed),
    )


def _known(manifest: Manifest) -> set[str]:
    return {one.path for part in (manifest.blocks, manifest.table, manifest.retired) for one in part}


def _forgettable(one: Retired, listed: set[str], before: float) -> bool:
    """Tell whether a retired object may leave the manifest: its grace is over, and it is gone *with its entry*.

    An entry that outlived this record would look like a new one, and its rows would be adopted a second time.
    """
    return one.since < before and one.path not in listed and entry_path(one.path) not in listed


def _leftovers(named: set[str], listed: set[str], objects: Listing, before: float) -> list[str]:
    """Return old blocks and table files that neither the manifest nor an entry names: their writers died."""
    return [
        one.path
        for one in objects
        if one.path.startswith((BLOCKS, TABLE))
        and one.path not in named
        and entry_path(one.path) not in listed
        and one.modified < before
    ]


def _old_manifests(manifest: Manifest, objects: Listing, before: float) -> list[str]:
    return [
        one.path
        for one in objects
        if (parts := manifest_parts(one.path))
        and parts[0] <= manifest.number - MANIFESTS_KEPT
        and one.modified < before
    ]


async def sweep(
    store: Store, head_pointer: HeadPointer, *, now: float, grace: float = GRACE, node: str = ""
) -> SweepReport:
    """Adopt stored blocks into the manifest, forget what is deleted, remove leftovers.

    May be stopped anywhere and run again, or by two at once: nothing is deleted before the manifest that makes it
    superfluous is committed. Fenced, with nothing deleted, if this term is over or somebody else committed meanwhile.
    """
    objects = await store.list(BLOCKS) + await store.list(TABLE)
    objects += await store.list(ENTRIES) + await store.list(MANIFESTS)  # in this order: see plan_sweep
    head, manifest = await current(store, head_pointer)
    entries, unreadable = await _read(store, _unknown(manifest, objects))
    plan = plan_sweep(manifest, entries, objects, now=now, grace=grace)
    if plan.manifest is not None:
        head = await commit_manifest(store, head_pointer, head, msgspec.structs.replace(plan.manifest, leader=node))
    await _each([*plan.remove_entries, *plan.remove_objects], store.delete)
    return _reported(plan, head, len(manifest.retired), unreadable)


def _unknown(manifest: Manifest, objects: Listing) -> list[str]:
    """Return the listed entries whose block the manifest doesn't know: only these are read."""
    known = _known(manifest)
    return [one.path for one in objects if one.path.startswith(ENTRIES) and entry_block(one.path) not in known]


async def read_entries(store: Store) -> tuple[list[Stored], list[str]]:
    """Return the blocks that are stored and perhaps not yet adopted, and what is wrong with entries that can't be read.

    For readers: call it before reading the manifest, and leave out what the manifest knows.
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


def _reported(plan: SweepPlan, head: Head | None, retired: int, unreadable: list[str]) -> SweepReport:
    kept = retired if plan.manifest is None else len(plan.manifest.retired)
    return SweepReport(
        head=head,
        adopted=len(plan.adopt),
        messages=sum(one.count for one in plan.adopt),
        forgotten=retired - kept,
        removed_entries=len(plan.remove_entries),
        removed_objects=len(plan.remove_objects),
        dangling=plan.dangling,
        unreadable=unreadable,
    )
