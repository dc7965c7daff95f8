"""Repeated messages in the fresh table: blocks that hold them are shown, and delete files mask the repeated rows."""

import pytest
from fresh_world import Leader, World

from capture.archive.sequences import Sequences
from capture.maintenance.compaction_plan import Policy
from capture.testing import ArrowEngine

LATER = Policy(min_files=1000, max_wait=1e18)


@pytest.mark.parametrize(
    "blocks",
    [
        [[1, 2], [2, 3]],
        [[1, 2, 3], [1, 5, 3, 4, 6], [5, 6, 9]],
        [[3, 4, 4]],
        [[1, 2], [1, 7, 2, 7, 3, 1, 8]],
        [range(1, 3000), [2000, *range(4999, 2000, -1), 5000]],
    ],
)
async def test_rows_whose_sequence_the_table_has_are_masked_wherever_they_are_in_a_block(blocks):
    world = World()
    leader = Leader(world)
    for number, sequences in enumerate(blocks):
        await world.block(sequences)
        world.now += 1
        if number % 2 == 0:
            await world.sweep()
            await leader.step()
    await world.sweep()
    await leader.step()
    shown = await world.shown()
    assert (len(shown), sum(one.count for one in shown)) == (len(blocks), sum(map(len, blocks)))
    assert await world.seen() == sorted(world.stored)
    deletes = [one for one in await world.needed() if one.endswith("-deletes.parquet")]
    assert len(deletes) == sum(len(Sequences.from_bytes(one.sequences)) < one.count for one in shown) > 0
    await leader.compact()
    assert await world.seen() == sorted(world.stored)
    assert await world.settle() == sorted(world.stored)
    assert not [one for one in await world.store.list("iceberg/") if "deletes" in one.path]


async def test_a_block_of_which_the_table_has_every_message_is_not_shown():
    world = World()
    leader = Leader(world)
    await world.block([1, 2, 3])
    await world.block([2, 3])
    await world.sweep()
    report = await leader.step()
    assert (report.shown, report.waiting) == (1, 1)
    await world.block([3])
    await world.sweep()
    report = await leader.step()
    assert (report.shown, report.waiting) == (0, 1)
    await world.block([3, 4])
    await world.sweep()
    await leader.step()
    assert (leader.fresh.state.shown, leader.fresh.state.messages) == (2, 4), "a masked message is not counted"
    assert await world.seen() == [1, 2, 3, 4]
    assert await world.settle() == [1, 2, 3, 4]


async def test_a_block_whose_rows_are_not_those_of_its_record_is_not_shown():
    world, other = World(), World()
    leader = Leader(world)
    await world.block([1, 2])
    await world.sweep()
    await leader.step()
    await world.block([2, 3, 4])
    await other.block([2, 4, 4])
    [path] = [one.path for one in await world.store.list("blocks/") if "-2-4-3-" in one.path]
    [wrong] = [one.path for one in await other.store.list("blocks/")]
    data, size = await other.store.get(wrong), len(await world.store.get(path))
    world.store._objects[path] = (data[:4] + bytes(max(0, size - len(data))) + data[4:], world.now)
    await world.sweep()
    report = await leader.step()
    assert (report.shown, report.waiting) == (0, 1)
    assert await world.seen() == [1, 2]


async def test_masks_are_written_again_when_the_metadata_is_lost():
    world = World()
    leader = Leader(world)
    await world.block([1, 2])
    await world.block([2, 3])
    await world.sweep()
    await leader.step()
    [lost] = [one for one in await world.needed() if one.endswith("-deletes.parquet")]
    await world.store.delete(lost)
    leader = Leader(world)
    await leader.step()
    await leader.compact(policy=LATER)
    assert await world.seen() == [1, 2, 3]
    [again] = [one for one in await world.needed() if one.endswith("-deletes.parquet")]
    assert again != lost
    assert await world.settle() == [1, 2, 3]


class Meanwhile(ArrowEngine):
    """An engine beside which something happens while it merges."""

    def __init__(self, happens):
        super().__init__()
        self._happens = happens

    async def merge(self, store_url, groups):
        merged = await super().merge(store_url, groups)
        await self._happens()
        return merged


async def test_blocks_are_shown_while_a_merge_is_under_way_and_none_is_lost_or_there_twice():
    world = World()
    leader = Leader(world)
    await world.block([1, 2])
    await world.block([2, 3])
    await world.sweep()
    await leader.step()

    async def happens():
        await world.block([3, 6, 4, 6])  # 3 is in the output of the merge that is under way
        await world.block([3, 6, 7])
        await world.block([5])
        await world.sweep()
        await leader.step()
        assert await world.seen() == [1, 2, 3, 4, 5, 6, 7]

    await leader.compact(Meanwhile(happens))
    shown = sorted([*Sequences.from_bytes(one.sequences)] for one in await world.shown())
    assert shown == [[4, 6], [5], [7]]
    assert await world.seen() == [1, 2, 3, 4, 5, 6, 7]
    await leader.compact()
    assert await world.seen() == [1, 2, 3, 4, 5, 6, 7]
    assert await world.settle() == [1, 2, 3, 4, 5, 6, 7]
    assert not [one for one in await world.store.list("iceberg/") if "deletes" in one.path]


@pytest.mark.parametrize(("shown", "left"), [([1, 2, 3, 3], 1), ([3], 0), ([2, 3, 4], 1)])
async def test_a_shown_block_no_longer_shows_what_a_merge_of_others_writes(shown, left):
    world = World()
    leader = Leader(world)
    await world.block(shown, key="a")
    world.now += 1
    await world.block([3, 4], key="b")
    await world.block([5], key="b")
    await world.sweep()
    await leader.step()
    assert await world.seen() == sorted(world.stored)
    await leader.compact(policy=Policy(min_files=2, max_wait=1e18))
    assert [one.key for one in await world.shown()] == ["a"] * left
    assert await world.seen() == sorted(world.stored)
    assert await world.settle() == sorted(world.stored)
