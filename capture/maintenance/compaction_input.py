"""Reads from the indexes what a compaction may change: the blocks that wait, and the table files beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from capture.archive.index.contents import Indexes, find_consumed
from capture.archive.index.page import Entry
from capture.archive.index.tree import Index, Where
from capture.archive.index.update import held_of
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture
from capture.archive.retention import Retention
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.maintenance.compaction_plan import Policy, is_mergeable
from capture.maintenance.expiring import find_expiring

MOST_BLOCKS = 20_000
"""Blocks that a run looks at: those of the oldest intervals. Later runs take the others."""


@dataclass(frozen=True)
class Input:
    """What a compaction may change.

    `picture` has the blocks that wait, the table files of their intervals, and those that retention removes: `expired`
    are their paths, and those of blocks that it removes. It also has the consumed blocks, with the paths `consumed`: a
    fresh commit may let the table forget them before the merge is planned. `held` are the sequences of all table files,
    by stream. `waiting` and `bytes` are the number and size of the blocks that wait for a merge; of all blocks if those
    are more than a run looks at.
    """

    picture: Picture
    held: Mapping[str, Sequences]
    expired: set[str]
    consumed: set[str]
    waiting: int
    bytes: int


async def read_input(
    indexes: Indexes, manifest: Manifest, table: Table, policy: Policy, retention: Retention, now: float
) -> Input:
    """Return what a compaction may change at `now` (Unix seconds). ManifestError; StoreError."""
    consumed = await find_consumed(indexes.blocks, manifest, table)
    paths = {one.path for one in consumed}
    sources = [(indexes.blocks, manifest.index), (indexes.files, table.index)]
    expiring = await find_expiring(retention, sources, now, left_out=consumed)
    expired = {one.path for part in expiring.objects for one in part}
    blocks = await _find_waiting(indexes.blocks, manifest.index, policy, paths | expired)
    beside = await _find_beside(blocks, indexes.files, table.index)
    files = {one.path: one for one in (*beside, *expiring.objects[1])}
    streams = sorted({one.stream for one in blocks})
    waiting, size = len(blocks), sum(one.bytes for one in blocks)
    if waiting >= MOST_BLOCKS:
        waiting = manifest.index.objects - len(consumed)
        size = manifest.index.stored_bytes - sum(one.bytes for one in consumed)
    picture = Picture(manifest.with_listed([*consumed, *blocks]), table.with_listed([*files.values()]))
    return Input(
        picture=picture,
        held={stream: await held_of(indexes.files, table.index, stream) for stream in streams},
        expired=expired,
        consumed=paths,
        waiting=waiting,
        bytes=size,
    )


async def _find_waiting(index: Index, version: Version, policy: Policy, leave: set[str]) -> list[Stored]:
    """Return the blocks of the oldest intervals that may be merged."""
    found: list[Entry] = []
    async for part in index.scan(version):
        found += [one for one in part if one.path not in leave and is_mergeable(one, policy)]
        if len(found) >= MOST_BLOCKS:
            break
    return await index.wholes(found[:MOST_BLOCKS])


async def _find_beside(blocks: list[Stored], index: Index, version: Version) -> list[Stored]:
    """Return the table files with the stream, interval and key of one of these blocks."""
    keys: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in blocks:
        keys[one.stream, one.interval].add(one.key)
    found: list[Stored] = []
    for (stream, interval), wanted in sorted(keys.items()):
        async for part in index.scan(version, Where(stream=stream, since=interval, until=interval + 1)):
            found += await index.wholes([one for one in part if one.key in wanted])
    return found
