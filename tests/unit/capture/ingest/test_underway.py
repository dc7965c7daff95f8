import asyncio

import pytest

from capture.ingest.underway import UnderWay


class Block:
    def __init__(self, count):
        self.count = count


async def test_blocks_are_under_way_from_the_beginning_of_their_commit_to_its_end_however_it_ends():
    now, doors = [10.0], [asyncio.Event(), asyncio.Event()]
    under_way = UnderWay(clock=lambda: now[0])

    async def commit(block):
        await doors[block.count].wait()
        if block.count == 0:
            raise ValueError("the store is gone")

    watched = under_way.watched(commit)
    assert (under_way.messages, under_way.longest) == (0, None)
    tasks = []
    for count in (1, 0):
        tasks.append(asyncio.create_task(watched(Block(count))))
        await asyncio.sleep(0)
        now[0] += 5.0
    assert (under_way.messages, under_way.longest) == (1, 10.0)
    doors[1].set()
    await tasks[0]
    assert (under_way.messages, under_way.longest) == (0, 5.0)
    doors[0].set()
    with pytest.raises(ValueError, match="gone"):
        await tasks[1]
    assert under_way.longest is None
