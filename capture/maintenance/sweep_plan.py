"""Plans a sweep: pure, from the manifest, the table, the entries and a listing of the archive."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from capture.archive.chain import Retired, old_documents
from capture.archive.coverage import coverage
from capture.archive.manifest import ENTRIES, Manifest, Stored, entry_block, entry_path, is_block, is_outside
from capture.archive.picture import GRACE
from capture.archive.retention import EVERYTHING, Expired, Retention, record_removed, removed_sequences, sum_up
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.stores.contract import Listing

NOWHERE: Mapping[str, int] = {}
"""No first sequence of any stream is known."""


@dataclass(frozen=True, kw_only=True)
class Rest:
    """What the archive holds besides the objects in the lists of manifest and table.

    `held` and `lowest` are the sequences and the lowest one by stream, `bytes` the sizes by the number of the retention
    rule that decides. `paths` are the paths of all adopted blocks. `needed` are paths that other engines' readers may
    need, with the time (Unix seconds) since which no snapshot names them.
    """

    held: Mapping[str, Sequences] = field(default_factory=dict)
    lowest: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[int, int] = field(default_factory=dict)
    paths: Container[str] = ()
    needed: Mapping[str, float] = field(default_factory=dict)


NOTHING_ELSE = Rest()


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
    rest: Rest = NOTHING_ELSE,
    full: bool = True,
) -> SweepPlan:
    """Plan which blocks to adopt, which to retire and which objects to delete; pure.

    The lists of manifest and table have the objects that this sweep may change, and `rest` stands for the others: those
    of the entries, those that the table has consumed, those that retention removes. `entries` are the listed entries
    that were read. `objects` is a listing of entries, of old manifests, and of the blocks of the entries. In a `full`
    sweep it has all blocks; only then leftovers and retired blocks are deleted. Blocks were listed before entries, and
    both before the manifest was read, so an unnamed object is not just a newer one. The table is a committed one of any
    age: blocks that it names as consumed stay consumed. `begins` are the first sequences of the streams, as far as
    known.
    """
    listed = {one.path for one in objects}
    consumed = table.consumed_paths if table else set()
    known = manifest.list_paths()
    settled = known | consumed
    unadopted = [one for one in entries if one.path not in settled]
    gone_blocks = [one for one in unadopted if one.path not in listed]
    adopt = sorted((one for one in unadopted if one.path in listed), key=lambda one: one.path)
    named = known | {one.path for one in adopt}
    settled |= named
    waiting = [*(one for one in manifest.blocks if one.path not in consumed), *adopt]
    let_go = [Retired(one.path, now) for one in manifest.blocks if one.path in consumed]
    expired = _find_expired(manifest, table, waiting, retention, now, rest)
    gone = {one.object.path for one in expired}
    superseded = _find_superseded(gone_blocks, manifest, waiting, table, rest)
    settled |= superseded
    kept = [one for one in manifest.retired if not full or _is_kept(one, table, listed, now - grace)]
    outdated = any(one.since < now - 1.5 * grace for one in manifest.outdated)  # the next commit deletes these pages
    changed = adopt or let_go or expired or outdated or len(kept) < len(manifest.retired) or (table and manifest.table)
    return SweepPlan(
        adopt=adopt,
        let_go=len(let_go),
        expired=expired,
        remove_entries=sorted(one for one in listed if one.startswith(ENTRIES) and entry_block(one) in settled),
        remove_objects=[
            *old_documents(manifest, objects, now - grace),
            *(
                one.path
                for one in manifest.retired
                if full
                and one.path in listed
                and one.since < now - grace
                and rest.needed.get(one.path, 0.0) < now - grace
            ),
            *(_leftovers(named, rest.paths, listed, objects, now - grace) if full else ()),
        ],
        manifest=msgspec.structs.replace(
            manifest,
            blocks=[one for one in waiting if one.path not in gone],
            retired=[*kept, *let_go, *(Retired(path, now) for path in sorted(gone))],
            of_table=max(manifest.of_table, table.number if table else 0),
            table=[] if table else manifest.table,
            removed=sum_up(
                record_removed(manifest.removed, (one.object for one in expired), now),
                _find_first_held(manifest, table, waiting, begins, rest),
                now,
            ),
            outside=manifest.outside or any(is_outside(one.path) for one in adopt),
            created=now,
        )
        if changed
        else None,
        dangling=sorted(one.path for one in gone_blocks if one.path not in superseded),
    )


def _find_expired(
    manifest: Manifest, table: Table | None, blocks: list[Stored], retention: Retention, now: float, rest: Rest
) -> list[Expired]:
    """Return the blocks that retention removes. Rules also count the table's files; the compaction removes those.

    If the table is older than the manifest's last one, sizes would not add up: then it returns none.
    """
    if manifest.of_table > (table.number if table else 0):
        return []
    ours = {one.path for one in blocks}
    files = table.files if table else manifest.table
    expired = retention.find_expired([*blocks, *files], now, elsewhere=rest.bytes)
    return [one for one in expired if one.object.path in ours]


def _find_first_held(
    manifest: Manifest, table: Table | None, waiting: list[Stored], begins: Mapping[str, int], rest: Rest
) -> Mapping[str, int]:
    """For streams with removals, return the sequence before which neither the archive nor the stream has a message."""
    if manifest.of_table > (table.number if table else 0):
        return NOWHERE
    held = [*waiting, *(table.files if table else manifest.table)]
    removed = {one.stream for one in (*manifest.removed, *(table.removed if table else ()))}
    firsts = {stream: [one.first for one in held if one.stream == stream] for stream in removed & begins.keys()}
    lowest = {stream: [rest.lowest[stream]] if stream in rest.lowest else [] for stream in firsts}
    return {stream: min([begins[stream], *found, *lowest[stream]]) for stream, found in firsts.items()}


def _find_superseded(
    entries: list[Stored], manifest: Manifest, blocks: list[Stored], table: Table | None, rest: Rest
) -> set[str]:
    """Return the blocks whose messages are also elsewhere, or were until retention removed them.

    Their writers gave these blocks up without an ack, and wrote the entry after the block was deleted as a leftover.
    """
    if not entries:
        return set()
    removed = removed_sequences(manifest.removed, table.removed if table else [])
    covered = coverage([*blocks, *(table.files if table else manifest.table)], removed)
    known = {stream: one.held | one.removed for stream, one in covered.items()}
    for stream, held in rest.held.items():
        known[stream] = held | known.get(stream, Sequences())
    return {
        one.path
        for one in entries
        if one.stream in known and not Sequences.from_bytes(one.sequences) - known[one.stream]
    }


def _is_kept(one: Retired, table: Table | None, listed: set[str], before: float) -> bool:
    """Return whether a retired object stays in the manifest: until its grace is over, and it is gone *with its entry*.

    An entry that outlived this record would look new, and its rows would be adopted a second time. Table files that
    format 1 retired stay until a table has taken them over.
    """
    if not is_block(one.path):
        return table is None
    return one.since >= before or one.path in listed or entry_path(one.path) in listed


def _leftovers(named: set[str], paths: Container[str], listed: set[str], objects: Listing, before: float) -> list[str]:
    """Return old blocks that neither the manifest nor an entry names: their writers died."""
    return [
        one.path
        for one in objects
        if is_block(one.path)
        and one.modified < before
        and one.path not in named
        and one.path not in paths
        and entry_path(one.path) not in listed
    ]
