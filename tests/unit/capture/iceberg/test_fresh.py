"""The fresh table: blocks are in the table before they are merged, each sequence once in every snapshot."""

import asyncio
import contextlib
import itertools
import os
from random import Random

import pyarrow as pa
import pytest
from fresh_world import ALL, GRACE, NOW, Leader, World

from capture.archive import retired_pages
from capture.archive.encryption import Keys
from capture.archive.iceberg_state import BRIEF, Expiry, FreshState, Snapshot, list_expired, without
from capture.archive.retention import Retention, Rule
from capture.errors import CaptureError, FencedError
from capture.formats import writer
from capture.maintenance import fresh
from capture.maintenance.compaction_plan import Policy
from capture.testing import ArrowEngine

SEEDS, QUICK = int(os.environ.get("FRESH_SEEDS", "12")), 2
LATER = Policy(min_files=1000, max_wait=1e18)


async def test_a_block_is_in_the_table_before_it_is_merged_and_in_the_merged_file_afterwards():
    world = World()
    leader = Leader(world)
    await world.block([1, 2, 3])
    await world.sweep()
    report = await leader.step()
    assert report.shown == 1
    assert await world.seen() == [1, 2, 3]
    assert (await world.committed()).files == []
    await leader.compact()
    assert await world.seen() == [1, 2, 3]
    table = await world.committed()
    assert len(table.files) == 1
    assert not table.shown.root
    assert await world.settle() == [1, 2, 3]


async def test_when_nothing_came_nothing_is_written():
    world = World()
    leader = Leader(world)
    await world.block([1])
    await world.sweep()
    await leader.step()
    before, head = await world.store.list(), world.table.head
    for _ in range(3):
        assert await leader.step() == fresh.NOTHING
    await world.sweep()
    assert await leader.step() == fresh.NOTHING
    assert world.table.head == head
    assert [one.path for one in await world.store.list("_table/")] == [
        one.path for one in before if one.path.startswith("_table/")
    ]


async def test_the_archives_own_readers_see_a_shown_block_once():
    world = World()
    leader = Leader(world)
    await world.block([1, 2])
    await world.sweep()
    before = await world.picture()
    await leader.step()
    assert await world.picture() == before == [1, 2]


async def test_a_block_that_retention_removes_leaves_the_table_and_is_deleted_when_no_snapshot_names_it():
    world = World(keep_for=0.0)
    leader = Leader(world)
    await world.block([1], key="short")
    await world.block([2])
    await world.sweep()
    await leader.step()
    assert await world.seen() == [1, 2]
    rule = Retention((Rule(older_than=9000.0, key="short"),), 3600)
    await world.sweep(retention=rule, begins={"ORDERS": 3})
    world.now += 2 * GRACE
    await world.sweep()
    assert await world.seen() == [1, 2]  # the sweep's leader keeps what the table shows
    report = await leader.step()
    assert (report.shown, report.hidden) == (0, 1)
    assert await world.seen() == [2]
    assert await world.settle() == [2]


async def test_a_new_leader_shows_what_its_predecessor_has_not_and_nothing_again():
    world = World()
    await world.block([1])
    await world.sweep()
    await Leader(world).step()
    await world.block([2])
    await world.sweep()
    successor = Leader(world)
    report = await successor.step()
    assert report.shown == 1
    assert await world.seen() == [1, 2]
    assert await Leader(world).step() == fresh.NOTHING


async def test_a_deposed_leader_shows_nothing():
    world = World()
    old = Leader(world)
    await world.block([1])
    await world.sweep()
    await old.step()
    await world.block([2])
    await world.sweep()
    await Leader(world).compact(policy=LATER)
    with pytest.raises(FencedError):
        await old.step()
    assert await world.seen() == [1]


async def test_so_many_blocks_of_a_key_and_interval_are_shown_and_no_more(monkeypatch):
    monkeypatch.setattr(fresh, "CROWDED", 3)
    monkeypatch.setattr(fresh, "MOST_SHOWN", 5)
    world = World()
    leader = Leader(world)
    for number in range(1, 9):
        await world.block([number])
        await world.sweep()
        report = await leader.step()
        assert report.is_crowded == (number >= 3)
    assert await world.seen() == [1, 2, 3, 4, 5]
    await leader.compact()
    assert await world.seen() == [1, 2, 3, 4, 5, 6, 7, 8]
    await world.block([9])
    await world.sweep()
    report = await leader.step()
    assert (report.shown, report.is_crowded) == (1, False)


