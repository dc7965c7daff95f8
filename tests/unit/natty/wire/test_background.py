import asyncio

import pytest
from patient import PATIENCE

from natty.wire.background import AGAIN_AFTER, LONGEST_PAUSE, keep_up, wait_until_set


class World:
    """A clock, and work that takes so many seconds and then raises, or returns."""

    def __init__(self, *lives):
        self.now, self.pauses, self._lives = 0.0, [], list(lives)

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds

    async def work(self):
        seconds, error = self._lives.pop(0)
        self.now += seconds
        if error is not None:
            raise error

    async def run(self):
        await keep_up("the summary", self.work, clock=self.clock, sleep=self.sleep)


async def test_work_that_fails_is_logged_with_its_traceback_and_begins_again_later_and_later(caplog):
    world = World(*[(0.0, KeyError("x"))] * 8, (0.0, None))
    await world.run()
    assert world.pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert caplog.messages[0] == f"the summary failed and restarts in {AGAIN_AFTER:g} s"
    assert len(caplog.records) == 8
    assert all(isinstance(record.exc_info[1], KeyError) for record in caplog.records)


async def test_work_that_ran_for_long_begins_again_soon(caplog):
    failing = (0.0, ValueError("x"))
    world = World(failing, failing, (LONGEST_PAUSE + 1.0, ValueError("y")), failing, (0.0, None))
    await world.run()
    assert world.pauses == [1.0, 2.0, 1.0, 2.0]


async def test_work_that_awaits_what_was_cancelled_begins_again(caplog):
    world = World((0.0, asyncio.CancelledError()), (0.0, None))
    await world.run()
    assert caplog.messages == [f"the summary failed and restarts in {AGAIN_AFTER:g} s"]


async def test_work_that_is_cancelled_ends():
    working = asyncio.create_task(keep_up("the summary", asyncio.Event().wait))
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_a_limited_wait_returns_whether_the_event_is_set():
    event = asyncio.Event()
    assert not await wait_until_set(event, 0.0)
    asyncio.get_running_loop().call_soon(event.set)
    assert await wait_until_set(event, None)
    assert await wait_until_set(event, 0.0)


async def test_a_limited_wait_that_is_cancelled_ends():
    waiting = asyncio.create_task(wait_until_set(asyncio.Event(), PATIENCE))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
