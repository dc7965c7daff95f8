"""Each message counts once: a leader is killed, or stands still while another leads, at each of its requests."""

import asyncio
import shutil

import pytest
from pipeline_world import Killed, Striking, World, run_struck

ROUNDS = (
    [range(1, 8)],
    [range(8, 20), range(30, 33)],
    *([range(number, number + 1)] for number in range(33, 41)),
    [range(21, 30)],  # late
)
"""The table to which rows are added gets a tenth small file with the last run, which merges them."""

filled = {}  # worlds, by the folder of a test


async def fill(world, run):
    for blocks in ROUNDS[:-1]:
        for one in blocks:
            await world.store(one)
        assert await run() == {}
    await world.check()
    for one in ROUNDS[-1]:
        await world.store(one)


async def has_merged(world):
    """Return whether the small files of the table to which rows are added were merged."""
    return any(one.first < one.last for one in await world.list_files())


async def test_each_message_counts_once_over_several_runs(tmp_path):
    world = World(tmp_path)
    run = world.lead()
    await fill(world, run)
    assert await run() == {}
    await world.check()
    assert await has_merged(world)
    before = world.head.head
    assert await run() == {}  # nothing is new
    assert world.head.head == before


async def strike(tmp_path, number, *, after, act):
    """Copy the filled world, strike its next leader at one of its requests, and return it and what the leader runs."""
    whole, folder = tmp_path / "whole", tmp_path / str(number)
    if number == 1:
        whole.mkdir()
        filled[tmp_path] = World(whole)
        await fill(filled[tmp_path], filled[tmp_path].lead())
    shutil.copytree(whole, folder)
    world = filled[tmp_path].copy(folder)
    store = Striking(world.home, number, after=after, act=act)
    return world, store, world.lead(store)


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
async def test_a_leader_that_is_killed_at_any_request_leaves_what_a_clean_run_would(tmp_path, after):
    async def die():
        raise Killed

    struck = 0
    for number in range(1, 200):
        world, store, run = await strike(tmp_path, number, after=after, act=die)
        lived = await run_struck(run)
        assert lived is not store.struck
        assert store.struck or await has_merged(world)
        struck += store.struck
        next_run = world.lead()
        assert await next_run() == {}
        await world.check()
        await world.store(range(50, 55))
        assert await next_run() == {}
        await world.check()
        if not store.struck:
            break
    assert struck > 20  # requests


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True])
async def test_a_leader_that_stands_still_while_another_leads_changes_nothing(tmp_path, after):
    struck = 0
    for number in range(1, 200):
        stands, goes_on = asyncio.Event(), asyncio.Event()

        async def stand(stands=stands, goes_on=goes_on):
            stands.set()
            await goes_on.wait()

        world, store, run = await strike(tmp_path, number, after=after, act=stand)
        standing = asyncio.create_task(run_struck(run))
        done, _ = await asyncio.wait([standing, asyncio.create_task(stands.wait())], return_when="FIRST_COMPLETED")
        next_run = world.lead()
        assert await next_run() == {}
        await world.check()
        goes_on.set()
        lived = await standing
        assert not (lived and store.struck)
        assert store.struck or await has_merged(world)
        struck += store.struck
        await world.check()
        await world.store(range(50, 55))
        assert await next_run() == {}
        await world.check()
        if standing in done:
            break
    assert struck > 20
