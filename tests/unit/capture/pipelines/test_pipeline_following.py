"""Batches of a stream and runs over the archive: each message counts once, whatever is killed, and wherever it is."""

import asyncio
import random
import shutil

import msgspec
import pytest
from following import BatchDeriver, Following, begin
from pipeline_world import ALL, SUMS, Keeper, Killed, Striking, World, run_struck

from capture.archive.iceberg_state import Expiry
from capture.archive.sequences import Sequences
from capture.errors import PipelineError, SparkError
from capture.iceberg import Exposer
from capture.node import pipeline_keeper
from capture.node.pipeline_follower import CATCH_UP, MOST_BACK, Followers, find_beginning
from capture.node.pipeline_requests import Request
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.document import LONGEST, PipelineTable, Run
from capture.testing import MemoryHead
from capture.verification.pipelines import check_pipeline

ALL_NOW = msgspec.structs.replace(ALL, trigger="stream")
SUMS_NOW = msgspec.structs.replace(SUMS, trigger="stream")


async def follow(folder, pipeline=SUMS_NOW):
    world = World(folder, [pipeline])
    stream = await begin(world)
    return world, stream, Following(world, stream)


async def check(world, stream):
    """The table is what one run over all messages of archive and stream would have made."""
    stored, world.stored = world.stored, world.stored | set(stream.held)
    rows = await world.read()
    if "every" in rows:
        assert sorted(one["sequence"] for one in rows["every"]) == sorted(world.stored)
    else:
        await check_sums(world, rows)
    world.stored = stored


async def check_sums(world, rows):
    groups = {k: [one for one in world.stored if one % 5 == k] for k in range(5)}
    expected = [{"k": k, "n": len(some), "total": sum(some)} for k, some in groups.items() if some]
    assert sorted(rows.get("sums", []), key=lambda one: one["k"]) == expected


@pytest.mark.parametrize("pipeline", [ALL_NOW, SUMS_NOW], ids=["every", "sums"])
@pytest.mark.parametrize("seed", range(3))
async def test_batches_and_runs_over_the_archive_have_each_message_once_in_any_order(tmp_path, pipeline, seed):
    world, stream, following = await follow(tmp_path, pipeline)
    dice = random.Random(seed)
    for _ in range(40):
        match dice.choice(["publish", "publish", "capture", "capture", "step", "step", "restart"]):
            case "publish":
                stream.publish(dice.randrange(1, 12))
            case "capture" if stream.held:  # late ones, too
                some = [one for one in stream.held if one not in world.stored]
                if wanted := dice.sample(some, min(len(some), dice.randrange(1, 9))):
                    await world.store(sorted(wanted))
                    following.now += CATCH_UP
                    assert await following.step() == {}  # a run over the archive
            case "restart":
                await following.end()
                following = Following(world, stream)
            case _:
                assert await following.step() == {}
    await following.until_all()
    await check(world, stream)
    await following.end()


@pytest.mark.parametrize("pipeline", [ALL_NOW, SUMS_NOW], ids=["every", "sums"])
async def test_a_batch_adds_what_the_archive_has_not_given_before(tmp_path, pipeline):
    world, stream, following = await follow(tmp_path, pipeline)
    stream.publish(5)
    await following.until_all()
    stream.publish(5)
    await world.store([7, 8])
    following.now += CATCH_UP
    assert await following.step() == {}
    assert await following.read_progress() == Sequences.from_range(1, 5) | Sequences.from_range(7, 8)
    await following.until_all()
    await check(world, stream)
    assert sum(one.rows_in for one in (await following.read_table()).runs) == 10
    await following.end()


