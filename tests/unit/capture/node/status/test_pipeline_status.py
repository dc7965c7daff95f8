"""What `capture status`, the page and Prometheus are told of pipelines, by tables that a leader has committed."""

import io

import msgspec
import pytest
from archived import ARCHIVE, CREATED, STREAM
from pipeline_world import ALL, SUMS, World
from rich.console import Console
from troubles import texts

from capture.archive import chain
from capture.archive.identity import claim
from capture.archive.index.contents import load
from capture.archive.manifest import Manifest
from capture.archive.sequences import Sequences
from capture.cli.status import page
from capture.config.settings import CaptureConfig
from capture.errors import PipelineError
from capture.ingest.board import BoardState
from capture.ingest.board_trouble import Trouble
from capture.node.metrics import NodeCollector
from capture.node.nodes import Several
from capture.node.status import pipelines
from capture.node.status.pipeline_metrics import pipeline_metrics
from capture.node.status.pipelines import (
    NO_LEADER,
    NOT_KNOWN,
    RECENT,
    PipelinesStatus,
    PipelineState,
    RunState,
    summarise,
)
from capture.node.status.status import Status
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.document import PipelineTable, Run
from capture.reading.pipeline_view import PipelineView
from capture.testing import MemoryHead


@pytest.fixture
async def world(tmp_path):
    world = World(tmp_path)
    await claim(world.archive.store, ARCHIVE, STREAM, CREATED, None)
    await world.store(range(1, 8))
    return world


async def look(world):
    view = await PipelineView.open(world.config)
    return {one.name: summarise(await view.outline(one), one) for one in world.config.pipeline}


async def record(world, table, *runs, **facts):
    """Commit runs of a table, as its leader does."""
    world.token += 1
    leading = PipelineLeading(world.home, MemoryHead(world.token, world.head))
    before = (await leading.read(world.now)).tables.get(table, PipelineTable(definition=""))
    after = msgspec.structs.replace(before, **facts)
    for one in runs:
        after = after.with_run(one)
    await leading.commit(Change(tables={table: after}), world.now)


def failed(error, at=0.0):
    return Run(number=1, began=at, ended=at + 2.0, error=error)


def status(*states, leader="node-1", **more):
    return PipelinesStatus("lake", leader, list(states), **more)


def state(name="sums", **facts):
    return PipelineState(name=name, schedule="every 5m", **{"state": "current"} | facts)


async def test_a_pipeline_goes_from_never_ran_over_current_to_behind(world):
    found = await look(world)
    assert {(one.state, one.behind, one.run, one.good) for one in found.values()} == {("never ran", 7, 0, None)}
    run = world.lead()
    assert await run() == {}
    (one, other) = (await look(world)).values()
    assert (one.state, one.behind, one.rows, one.run, other.rows) == ("current", 0, 7, 1, 5)
    assert (one.good, one.last.rows_in, one.last.rows_out, one.last.leader) == (one.last.ended, 7, 7, "node-1")
    await world.store([9, 10])
    assert {(one.state, one.behind) for one in (await look(world)).values()} == {("behind", 2)}
    assert status(*(await look(world)).values()).troubles == []  # the next run reads them
    view = await PipelineView.open(world.config)
    manifest = await chain.read(world.archive.store, world.archive.heads[Manifest].head, Manifest)
    stored = max(one.stored_ns for one in (await load(world.archive.store, manifest)).blocks) / 1e9
    assert await view.find_oldest(STREAM, Sequences.from_range(1, 10)) < stored
    assert await view.find_oldest(STREAM, Sequences.from_range(9, 9)) == stored
    assert await view.find_oldest(STREAM, Sequences()) == 0.0


