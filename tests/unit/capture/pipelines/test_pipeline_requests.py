"""What operators ask for: run now, pause, resume, make all rows again; and what the leader does without being asked."""

import msgspec
import pytest
from pipeline_world import ALL, COPY, SUMS, ArrowDeriver, Keeper, Striking, World, run_struck

from capture.archive import chain
from capture.archive.iceberg_state import Expiry
from capture.errors import PipelineError, StoreError
from capture.iceberg import Exposer
from capture.node.pipeline_requests import Request
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.document import Pipelines, PipelineTable, Run
from capture.pipelines.run import order_by_age
from capture.testing import MemoryHead

RARELY = msgspec.structs.replace(SUMS, schedule="every 1d")


async def tables(world):
    return (await chain.read(world.home, world.head.head, Pipelines)).tables


async def test_a_request_runs_a_pipeline_before_its_time_and_once(tmp_path):
    world = World(tmp_path, [RARELY])
    run = world.lead()
    await world.store(range(1, 8))
    assert await run() == {}
    await world.store(range(8, 20))
    assert await run() == {}
    assert (await tables(world))["sums"].number == 1  # its next slot begins tomorrow
    world.requests["sums"] = Request(what="run", id="a")
    assert await run() == {}
    found = (await tables(world))["sums"]
    assert (found.number, found.asked, [one.why for one in found.runs]) == (2, "a", ["new", "asked"])
    await world.store(range(20, 22))
    assert await run() == {}
    assert (await tables(world))["sums"].number == 2  # the request was carried out


async def test_a_request_with_nothing_new_counts_as_carried_out(tmp_path):
    world = World(tmp_path, [RARELY])
    run = world.lead()
    await world.store(range(1, 8))
    await run()
    world.requests["sums"] = Request(what="run", id="a")
    await run()
    found = (await tables(world))["sums"]
    assert (found.number, found.asked) == (1, "a")


async def test_a_paused_pipeline_runs_only_on_request(tmp_path):
    world = World(tmp_path)
    run = world.lead()
    world.requests["sums"] = Request(what="pause", id="a")
    await world.store(range(1, 8))
    assert await run() == {}
    found = await tables(world)
    assert (found["sums"].number, found["sums"].paused, found["every"].number) == (0, True, 1)
    run = world.lead()  # the next leader knows it from the document
    assert await run() == {}
    assert (await tables(world))["sums"].number == 0
    world.requests["sums"] = Request(what="run", id="b")
    assert await run() == {}
    await world.check()
    world.requests["sums"] = Request(what="resume", id="c")
    await world.store(range(8, 12))
    assert await run() == {}
    await world.check()


async def test_a_rerun_makes_all_rows_again_and_swaps_them_in_one_commit(tmp_path):
    world = World(tmp_path)
    run = world.lead()
    await world.store(range(1, 8))
    await run()
    await world.store(range(8, 20))
    await run()
    before = await tables(world)
    world.requests |= {name: Request(what="rerun", id=f"again {name}") for name in ("every", "sums")}
    assert await run() == {}
    await world.check()
    found = await tables(world)
    for name, one in found.items():
        assert (one.number, one.rebuilt, one.runs[-1].why) == (before[name].number + 1, one.number, "rerun")
        assert one.runs[-1].rows_in == 19
    assert found["every"].runs[-1].replaced == 2
    assert await run() == {}
    assert await tables(world) == found


async def test_a_changed_pipeline_keeps_its_last_good_table_until_it_is_made_again(tmp_path):
    world = World(tmp_path, [ALL, SUMS])
    run = world.lead()
    await world.store(range(1, 8))
    await run()
    changed = msgspec.structs.replace(SUMS, buckets=2)
    world.config = msgspec.structs.replace(world.config, pipeline=[ALL, changed])
    run = world.lead()
    await world.store(range(8, 20))
    failing = await run()
    assert list(failing) == ["sums"]
    assert "capture pipeline rerun sums" in failing["sums"]
    rows = await world.read()
    assert sum(one["n"] for one in rows["sums"]) == 7
    assert len(rows["every"]) == 19
    assert not (await tables(world))["sums"].runs[-1].error  # it did not run
    world.requests["sums"] = Request(what="rerun", id="a")
    assert await run_struck(run)
    await world.check()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (PipelineError("no such thing"), "no such thing"),
        (StoreError("the store is away"), "the store is away"),
        (KeyError("unforeseen"), "KeyError: 'unforeseen'"),
    ],
)
async def test_a_failed_run_is_recorded_and_waits_longer_each_time(tmp_path, fault, why):
    world = World(tmp_path, [ALL, SUMS])
    run = world.lead()
    await world.store(range(1, 8))
    await run()
    await world.store(range(8, 20))
    world.fail_with = fault
    for count in range(1, 4):
        assert await run() == {name: f"pipeline {name}: {why}" for name in ("every", "sums")}
        runs = (await tables(world))["sums"].runs
        assert [(one.number, one.error) for one in runs] == [(1, ""), *[(2, f"pipeline sums: {why}")] * count]
        await run()  # at once it does not try again
        assert len((await tables(world))["sums"].runs) == 1 + count
        world.now += 30.0 * 2 ** (count - 1)
    world.fail_with = None
    assert await run() == {}
    await world.check()


