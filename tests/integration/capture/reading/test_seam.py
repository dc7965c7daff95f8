"""Writers publish all the while, nodes store, the sweep adopts and deletes, compactions commit, and readers cross."""

import asyncio
import contextlib

import pytest
from compacting import GRACE, compacting
from patient import PATIENCE

import capture
from capture.config.load import load

PARTS = 40  # of what is published, one after the other


async def sequences(reader):
    return [one async for batch in reader for one in batch.column("sequence").to_pylist()]


async def crossing(fleet, running, compacted, count, rounds):
    """Publish so many messages while nodes capture, and readers read; return what one that followed has read."""
    path = fleet.configure(
        limits__max_age=0.3, sweep__every=0.2, sweep__grace=GRACE, spark__java="nowhere", retention=[]
    )
    config = load(path, environment={})
    for number in range(2):
        fleet.start(f"node{number}", path)
    running(compacting(fleet.natty, config, compacted))
    published = 0

    async def publish():
        nonlocal published
        for _ in range(PARTS):
            await fleet.publish([b"%d" % number for number in range(published, published + count // PARTS)])
            published += count // PARTS
            await asyncio.sleep(0.1)

    async def follow():
        found = []
        reader = capture.read_batches(config, natty=fleet.natty, columns=["sequence"], follow=True)
        async with contextlib.aclosing(reader):
            async for batch in reader:
                found += batch.column("sequence").to_pylist()
                if found[-1] == count:
                    return found
        return found

    await fleet.publish([b"first"])
    await fleet.until_all_acked(1)
    count += 1
    writing = running(publish())
    following = running(follow())
    for _ in range(rounds):
        before = published
        found = await sequences(capture.read_batches(config, natty=fleet.natty, columns=["sequence"]))
        assert found == list(range(1, len(found) + 1))
        assert before < len(found) <= published + count // PARTS + 1
        await asyncio.sleep(0.05)
    await writing
    async with asyncio.timeout(PATIENCE):
        followed = await following
    await fleet.until_all_acked(count)
    return config, followed, list(range(1, count + 1))


@pytest.mark.long
async def test_readers_cross_the_seam_again_and_again(fleet, running):
    compacted = []
    config, followed, published = await crossing(fleet, running, compacted, 40_000, 60)
    assert followed == published
    assert sum(compacted) > 10  # blocks and files that went while they were read
    assert await sequences(capture.read_batches(config, columns=["sequence"])) == published
