"""The task that keeps the fresh table: it outlives every failure of a step, and says so."""

import asyncio

from capture.errors import NotSweptError
from capture.maintenance.fresh import NOTHING, FreshReport
from capture.node.fresh_keeper import FRESH, FreshKeeper
from natty import LeadershipLostError


class Steps:
    """Takes the steps of a table: each raises or returns what is next."""

    def __init__(self, *results):
        self.results, self.over = list(results), asyncio.Event()

    async def step(self, leading, now):
        result = self.results.pop(0)
        if not self.results:
            self.over.set()
        if isinstance(result, Exception):
            raise result
        return result


async def keep(steps):
    """Keep the table until the steps are over; return what was said of its failures at each step."""
    failing, said = {}, []

    async def lead():
        said.append(dict(failing))

    async def attempt(what, work):
        done = await work
        failing.pop(what, None)
        return done

    keeper = FreshKeeper(steps, lead, every=lambda: 0.01, attempt=attempt, failing=failing, clock=lambda: 0.0)
    async with keeper.scope():
        await asyncio.wait_for(steps.over.wait(), 10)
    return said


async def test_an_unexpected_failure_is_logged_and_shown_and_the_next_step_is_taken(caplog):
    said = await keep(Steps(ValueError("bad page"), NOTHING, NotSweptError(), FreshReport(shown=1), NOTHING))
    assert said == [{}, {FRESH: "the fresh table failed: ValueError: bad page"}, {}, {}, {}]
    assert [one.message for one in caplog.records if one.exc_info] == ["the fresh table failed"]


async def test_it_ends_with_the_term():
    steps = Steps(NOTHING, LeadershipLostError("over"))
    assert await keep(steps) == [{}, {}]
