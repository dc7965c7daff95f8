"""What a leader replaces in a run that takes long, and which of its runs list all objects."""

import asyncio

import pytest
from archived import store_block
from fresh_world import ALL, GRACE, NOW, Leader, World
from indexed import read_whole
from sweeping import block, write
from wide_index import SMALL

from capture.archive import chain
from capture.archive.chain import Retired
from capture.archive.index import tree
from capture.archive.manifest import Manifest
from capture.archive.retention import Retention, Rule
from capture.archive.table import Table
from capture.maintenance import leading as leading_module
from capture.maintenance.compaction import compact
from capture.maintenance.leading import FEW, Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import MemoryStore, open_store
from capture.testing import ArrowEngine, HeadState, MemoryHead


class Slow:
    """Listings of this store take `takes` seconds, which pass by the clock `now`."""

    def __init__(self, store):
        self.now, self.takes, self._list = NOW, 0.0, store.list
        store.list, store._clock = self._wait, lambda: self.now

    async def _wait(self, prefix=""):
        self.now += self.takes
        return await self._list(prefix)

    def read(self):
        return self.now


async def test_what_a_slow_sweep_replaces_stays_for_the_whole_grace_after_its_commit(monkeypatch):
    """Until the commit readers were sent to the earlier manifest. The next sweep is a fast one."""
    monkeypatch.setattr(tree, "SIZES", SMALL)
    store, pointer, table = MemoryStore("slow sweep"), MemoryHead(), HeadState()
    slow = Slow(store)
    leading = Leading(store, pointer, table.read, "", GRACE, slow.read)
    await write(store, *map(block, range(1, 60)))
    await sweep(leading, now=slow.now)
    before = pointer.state.head
    await chain.commit(store, MemoryHead(1, table), None, Table(consumed=[block(1).path]))
    await write(store, block(60))
    slow.takes = GRACE
    await sweep(leading, now=slow.now)
    slow.takes, committed = 0.0, slow.now
    await write(store, block(61))
    slow.now += 1.0
    await sweep(leading, now=slow.now)
    assert len((await read_whole(store, before, Manifest)).blocks) == 59
    assert await store.get(block(1).path)
    assert (await read_whole(store, pointer.state.head, Manifest)).retired == [Retired(block(1).path, committed)]
    slow.now += GRACE
    await sweep(leading, now=slow.now)
    assert await store.list(block(1).path) == []


async def test_what_a_slow_compaction_removes_stays_for_the_whole_grace_after_its_commit(monkeypatch):
    monkeypatch.setattr(tree, "SIZES", SMALL)
    store, manifest, table = open_store("memory://slow compaction"), HeadState(), HeadState()
    slow, retention = Slow(store), Retention((Rule(keep_bytes=1),))
    await store_block(store, [1, 2], clock=slow.read)
    await sweep(Leading(store, MemoryHead(1, manifest), table.read, "", GRACE, slow.read), now=slow.now)
    leading = TableLeading(store, MemoryHead(1, table), manifest.read, "", GRACE, slow.read)
    await compact(leading, ArrowEngine(), ALL, now=slow.now)
    before = table.head
    slow.takes = GRACE
    assert (await compact(leading, ArrowEngine(), ALL, now=slow.now, retention=retention)).expired == 1
    slow.takes, committed = 0.0, slow.now
    slow.now += 1.0
    await compact(leading, ArrowEngine(), ALL, now=slow.now, retention=retention)
    [file] = (await read_whole(store, before, Table)).files
    assert await store.get(file.path)
    assert (await read_whole(store, table.head, Table)).retired == [Retired(file.path, committed)]
    slow.now += GRACE
    await compact(leading, ArrowEngine(), ALL, now=slow.now, retention=retention)
    assert await store.list(file.path) == []