async def test_a_run_that_takes_too_long_is_ended_and_the_others_run(tmp_path):
    hasty = msgspec.structs.replace(ALL, time_limit=0.05)
    world = World(tmp_path, [hasty, SUMS])
    run = world.lead()
    await world.store(range(1, 8))
    world.takes = 0.3
    assert await run() == {"every": "pipeline every: its run took longer than its time_limit of 0.05 s, and was ended"}
    found = await tables(world)
    assert (found["every"].number, found["sums"].number) == (0, 1)


async def test_a_pipeline_that_ran_longest_ago_is_next_also_if_leaders_end_soon(tmp_path):
    world = World(tmp_path, [ALL, SUMS])
    for number in range(1, 5):
        await world.store([number])
        await run_struck(world.lead(deriving=1))  # it ends when it begins its second run
    found = await tables(world)
    assert (found["every"].number, found["sums"].number) == (2, 2)


def test_a_pipeline_runs_after_those_that_it_reads_whatever_their_age():
    late = Pipeline(name="late", sql="SELECT sequence FROM every", mode="append")
    runs = {"late": [Run(number=1, began=1.0, ended=1.0)], "every": [Run(number=1, began=9.0, ended=9.0)]}
    known = {name: PipelineTable(definition="", runs=some) for name, some in runs.items()}
    found = order_by_age([ALL, SUMS, late], known)
    assert [one.name for one in found] == ["sums", "every", "late"]


async def test_a_run_of_a_clock_that_was_ahead_delays_no_other(tmp_path):
    world = World(tmp_path, [msgspec.structs.replace(ALL, schedule="every 1h")])
    await world.store(range(1, 11))
    year = 365 * 86400.0
    world.now += year
    await world.lead()()
    world.now -= year
    await world.store(range(11, 21))
    run = world.lead()
    assert await run() == {}
    assert len((await world.read())["every"]) == 20
    await world.store(range(21, 31))
    assert await run() == {}
    assert len((await world.read())["every"]) == 20, "the schedule is still that of the pipeline"


async def test_a_failed_run_of_a_clock_that_was_ahead_is_tried_again(tmp_path):
    world = World(tmp_path, [ALL])
    await world.store(range(1, 11))
    world.now += 86400.0
    world.fail_with = PipelineError("pipeline every: no")
    assert await world.lead()()
    world.fail_with = None
    world.now -= 86400.0
    assert await world.lead()() == {}
    assert len((await world.read())["every"]) == 10


async def copy_with_a_fault(folder, at, after):
    """Run two pipelines while one request of the store fails; return whether one did, and the rows of both."""
    world = World(folder, [ALL, COPY])
    world.token += 1

    async def fail():
        raise StoreError("503 Slow Down")

    store = Striking(world.home, 10**9, after=after, act=fail)
    keeper = Keeper({}, world.config, "node-1", clock=lambda: world.now)
    exposure = Exposer(store, Expiry())
    leading = PipelineLeading(store, MemoryHead(world.token, world.head), "node-1", exposure=exposure)
    deriver = ArrowDeriver(store, world)

    async def run(times):
        for _ in range(times):
            world.now += 100.0
            await keeper.run_due(leading, deriver)

    await world.store(range(1, 6))
    await run(2)
    store._left = at
    await world.store(range(6, 11))
    await run(4)
    rows = await world.read()
    return store.struck, {name: sorted(one["sequence"] for one in rows[name]) for name in ("every", "copy")}


@pytest.mark.long
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_request_that_fails_once_neither_doubles_nor_loses_rows_of_tables_that_read_tables(tmp_path, after):
    """A commit may fail although it holds: then its run counts, and no record of a failure sets the table back."""
    at = 0
    while True:
        at += 1
        struck, rows = await copy_with_a_fault(tmp_path / f"{at}", at, after)
        if not struck:
            break
        assert rows == {"every": [*range(1, 11)], "copy": [*range(1, 11)]}, at
    assert at > 20