async def test_blocks_that_had_no_room_are_shown_when_a_merge_has_made_room(monkeypatch):
    monkeypatch.setattr(fresh, "CROWDED", 3)
    monkeypatch.setattr(fresh, "MOST_SHOWN", 5)
    world = World()
    leader = Leader(world)

    async def add(*numbers):
        for number in numbers:
            world.now += 1.0
            await world.block([number])
        await world.sweep()
        await leader.step()

    class Slow(ArrowEngine):
        async def merge(self, url, groups):
            await add(*range(5, 14))
            return await super().merge(url, groups)

    await add(1, 2, 3, 4)
    await leader.compact(Slow())
    assert await world.seen() == [1, 2, 3, 4, 5]
    assert leader.fresh.state.waiting == {fresh.FULL: 8}
    await world.sweep()
    assert (await leader.step()).shown == 4
    assert await world.seen() == [*range(1, 10)]
    assert leader.fresh.state.waiting == {fresh.FULL: 4}
    calls = world.store.left
    assert await leader.step() == fresh.NOTHING
    assert world.store.left == calls  # the store was not called
    await leader.compact()
    assert await world.seen() == [*range(1, 14)]
    await world.sweep()
    await leader.step()
    assert leader.fresh.state.waiting == {}


async def test_the_state_says_what_is_shown_and_why_blocks_wait(monkeypatch):
    monkeypatch.setattr(fresh, "MOST_SHOWN", 2)
    world = World()
    leader = Leader(world)
    assert leader.fresh.state == FreshState()
    await world.block([1, 2])
    await world.block([2])
    await world.block([3], made_by=writer("ndjson"))
    await world.block([4], made_by=writer("parquet", keys=Keys({"k": bytes(range(32))})))
    for number in (5, 6, 7):
        await world.block([number], key="full")
    await world.sweep()
    await leader.step()
    reasons = [fresh.REPEATED, fresh.FORMAT, fresh.ENCRYPTED, fresh.FULL]
    waiting = dict.fromkeys(sorted(reasons), 1)
    assert leader.fresh.state == FreshState(shown=3, messages=4, committed=NOW, waiting=waiting)
    world.now += 10
    await leader.compact(policy=Policy(min_files=1, max_wait=0.0, encrypted=False))
    await world.sweep()
    await leader.step()
    state = leader.fresh.state
    assert (state.shown, state.committed, state.waiting) == (0, NOW, {fresh.ENCRYPTED: 1})


@pytest.mark.long
async def test_after_many_commits_the_document_is_small_and_what_readers_need_is_there_and_no_more(monkeypatch):
    monkeypatch.setattr(retired_pages, "MOST", 12)
    monkeypatch.setattr(retired_pages, "LATEST", 6)
    world = World(keep_for=100.0)
    leader, readers, counts = Leader(world), [], []
    for number in range(1, 111):
        await world.block([number])
        await world.sweep()
        await leader.step()
        if number % 12 == 0:
            await leader.compact()
        if number % 40 == 0:
            leader = Leader(world)
        readers.append((world.now, await world.needed()))
        world.now += 30.0
        existing = {one.path for one in await world.store.list()}
        for (_, paths), (replaced, _) in itertools.pairwise(readers[-32:]):
            assert world.now - replaced > GRACE or paths <= existing
        table = await world.committed()
        assert len(table.retired) <= 12
        assert len(table.consumed) <= 12
        assert all(one.path in existing for one in table.retired_pages)
        counts.append(len(existing))
    assert len(table.retired_pages) > 5
    assert max(counts[50:80]) <= 1.1 * max(counts[80:]) <= 1.2 * max(counts[50:80])
    assert await world.settle() == sorted(world.stored)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("each", [12, 1])
@pytest.mark.long
async def test_leaders_that_are_killed_at_any_step_leave_each_snapshot_right_and_the_same_end(each, after):
    async def prepared():
        world = World(keep_for=100.0)
        leader = Leader(world)
        await world.block([1, 2])
        await world.sweep()
        await leader.step()
        await world.block([2, 3])
        await world.block([4])
        return world

    async def live(world):
        await world.sweep()
        leader = Leader(world)
        await leader.step()
        await leader.compact()
        world.now += BRIEF
        await world.block([5])
        await world.sweep()
        await leader.step()

    for number in range(1 + after * (each - 1), 400, each):
        world = await prepared()
        world.store.left, world.store.after = number, after
        try:
            await live(world)
        except (CaptureError, pa.ArrowException):
            world.store.left = -1
            rows = await world.seen()
            assert set(rows) >= {1, 2}, f"killed at call {number}"
            end = await world.settle()
            assert end == sorted(world.stored) or end == [1, 2, 3, 4], f"killed at call {number}"
        else:
            assert number > 40
            assert await world.settle() == [1, 2, 3, 4, 5]
            return
    raise AssertionError("there are fewer calls than that")