async def test_what_a_fresh_commit_replaces_counts_from_the_commit_even_if_it_waited_for_its_turn():
    world = World()
    await world.block([1])
    await world.sweep()
    leader = Leader(world)
    await leader.step()
    await world.block([2])
    await world.sweep()
    async with leader.leading.take_turn(lambda: world.now):
        waiting = asyncio.create_task(leader.step())
        while not leader.leading._turn._waiters:
            await asyncio.sleep(0)
        world.now += 2 * GRACE
    assert (await waiting).shown == 1
    retired = (await world.committed()).retired
    assert retired
    assert {one.since for one in retired} == {world.now}


async def test_with_many_objects_two_runs_in_the_grace_are_full_ones():
    store, seconds = MemoryStore("many"), [0.0]
    leading = Leading(store, MemoryHead(), HeadState().read, "", GRACE, lambda: seconds[0])
    assert [leading.begin() for _ in range(3)] == [True] * 3
    leading.objects = FEW + 1
    assert [leading.begin() for _ in range(3)] == [False] * 3
    seconds[0] += GRACE / 2
    assert [leading.begin() for _ in range(3)] == [True, False, False]
    leading.objects = FEW
    assert leading.begin()


async def list_full(store, seconds, leading, outside=False):
    """Sweep every ten seconds, three times; return whether each sweep listed the blocks or the whole store."""
    found = []
    for _ in range(3):
        store.prefixes.clear()
        await sweep(leading, now=NOW + seconds[0], outside=outside)
        found.append(("" if outside else "blocks/") in store.prefixes)
        seconds[0] += 10.0
    return found


class Listed(MemoryStore):
    """Keeps the prefixes that it has listed."""

    def __init__(self, name):
        super().__init__(name, clock=lambda: NOW)
        self.prefixes = []

    async def list(self, prefix=""):
        self.prefixes.append(prefix)
        return await super().list(prefix)


@pytest.mark.parametrize("outside", [False, True])
async def test_a_sweep_that_lists_many_objects_is_followed_by_one_that_does_not(monkeypatch, outside):
    """Of a layout outside of `blocks/` it lists the table's files, too."""
    monkeypatch.setattr(leading_module, "FEW", 50)
    store, seconds = Listed("lists much"), [0.0]
    for number in range(60):
        await store.put(f"table/stream=S/c-1-{number:032x}.parquet", b"x")
    leading = Leading(store, MemoryHead(), HeadState().read, "", GRACE, lambda: seconds[0])
    assert await list_full(store, seconds, leading, outside) == [True, not outside, not outside]
    seconds[0] += GRACE / 2
    assert await list_full(store, seconds, leading, outside) == [True, not outside, not outside]


async def test_retired_blocks_in_their_grace_count_as_listed(monkeypatch):
    monkeypatch.setattr(leading_module, "FEW", 50)
    store, table, seconds = Listed("retired"), HeadState(), [0.0]
    leading = Leading(store, MemoryHead(), table.read, "", GRACE, lambda: seconds[0])
    blocks = [block(number) for number in range(1, 60)]
    await write(store, *blocks)
    await sweep(leading, now=NOW)
    await chain.commit(store, MemoryHead(1, table), None, Table(consumed=[one.path for one in blocks]))
    seconds[0] += GRACE / 2
    assert await list_full(store, seconds, leading) == [True, False, False]
    seconds[0] += 2 * GRACE
    await sweep(leading, now=NOW + seconds[0])  # deletes them
    seconds[0] += GRACE / 2
    assert await list_full(store, seconds, leading) == [True, True, True]


async def test_a_compaction_that_lists_many_objects_is_followed_by_one_that_does_not(monkeypatch):
    monkeypatch.setattr(leading_module, "FEW", 50)
    store, manifest, seconds = Listed("metadata"), HeadState(), [0.0]
    await sweep(Leading(store, MemoryHead(1, manifest), HeadState().read), now=NOW)
    for number in range(60):
        await store.put(f"iceberg/S/{number}.avro", b"x")
    leading = TableLeading(store, MemoryHead(), manifest.read, "", GRACE, lambda: seconds[0])
    for is_full in (True, False, False):
        store.prefixes.clear()
        await compact(leading, ArrowEngine(), ALL, now=NOW + seconds[0])
        assert ("iceberg/" in store.prefixes) == is_full
        seconds[0] += 10.0
