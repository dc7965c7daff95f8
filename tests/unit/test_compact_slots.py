"""How the compaction's leader goes through its slots, without Spark or a server."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from capture import lead
from capture.compact import CompactReport
from capture.config import CaptureConfig, Compacting
from capture.errors import CompactionError
from capture.schedule import LOOK


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

    async def run(duty, head, engine, slots):
        asked.append(slots)
        return reports[len(asked) - 1]

    async def sleep(seconds):
        raise Slept(seconds)

    monkeypatch.setattr(lead, "SparkDriver", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(lead.Duty, "compact_once", run)
    monkeypatch.setattr(lead.asyncio, "sleep", sleep)
    config = CaptureConfig(stream="S", store="memory://s", compaction=compacting)
    term = SimpleNamespace(token=1, check=lambda: None, run_process=None)
    with pytest.raises(Slept) as slept:
        await lead.Duty(None, None, config, "node", clock=lambda: 3e5 + 100.0).compact(term)
    assert slept.value.args == (pause,)
    assert asked == [compacting.schedule()] * 3


async def test_a_run_that_fails_waits_for_the_next_slot(monkeypatch):
    async def run(*_):
        raise CompactionError("it doesn't add up")

    async def sleep(seconds):
        raise Slept(seconds)

    monkeypatch.setattr(lead, "SparkDriver", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(lead.Duty, "compact_once", run)
    monkeypatch.setattr(lead.asyncio, "sleep", sleep)
    term = SimpleNamespace(token=1, check=lambda: None, run_process=None)
    with pytest.raises(Slept):
        await lead.Duty(None, None, CaptureConfig(stream="S", store="memory://s"), "node").compact(term)