async def test_failures_since_the_last_good_run_are_counted_and_told(world):
    assert await world.lead()() == {}
    good = (await look(world))["sums"].good
    await record(world, "sums", *(failed("pipeline sums: its query is slow", at) for at in (10.0, 20.0)))
    one = (await look(world))["sums"]
    assert (one.state, one.failures, one.good, one.last.error) == ("failed", 2, good, one.error)
    assert texts(status(one).troubles) == ["pipeline sums: its query is slow (failed 2 times in a row)"]
    assert status(one).list_troubles([Trouble("node-1: pipeline sums: its query is slow")]) == []
    assert status(one).list_troubles([Trouble("node-1: pipeline sums2: other")]) == status(one).troubles
    await record(world, "sums", *(failed("Spark has ended", at) for at in range(60)))
    one = (await look(world))["sums"]
    assert (one.failures, one.good, len(one.runs)) == (50, None, RECENT)
    assert texts(status(one).troubles) == ["pipeline sums: Spark has ended (failed 50 times in a row)"]


async def test_the_next_run_is_after_the_time_that_follows_a_failure(world, monkeypatch):
    assert await world.lead()() == {}
    often = msgspec.structs.replace(SUMS, schedule="every 1s")
    monkeypatch.setattr(pipelines.time, "time", lambda: 1000.25)
    view = await PipelineView.open(world.config)
    assert (await pipelines._look(view, often)).next == 1001.0
    await record(world, "sums", failed("it fails", 990.0))
    view = await PipelineView.open(world.config)
    assert (await pipelines._look(view, often)).next == 992.0 + 30.0


async def test_a_changed_definition_needs_a_rerun_and_a_paused_one_is_no_trouble(world):
    assert await world.lead()() == {}
    changed = msgspec.structs.replace(SUMS, buckets=5)
    world.config = msgspec.structs.replace(world.config, pipeline=[ALL, changed])
    one = (await look(world))["sums"]
    assert (one.state, one.changed) == ("needs rerun", ["buckets"])
    assert texts(status(one).troubles) == [
        "pipeline sums needs a rerun: its table was made with other settings (buckets), and stays as it is until"
        " `capture pipeline rerun sums`"
    ]
    await record(world, "sums", failed("it fails"), paused=True)
    one = (await look(world))["sums"]
    assert (one.state, status(one).troubles) == ("paused", [])


async def test_a_table_whose_pipeline_reads_another_has_its_rows_to_read(tmp_path, world):
    top = msgspec.structs.replace(ALL, name="top", sql="SELECT k FROM sums", mode="replace")
    world.config = msgspec.structs.replace(world.config, pipeline=[ALL, SUMS])
    assert await world.lead()() == {}
    await record(world, "top", definition=top.definition, number=1, inputs={"sums": 1})
    world.config = msgspec.structs.replace(world.config, pipeline=[ALL, SUMS, top])
    assert (await look(world))["top"].behind == 0
    await record(world, "top", inputs={"sums": 0})
    assert (await look(world))["top"].behind == 5


def test_what_is_wrong_with_all_pipelines_is_told_first():
    unknown = state(state=NOT_KNOWN)
    found = status(unknown, leader="", unreadable="the store is away")
    assert texts(found.troubles) == [NO_LEADER, "the tables of the pipelines can't be read: the store is away"]
    assert (found.as_dict()["ok"], found.as_dict()["leader"]) == (False, None)
    assert found.as_dict()["pipelines"][0]["behind"] is None


def run_state(**facts):
    figures = {"rows_in": 12_000, "rows_out": 30, "bytes_in": 5_000_000, "bytes_out": 900, "leader": "node-1"}
    return RunState(number=4, began=1000.0, ended=1002.5, seconds=2.5, **figures | facts)


