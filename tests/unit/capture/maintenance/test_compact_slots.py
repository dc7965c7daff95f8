"""How the compaction's leader goes through its slots, without Spark or a server."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from capture.cli import archive
from capture.config.settings import CaptureConfig, Compacting
from capture.errors import CompactionError
from capture.maintenance.compaction import CompactReport
from capture.maintenance.schedule import LOOK
from capture.node import leader_tasks


class Slept(Exception):
    """Whoever sleeps is done."""


@pytest.mark.parametrize(
    ("compacting", "pause"),
    [(Compacting(every=300.0), 200.0), (Compacting(cron="0 0 * * *", waiting_files=3), LOOK)],
    ids=["every", "cron and threshold"],
)
async def test_a_slot_takes_as_many_runs_as_it_needs_and_then_the_leader_waits(monkeypatch, compacting, pause):
    reports = [CompactReport(head=None, groups=groups) for groups in (1000, 3, 0, 9)]
    asked = []

    async def run(duty, leading, engine, slots):
        asked.append(slots)
        return reports[len(asked) - 1]

    async def sleep(_, seconds):
        raise Slept(seconds)

    monkeypatch.setattr(leader_tasks, "SparkDriver", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(leader_tasks.Duty, "compact_once", run)
    monkeypatch.setattr(leader_tasks.FreshKeeper, "pause", sleep)
    config = CaptureConfig(stream="S", store="memory://s", compaction=compacting)
    term = SimpleNamespace(token=1, check=lambda: None, run_process=None)
    with pytest.raises(Slept) as slept:
        await leader_tasks.Duty(None, None, config, "node", clock=lambda: 3e5 + 100.0).compact(term)
    assert slept.value.args == (pause,)
    assert asked == [compacting.schedule()] * 3


@pytest.mark.parametrize(
    ("all_blocks", "reports", "wanted"),
    [
        (False, [{"groups": 2, "rows_in": 20}], (2, 20, [])),
        (True, [{"groups": 2, "rows_in": 20}, {"groups": 1, "rows_in": 5}, {}], (3, 25, [])),
        (True, [{"groups": 2, "failed": ["a"]}, {"groups": 1, "failed": ["a"]}, CompactionError("a")], (3, 0, ["a"])),
    ],
    ids=["a run", "all", "all that can be"],
)
async def test_by_hand_a_run_is_made_or_as_many_as_all_blocks_need(monkeypatch, all_blocks, reports, wanted):
    async def run(duty, leading, engine):
        match reports.pop(0):
            case Exception() as error:
                raise error
            case told:
                return CompactReport(head=None, **told)

    monkeypatch.setattr(archive, "SparkDriver", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(leader_tasks.Duty, "compact_once", run)
    config = CaptureConfig(stream="S", store="memory://s")
    term = SimpleNamespace(token=1, node="cli", run_process=None)
    done = await archive._compact(None, config, all_blocks=all_blocks)(term)
    assert (done.groups, done.rows_in, done.failed) == wanted
    assert reports == []


@pytest.mark.parametrize(
    ("compacting", "pause"),
    [(Compacting(every=250.0), 150.0), (Compacting(cron="0 0 * * *"), leader_tasks.RETRY)],
    ids=["the next slot", "sooner than tomorrow"],
)
async def test_a_run_that_fails_is_tried_again(monkeypatch, compacting, pause):
    async def run(*_):
        raise CompactionError("it doesn't add up")

    async def sleep(_, seconds):
        raise Slept(seconds)

    monkeypatch.setattr(leader_tasks, "SparkDriver", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(leader_tasks.Duty, "compact_once", run)
    monkeypatch.setattr(leader_tasks.FreshKeeper, "pause", sleep)
    term = SimpleNamespace(token=1, check=lambda: None, run_process=None)
    config = CaptureConfig(stream="S", store="memory://s", compaction=compacting)
    with pytest.raises(Slept) as slept:
        await leader_tasks.Duty(None, None, config, "node", clock=lambda: 3e5 + 100.0).compact(term)
    assert slept.value.args == (pause,)