async def lived(seed):
    random, world = Random(seed), World(keep_for=Random(seed).choice([0.0, 100.0, 2000.0]))
    leader, following = Leader(world), 1
    for _ in range(60):
        with contextlib.suppress(CaptureError, pa.ArrowException):
            match random.choice(["block", "block", "again", "sweep", "sweep", "step", "step", "merge", "new", "time"]):
                case "block":
                    count = random.randint(1, 4)
                    await world.block(range(following, following + count), key=random.choice("ab"))
                    following += count
                case "again" if following > 2:
                    first = random.randint(max(1, following - 8), following - 1)
                    again = [*range(first, min(first + 3, following)), *range(following, following + 2)]
                    following += 2
                    rows = random.choices(again, k=random.randint(1, 6))
                    await world.block([min(rows), *rows, max(rows)], key=random.choice("ab"))
                case "sweep":
                    world.store.left = random.choice([-1, -1, random.randint(1, 12)])
                    await world.sweep()
                case "step":
                    world.store.left = random.choice([-1, -1, random.randint(1, 20)])
                    await leader.step()
                case "merge":
                    world.store.left = random.choice([-1, -1, random.randint(1, 60)])
                    await leader.compact(policy=random.choice([ALL, Policy(min_files=2, max_wait=1e9), LATER]))
                case "new":
                    leader = Leader(world)
                case "time":
                    world.now += random.choice([1.0, BRIEF, GRACE / 2, 1.2 * GRACE])
        world.store.left = -1
        await world.seen()
    assert await world.settle() == sorted(world.stored)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.long] if seed >= QUICK else []) for seed in range(SEEDS)]
)
def test_whatever_the_leaders_do_each_snapshot_has_the_rows_of_its_sets_each_once(seed):
    asyncio.run(lived(seed))


# --- brief snapshots -------------------------------------------------------------------------------------------------


def history():
    """Return a snapshot of files, two with a block each more, and one in which they are merged."""
    return [
        Snapshot(id=1, made=0.0, objects={"list-1": "", "m-1": ""}, dropped=["list-1"]),
        Snapshot(id=2, made=10.0, objects={"list-2": "", "m-2": ""}, dropped=["list-2"], came=["a"], is_brief=True),
        Snapshot(
            id=3,
            made=20.0,
            objects={"list-3": "", "m-3": ""},
            dropped=["list-3", "a", "b", "m-2", "m-3", "old", "m-1"],
            came=["b"],
            is_brief=True,
        ),
        Snapshot(id=4, made=30.0, objects={"list-4": "", "m-4": ""}),
    ]


def test_a_snapshot_with_blocks_expires_soon_and_one_without_blocks_later():
    rule = Expiry(keep_for=1000.0)
    assert list_expired(history(), rule, 20.0 + BRIEF) == [2]
    assert list_expired(history(), rule, 30.0 + BRIEF) == [2, 3]
    assert list_expired(history(), rule, 1010.0) == [1, 2, 3]
    assert list_expired(history(), Expiry(keep_for=1000.0, keep_snapshots=2), 1e9) == [2, 3]


def test_what_only_expired_snapshots_name_is_let_go_and_what_an_older_one_names_stays():
    left, gone = without(history(), [2, 3])
    assert sorted(gone) == ["a", "b", "list-2", "list-3", "m-2", "m-3"]
    assert [one.id for one in left] == [1, 4]
    assert sorted(left[0].dropped) == ["list-1", "m-1", "old"]
    assert left[0].replaced == 10.0  # it expires as if nothing had been removed
    assert list_expired(left, Expiry(keep_for=1000.0), 1010.0) == [1]
    left, gone = without(history(), [2])
    assert gone == ["list-2"]
    assert (left[1].objects.keys(), left[1].came) == ({"m-2", "list-3", "m-3"}, ["a", "b"])
