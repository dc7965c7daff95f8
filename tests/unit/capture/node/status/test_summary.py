from __future__ import annotations

import asyncio
import logging
from collections import Counter

import pytest

from capture.node.status.backlog import Backlog, sentence, summarise
from natty import NattyError

NOTHING = Backlog(pending=0, unacked=0)


class Minutes:
    """A summary whose time is the test's: `passed` lets the next interval pass, with what was stored in it."""

    def __init__(self, *, every: float = 60.0) -> None:
        self.every = every
        self.now = 1000.0
        self.stored: Counter[str] = Counter(blocks=3)
        self.backlog: Backlog | NattyError = NOTHING
        self.slept: list[float] = []
        self._turn = asyncio.Event()
        self._asleep = asyncio.Event()

    async def __aenter__(self) -> Minutes:
        self._task = asyncio.create_task(
            summarise(
                "node-1", self.stored, lambda: self.every, self._ask,
                clock=lambda: self.now, elapsed=lambda: self.now, sleep=self._sleep,
            )
        )  # fmt: skip
        await self._asleep.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def passed(self, **stored: int) -> None:
        self.stored.update(stored)
        self._asleep.clear()
        self._turn.set()
        await self._asleep.wait()

    async def _ask(self) -> Backlog:
        if isinstance(self.backlog, NattyError):
            raise self.backlog
        return self.backlog

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._asleep.set()
        await self._turn.wait()
        self._turn.clear()
        self.now += seconds


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_summary_reads_like_this() -> None:
    stored = Counter(messages=120_000, blocks=4, bytes=5_000_000, failures=2)
    assert sentence("node-1", stored, 60.0, Backlog(pending=1500, unacked=20, oldest=88.4), 100.0) == (
        "node-1: 120,000 messages in 4 blocks of 5,000,000 bytes stored in 60 s, 2,000 messages/s; "
        "2 blocks could not be stored; 1,500 pending, 20 unacknowledged, the oldest 12 s old"
    )


async def test_each_line_tells_of_its_own_interval(caplog: pytest.LogCaptureFixture) -> None:
    async with Minutes() as minutes:
        await minutes.passed(messages=600, blocks=1, bytes=10)
        await minutes.passed(messages=60, blocks=2, bytes=5)
    assert [one.message for one in caplog.records] == [
        "node-1: 600 messages in 1 block of 10 bytes stored in 60 s, 10 messages/s; 0 pending, 0 unacknowledged",
        "node-1: 60 messages in 2 blocks of 5 bytes stored in 60 s, 1 messages/s; 0 pending, 0 unacknowledged",
    ]
    assert vars(caplog.records[1])["messages"] == 60  # a field of the JSON line


async def test_nothing_is_said_while_there_is_no_work(caplog: pytest.LogCaptureFixture) -> None:
    async with Minutes() as minutes:
        await minutes.passed()
        assert caplog.records == []
        minutes.backlog = Backlog(pending=1, unacked=0, oldest=0.0)
        await minutes.passed()
    assert "0 messages in 0 blocks" in caplog.text
    assert "1 pending, 0 unacknowledged, the oldest 1,120 s old" in caplog.text


async def test_it_can_be_turned_off_and_on_while_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    async with Minutes(every=0.0) as minutes:
        await minutes.passed(messages=1)
        assert caplog.records == []
        minutes.every = 5.0
        await minutes.passed(messages=1)
        await minutes.passed(messages=1)
    assert minutes.slept == [1.0, 1.0, 5.0, 5.0]
    assert len(caplog.records) == 1


async def test_a_server_that_does_not_answer_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    async with Minutes() as minutes:
        minutes.backlog = NattyError("no answer")
        await minutes.passed(messages=60)
        minutes.backlog = NOTHING
        await minutes.passed(messages=60)
    assert [one.levelname for one in caplog.records] == ["WARNING", "INFO"]
    assert "120 messages in 0 blocks of 0 bytes stored in 120 s" in caplog.text