def test_prometheus_has_what_is_known_by_pipeline():
    one = state(
        run=4,
        good=1002.5,
        waiting_since=1008.0,
        behind=3,
        rows=30,
        files=2,
        bytes=900,
        quarantined=0,
        runs=[run_state()],
    )
    never = state("later", state="never ran", behind=7, rows=0, files=0, bytes=0, quarantined=0)
    text = pipeline_metrics(status(one, never), 1010.0)
    for line in (
        'capture_pipelines_led{pipelines="lake"} 1',
        'capture_pipelines_ok{pipelines="lake"} 1',
        'capture_pipeline_committed_runs{pipeline="sums"} 4',
        'capture_pipeline_behind{pipeline="later"} 7',
        'capture_pipeline_good_run_age_seconds{pipeline="sums"} 7.5',
        'capture_pipeline_lag_seconds{pipeline="sums"} 2',
        'capture_pipeline_last_run_seconds{pipeline="sums"} 2.5',
        'capture_pipeline_last_run_bytes_in{pipeline="sums"} 5000000',
    ):
        assert f"{line}\n" in text
    assert 'good_run_age_seconds{pipeline="later"}' not in text
    assert text.count("# TYPE capture_pipeline_behind gauge") == 1
    unknown = pipeline_metrics(status(state(state=NOT_KNOWN), unreadable="away", leader=""), 1010.0)
    assert 'capture_pipelines_readable{pipelines="lake"} 0\n' in unknown
    assert "capture_pipeline_" not in unknown.replace("capture_pipelines_", "")


@pytest.mark.parametrize("width", [80, 200])
def test_the_page_for_people_has_a_row_for_each_pipeline(width):
    one = state(run=4, good=1002.5, waiting_since=1008.0, behind=1_234, rows=30, files=2, bytes=900, runs=[run_state()])
    unknown = state("other", state=NOT_KNOWN)
    archive = Status(ARCHIVE, BoardState(None, 0.0, []), "node-1", "node-2")
    file = io.StringIO()
    Console(file=file, width=width, markup=False).print(page(archive, status(one, unknown)))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "pipelines, led by node-1" in [line.rstrip() for line in lines]
    if width == 200:
        (row,) = [line.split() for line in lines if line.strip().startswith("sums")]
        assert row[:3] == ["sums", "current", "1,234"]
        assert row[-7:] == ["2.5", "s", "12,000", "30", "30", "900", "B"]
        (row,) = [line.split() for line in lines if line.strip().startswith("other")]
        assert row == ["other", "not", "known", "?", "?", "?"]


async def test_a_leader_counts_its_runs_for_prometheus(world):
    run = world.lead()
    assert await run() == {}
    await world.store([9])
    assert await run() == {}
    several = Several(msgspec.structs.replace(world.config, archive=""))
    several.keeper = world.keeper
    found = {
        (sample.name, sample.labels.get("pipeline")): sample.value
        for family in NodeCollector(several).collect()
        for sample in family.samples
    }
    assert found["capture_pipeline_runs_total", "every"] == 2
    assert found["capture_pipeline_failed_total", "every"] == 0
    assert found["capture_pipeline_rows_in_total", "every"] == 8
    assert found["capture_pipeline_rows_out_total", "sums"] == 5 + 2  # a run writes whole buckets
    assert found["capture_pipeline_bytes_in_total", "sums"] > 0
    assert ("capture_pipeline_run_seconds_total", "sums") in found


async def test_a_failed_run_is_counted_too(world):
    async def fail(asked):
        raise PipelineError(f"pipeline {asked.pipeline}: it is too hot")

    run = world.lead()
    world.deriver.derive = fail
    assert await run() == {name: f"pipeline {name}: it is too hot" for name in ("every", "sums")}
    assert {name: (one["runs"], one["failed"]) for name, one in world.keeper.counts.items()} == {
        "every": (1, 1),
        "sums": (1, 1),
    }


def test_one_node_of_several_streams_reports_what_is_wrong_with_their_pipelines(tmp_path):
    several = Several(CaptureConfig(streams=["A", "B"], store=str(tmp_path)))
    several.nodes[0].beside = {"pipelines": "the tables can't be read"}
    assert [one.state().troubles for one in several.nodes] == [["the tables can't be read"], []]