async def test_a_table_has_what_left_the_stream_before_it_was_followed(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(20)
    await following.until_all()
    await following.end()
    stream.publish(10)
    await world.store(range(1, 31))
    stream.purge(30)
    stream.publish(5)
    following = Following(world, stream)
    await following.until_all()
    assert await following.read_progress() == Sequences.from_range(1, 35)
    await check(world, stream)
    await following.end()


async def test_what_a_batch_missed_is_looked_for_in_the_archive_soon(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(10)
    await following.until_all()
    await world.store(range(1, 11))
    stream.publish(10)
    await world.store(range(11, 21))
    stream.purge(15)  # 11 to 15 were not followed
    for _ in range(4):
        assert await following.step() == {}
    assert await following.read_progress() == Sequences.from_range(1, 10) | Sequences.from_range(16, 20)
    following.now += 31.0
    await following.until_all()
    assert await following.read_progress() == Sequences.from_range(1, 20)
    await following.end()


async def test_what_left_the_stream_and_came_late_into_the_archive_is_added_soon(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(10)
    await following.until_all()
    await following.end()
    stream.publish(10)
    stream.purge(20)  # before a leader follows, and before the archive has them
    following = Following(world, stream)
    for _ in range(5):
        assert await following.step() == {}
    await world.store(range(1, 21))
    following.now += 61.0
    await following.until_all()
    assert await following.read_progress() == Sequences.from_range(1, 20)
    await following.end()


@pytest.mark.parametrize(
    ("held", "first", "begins"),
    [
        ([], 7, 7),
        ([(1, 9)], 1, 10),
        ([(1, 4), (6, 9)], 1, 5),
        ([(3, 4), (6, 9)], 1, 1),
        ([(1, 4), (6, 9)], 6, 10),
        ([(1, 4), (6, 9)], 20, 20),
        ([(1, 4), (6, 10 + 2 * MOST_BACK)], 1, 11 + 2 * MOST_BACK),
        ([(1, 4), (6, MOST_BACK), (MOST_BACK + 9, 2 * MOST_BACK)], 1, MOST_BACK + 1),
    ],
)
def test_a_query_begins_with_the_first_message_that_the_table_does_not_have(held, first, begins):
    progress = Sequences.union_of(Sequences.from_range(*run) for run in held)
    assert find_beginning(progress, first) == begins


async def test_a_query_does_not_read_what_capture_did_not(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(50)
    world.config = msgspec.structs.replace(world.config, start="new")
    for _ in range(3):
        assert await following.step() == {}
    assert following.deriver.begun == [], "it is not known where capture begins"
    await world.store(range(41, 46))
    following.now += CATCH_UP
    stream.purge(40)
    await following.until_all()
    assert following.deriver.begun == [46]
    assert await following.read_progress() == Sequences.from_range(41, 50)
    await following.end()


@pytest.mark.parametrize("change", ["created again", "restored"])
async def test_a_stream_that_is_not_the_captured_one_is_not_followed(tmp_path, change):
    world, stream, following = await follow(tmp_path)
    stream.publish(20)
    await following.until_all()
    if change == "restored":
        stream.purge(20)
        stream.last = 10
        stream.publish(3)
        following.deriver.position = 11
    else:
        stream.created = "2026-11-24T00:00:00Z"
        stream.publish(3)
    said = {}
    for _ in range(10):
        said |= await following.step()
    wanted = "restored to an earlier state" if change == "restored" else "it is another stream"
    if change == "created again":
        assert wanted in said["sums"]
        assert await following.read_progress() == Sequences.from_range(1, 20)
    await following.end()
    following = Following(world, stream)
    said = {}
    for _ in range(3):
        said |= await following.step()
    assert wanted in said["sums"]
    assert following.deriver.begun == []
    assert await following.read_progress() == Sequences.from_range(1, 20)


async def test_batches_become_one_run_until_it_is_long_or_another_run_comes(tmp_path):
    world, stream, following = await follow(tmp_path)
    for _ in range(4):
        stream.publish(3)
        await following.until_all()
    [run] = (await following.read_table()).runs
    assert (run.why, run.batches, run.number, run.rows_in, run.bytes_in) == ("stream", 4, 4, 12, 108)
    assert run.ended > run.began
    stream.publish(3)
    world.now += LONGEST
    await following.until_all()
    stream.last += 2
    await world.store([16, 17])  # that left the stream before they were followed
    following.now += CATCH_UP
    await following.until_all()
    stream.publish(1)
    await following.until_all()
    runs = (await following.read_table()).runs
    assert [(one.why, one.batches, one.number) for one in runs] == [
        ("stream", 4, 4),
        ("stream", 1, 5),
        ("new", 0, 6),
        ("stream", 1, 7),
    ]
    await following.end()


async def test_a_stream_that_is_restored_while_it_is_followed_is_refused(tmp_path):
    _world, stream, following = await follow(tmp_path, ALL_NOW)
    stream.publish(20)
    await following.until_all()
    stream.purge(20)
    stream.last, following.deriver.position = 10, 11  # where Spark's source goes on
    failing = {}
    for _ in range(4):
        stream.publish(3)
        for _ in range(3):
            failing |= await following.step()
    assert "it was restored to an earlier state" in failing["every"]
    assert await following.read_progress() == Sequences.from_range(1, 20)


async def test_a_batch_that_goes_back_is_refused(tmp_path):
    """The stream was restored, and has already more messages than before."""
    _world, stream, following = await follow(tmp_path, ALL_NOW)
    stream.publish(20)
    await following.until_all()
    stream.purge(20)
    stream.last, following.deriver.position = 10, 11
    stream.publish(15)
    failing = await following.step()
    assert "was read up to 20, and now from 11 on again" in failing["every"]
    assert await following.read_progress() == Sequences.from_range(1, 20)


async def test_a_fault_of_ours_does_not_end_the_term(tmp_path):
    _world, stream, following = await follow(tmp_path, ALL_NOW)
    stream.publish(2)

    async def follow_not(asked):
        raise PermissionError(13, "Permission denied: spark.log")

    following.deriver.follow = follow_not
    failing = {}
    for _ in range(3):
        failing |= await following.step()
    assert "PermissionError: [Errno 13] Permission denied: spark.log" in failing["every"]


async def test_pauses_grow_also_if_a_query_ends_long_after_it_began(tmp_path):
    _world, stream, following = await follow(tmp_path, ALL_NOW)
    stream.publish(2)

    class Ending(BatchDeriver):
        async def next_batch(self, pipeline, after):
            for _ in range(40):  # several wakes
                await asyncio.sleep(0)
            self.following = None
            raise SparkError("the streaming query has ended: permission violation")

    following.deriver.__class__ = Ending
    failed = []
    for _ in range(60):
        following.now += 4.0
        failed.append(bool(await following.step()))
        for _ in range(15):
            await asyncio.sleep(0)
    assert all(failed[failed.index(True) :]), "it fails until it works again"
    assert len(following.deriver.begun) < 10


async def test_requests_reach_what_is_followed_while_another_pipeline_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_keeper, "LOOK", 0.01)
    world = World(tmp_path, [ALL_NOW, SUMS])
    keeper, asked = Keeper({}, world.config, "node-1"), asyncio.Event()

    class Attended(Followers):
        def adjust(self, pipelines, requests):
            if "every" in requests:
                asked.set()

    monkeypatch.setattr(pipeline_keeper, "Followers", Attended)
    leading = PipelineLeading(world.home, MemoryHead(1, world.head), "node-1")
    async with asyncio.timeout(10), keeper._follow(leading, None) as followers:
        keeper.requests["every"] = Request(what="pause", id="1")  # `run_due` is not called: another run is long
        await asked.wait()
        assert followers.names == set()


def test_batches_of_another_leader_and_after_a_failed_one_are_another_run():
    table = PipelineTable(definition="")
    for token, error in ((1, ""), (1, ""), (2, ""), (2, "no"), (2, ""), (2, "")):
        table = table.with_run(
            Run(number=1, began=1.0, ended=2.0, why="stream", batches=1, token=token, error=error, violations={"a": 1})
        )
    assert [(one.token, one.batches, one.error) for one in table.runs] == [
        (1, 2, ""),
        (2, 1, ""),
        (2, 1, "no"),
        (2, 2, ""),
    ]
    assert table.runs[-1].violations == {"a": 2}


async def test_a_batch_that_fails_is_recorded_and_tried_again_later(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(5)
    await following.until_all()
    world.fail_with = PipelineError("no such thing")
    stream.publish(5)
    for _ in range(3):
        said = await following.step()
    assert said == {"sums": "pipeline sums: no such thing"}
    runs = (await following.read_table()).runs
    assert [(one.why, bool(one.error)) for one in runs] == [("stream", False), ("stream", True)]
    world.fail_with = None
    for _ in range(3):
        assert await following.step() == said, "it rests"
    world.now += 30.0
    await following.until_all()
    assert following.failing == {}
    await check(world, stream)
    await following.end()


async def test_a_query_that_ends_is_started_again_after_growing_pauses(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(5)
    await following.until_all()
    for count in (1, 2):
        following.deriver.failure = SparkError("Spark's driver has ended")
        stream.publish(1)
        await following.until_all()
        for _ in range(3):
            await following.step()
        assert len(following.deriver.begun) == count + 1
    world.fail_with = SparkError("Spark's driver has ended")
    stream.publish(1)
    assert {"sums": "Spark's driver has ended"} in [await following.step() for _ in range(5)]
    assert len((await following.read_table()).runs) == 1, "it is not the pipeline's fault"
    world.fail_with = None
    await following.until_all()
    assert following.failing == {}
    await following.end()


async def test_a_paused_pipeline_is_not_followed_and_a_rerun_makes_all_rows_again(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(5)
    await following.until_all()
    await world.store(range(1, 4))
    following.follower.wake(Request(what="pause", id="a"))
    stream.publish(5)
    for _ in range(5):
        assert await following.step() == {}
    assert (await following.read_table()).paused
    assert following.deriver.following is None
    assert await following.read_progress() == Sequences.from_range(1, 5)
    following.follower.wake(Request(what="resume", id="b"))
    await following.until_all()
    following.follower.wake(Request(what="rerun", id="c"))
    await following.step()
    assert await following.read_progress() == Sequences.from_range(1, 3), "those of the archive"
    await following.until_all()
    await check(world, stream)
    await following.end()


async def test_a_changed_pipeline_is_not_followed_until_its_rows_are_made_again(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(5)
    await following.until_all()
    world.config = msgspec.structs.replace(world.config, pipeline=[msgspec.structs.replace(SUMS_NOW, buckets=2)])
    stream.publish(5)
    assert "capture pipeline rerun sums" in (await following.step())["sums"]
    assert following.deriver.following is None
    following.follower.wake(Request(what="rerun", id="a"))
    await following.until_all()
    await check(world, stream)
    assert following.failing == {}
    await following.end()


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("act", ["die", "stand"])
async def test_a_leader_that_is_struck_during_a_batch_leaves_what_a_clean_run_would(tmp_path, after, act):
    whole = tmp_path / "whole"
    whole.mkdir()
    filled, stream, following = await follow(whole)
    stream.publish(12)
    await following.until_all()
    await filled.store(range(1, 9))
    await following.end()
    stream.publish(7)
    struck = 0
    for number in range(1, 200):
        shutil.copytree(whole, tmp_path / str(number))
        world = filled.copy(tmp_path / str(number))
        stands, goes_on = asyncio.Event(), asyncio.Event()

        async def strike(stands=stands, goes_on=goes_on):
            if act == "die":
                raise Killed
            stands.set()
            await goes_on.wait()

        store = Striking(world.home, number, after=after, act=strike)
        old = Following(world, stream, store)
        standing = asyncio.create_task(run_struck(old.until_all))
        await asyncio.wait([standing, asyncio.create_task(stands.wait())], return_when="FIRST_COMPLETED")
        following = Following(world, stream)
        await following.until_all()
        await check(world, stream)
        goes_on.set()
        await standing
        await following.end()
        await check(world, stream)
        struck += store.struck
        if not store.struck:
            break
    assert struck > 15


async def test_commits_take_turns_and_each_starts_from_the_one_before(tmp_path):
    world = World(tmp_path)
    leading = PipelineLeading(world.home, MemoryHead(1, world.head))
    names = [f"p{number}" for number in range(10)]
    changes = [Change(tables={name: PipelineTable(definition="", number=7)}) for name in names]
    await asyncio.gather(*(leading.commit(one, world.now) for one in changes))
    assert set((await leading.read(world.now)).tables) == set(names)


@pytest.mark.long
async def test_a_document_does_not_grow_with_the_commits_of_a_grace_time(tmp_path):
    world, stream, following = await follow(tmp_path)
    for _ in range(300):
        stream.publish(5)
        await following.until_all()
    document = await following.leading.read(world.now)
    assert len(document.retired) <= 200
    assert document.retired_pages
    await check(world, stream)
    before = {one.path for one in await world.home.list("table/")}
    assert len(before) > 500, "past readers need them"
    world.now += 10_000.0
    for state in (before, set()):
        following.leading._cleaned = float("-inf")
        await following.leading.clean(world.now)
        stream.publish(1)
        await following.until_all()
        world.now += 10_000.0
        assert len({one.path for one in await world.home.list("table/")}) <= 3 + 3 + len(state)
    await check(world, stream)
    await following.end()


async def test_snapshots_of_batches_are_kept_for_a_minute_and_those_of_runs_for_longer(tmp_path):
    world = World(tmp_path, [SUMS_NOW])
    stream = await begin(world)
    following = Following(world, stream, exposure=Exposer(world.home, Expiry(keep_for=3600.0)))
    stream.publish(5)
    await world.store(range(1, 6))
    await following.until_all()  # by a run over the archive
    for _ in range(40):
        stream.publish(1)
        world.now += 5.0
        await following.until_all()
    document = await following.leading.read(world.now)
    first, *others = document.iceberg["sums"].snapshots
    assert not first.is_brief
    assert all(one.is_brief and one.made >= world.now - 75.0 for one in others[1:])
    assert 5 <= len(others) <= 20
    found = await check_pipeline(None, world.config, "sums")
    assert (found.status, found.problems) == (0, ()), found.sentences()
    await following.end()


async def test_what_a_run_reads_or_writes_is_not_deleted_however_long_it_takes(tmp_path):
    world, stream, following = await follow(tmp_path)
    stream.publish(5)
    await following.until_all()
    old = {one.path for one in (await following.leading.list_files("sums"))}
    with following.leading.run(world.now):
        stream.publish(5)
        await following.until_all()
        world.now += 5_000.0
        following.leading._cleaned = float("-inf")
        await following.leading.clean(world.now)
        assert old <= {one.path for one in await world.home.list("table/")}
    following.leading._cleaned = float("-inf")
    await following.leading.clean(world.now)
    assert not old & {one.path for one in await world.home.list("table/")}
    await following.end()


async def test_a_request_to_run_what_needs_a_rerun_is_answered_and_does_not_spin(tmp_path):
    world, stream, following = await follow(tmp_path, ALL_NOW)
    stream.publish(5)
    await following.until_all()
    [one] = world.config.pipeline
    changed = msgspec.structs.replace(one, sql=one.sql.replace("SELECT", "SELECT 1 AS more,"))
    world.config = msgspec.structs.replace(world.config, pipeline=[changed])
    following.follower.wake(Request(what="run", id="a"))
    await following.step()
    table = await following.read_table()
    assert table.asked == "a"
    assert "was changed" in table.runs[-1].error
    assert await following.follower._time_to_rest(changed) > 0


async def test_a_rerun_that_fails_because_spark_ends_is_tried_again(tmp_path):
    world, stream, following = await follow(tmp_path, ALL_NOW)
    await world.store(range(1, 6))
    stream.held, stream.last = Sequences.from_range(1, 5), 5
    await following.until_all()
    derive, following.follower._asked = following.deriver.derive, Request(what="rerun", id="a")

    async def end(asked):
        raise SparkError("Spark's driver has ended")

    following.deriver.derive = end
    await following.step()
    table = await following.read_table()
    assert (table.asked, table.runs[-1].asked) == ("", "a")
    assert await following.follower._time_to_rest(world.config.pipeline[0]) > 0, "but not at once"
    following.deriver.derive = derive
    world.now += 60.0
    following.now += 60.0
    await following.step()
    table = await following.read_table()
    assert (table.asked, table.runs[-1].why, table.runs[-1].error) == ("a", "rerun", "")
