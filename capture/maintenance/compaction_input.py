"""Reads from the indexes what a compaction may change: the blocks that wait, and the table files beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from capture.archive.index.contents import Indexes
from capture.archive.index.page import Entry
from capture.archive.index.tree import Where
from capture.archive.index.update import held_of
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
    by stream. `waiting` and `bytes` are the number and size of all blocks that wait.
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
    reading = _Reading(indexes, manifest, table)
    consumed = await reading.find_consumed()
    paths = {one.path for one in consumed}
    sources = [(indexes.blocks, manifest.index), (indexes.files, table.index)]
    expiring = await find_expiring(retention, sources, now, left_out=consumed)
    expired = {one.path for part in expiring.objects for one in part}
    blocks = await reading.find_waiting(policy, paths | expired)
    files = {one.path: one for one in (*await reading.find_beside(blocks), *expiring.objects[1])}
    streams = sorted({one.stream for one in blocks})
    picture = Picture(manifest.with_listed([*consumed, *blocks]), table.with_listed([*files.values()]))
    return Input(
        picture=picture,
        held={stream: await held_of(indexes.files, table.index, stream) for stream in streams},
        expired=expired,
        consumed=paths,
        waiting=manifest.index.objects - len(consumed),
        bytes=manifest.index.stored_bytes - sum(one.bytes for one in consumed),
    )


@dataclass(frozen=True)
class _Reading:
    indexes: Indexes
    manifest: Manifest
    table: Table

    async def find_consumed(self) -> list[Stored]:
        """Return the blocks that the table has consumed and that the manifest still names."""
        places = [one for one in self.table.consumed if not isinstance(one, str)]
        found = [*(await self.indexes.blocks.find(self.manifest.index, places)).values()]
        if paths := {one for one in self.table.consumed if isinstance(one, str)}:  # by a version before format 3
            parts = self.indexes.blocks.scan(self.manifest.index)
            found += [one async for part in parts for one in part if one.path in paths]
        return await self._whole(found)

    async def find_waiting(self, policy: Policy, leave: set[str]) -> list[Stored]:
        """Return the blocks of the oldest intervals that may be merged."""
        found: list[Entry] = []
        async for part in self.indexes.blocks.scan(self.manifest.index):
            found += [one for one in part if one.path not in leave and is_mergeable(one, policy)]
            if len(found) >= MOST_BLOCKS:
                break
        return await self._whole(found[:MOST_BLOCKS])

    async def find_beside(self, blocks: list[Stored]) -> list[Stored]:
        """Return the table files with the stream, interval and key of one of these blocks."""
        keys: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in blocks:
            keys[one.stream, one.interval].add(one.key)
        found: list[Stored] = []
        for (stream, interval), wanted in sorted(keys.items()):
            where = Where(stream=stream, since=interval, until=interval + 1)
            async for part in self.indexes.files.scan(self.table.index, where):
                mine = [one for one in part if one.key in wanted]
                found += await self.indexes.files.wholes(mine)
        return found

    async def _whole(self, entries: list[Entry]) -> list[Stored]:
        return await self.indexes.blocks.wholes(entries)
