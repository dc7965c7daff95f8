"""How an office is handed over and left, and how others look on."""

import asyncio
import contextlib

import pytest
from electing import LONG, forever
from patient import PATIENCE, PATIENT, until

from natty import Leadership, Natty
from natty.elections import trail
from natty.elections.candidacy import Candidacy

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "office_leaders"}


async def test_the_office_goes_to_the_node_that_is_named(natty, other, name, running):
    first, second, notes = [], [], []
    one = natty.election(name, lease=LONG, node_name="one", **BUCKET)
    running(one.run(forever(first)))
    await until(lambda: first)
    running(other.election(name, lease=LONG, node_name="two", **BUCKET).run(forever(second)))
    one.transfer("two")
    await until(lambda: second)
    assert await natty.have_leader(name, "two", **BUCKET)
    assert await natty.step_down(name, to="one", **BUCKET) == "two"
    await until(lambda: len(first) == 2)
    assert first[0].token < second[0].token < first[1].token
    async with asyncio.timeout(PATIENCE):  # they are written beside the work
        while [note.reason for note in notes] != ["transfer", "step_down", ""]:
            notes = await trail(natty.jetstream, one.subjects)
    assert [note.node for note in notes] == ["one", "two", "one"]


async def test_a_node_that_comes_first_is_handed_the_office(natty, other, name, running, renewed_often):
    last, first, lost = [], [], []
    options = {"lease": 20.0, **BUCKET}
    running(natty.election(name, priority=5, on_lost=lost.append, **options).run(forever(last)))
    await until(lambda: last)
    running(other.election(name, priority=1, **options).run(forever(first)))
    await until(lambda: first)
    await until(lambda: lost == ["transfer"])


async def test_nobody_can_be_asked_to_step_down_where_nobody_leads(natty, name):
    assert await natty.step_down(name, bucket="never_made") == ""
    async with natty.leader(name, lease=LONG, **BUCKET):
        pass
    assert await natty.step_down(name, **BUCKET) == ""


async def test_who_leads_can_be_followed(natty, other, name, running):
    seen = []

    async def look():
        async for now in natty.observe(name, **BUCKET):
            seen.append(now)

    running(look())
    await until(lambda: seen)
    assert seen == [Leadership()]
    async with other.leader(name, lease=LONG, node_name="one", **BUCKET) as term:
        await until(lambda: len(seen) == 2)
        assert (seen[1].node, seen[1].token, seen[1].lease) == ("one", term.token, LONG)
        assert seen[1].since.startswith("20")
    await until(lambda: len(seen) == 3)
    assert not seen[2]
    async with other.leader(name, lease=LONG, node_name="two", **BUCKET):
        await until(lambda: len(seen) == 4)
    assert seen[3].node == "two"
    assert seen[3].token > seen[1].token


async def test_a_leader_that_falls_silent_is_not_shown_for_ever(natty, natty_proxy, name, running):
    seen = []

    async def look():
        async for now in natty.observe(name, **BUCKET):
            seen.append(now.node)

    async with Natty(**natty_proxy.options, **PATIENT) as far:
        leading = running(far.election(name, lease=0.6, node_name="far", **BUCKET).run(forever([])))
        running(look())
        await until(lambda: "far" in seen)
        natty_proxy.half_open()
        await until(lambda: seen[-1] == "")
        await natty_proxy.restore()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


@pytest.mark.parametrize("fault", [None, asyncio.CancelledError])
async def test_work_that_is_not_well_leaves_office(natty, other, name, running, fault):
    first, second, lost, elected, seen = [], [], [], [], []
    well = True

    def health():
        if fault and not well:
            raise fault
        return well

    def on_elected(token):
        elected.append(token)
        if fault:
            raise fault

    options = {"lease": LONG, "on_lost": lost.append, "on_elected": on_elected}
    running(natty.election(name, health=health, **options, **BUCKET).run(forever(first)))
    await until(lambda: first)
    running(other.election(name, lease=LONG, on_new_leader=seen.append, **BUCKET).run(forever(second)))
    await until(lambda: seen)
    well = False
    await until(lambda: second and lost)
    assert lost == ["health"]
    assert elected == [first[0].token]


async def test_work_that_goes_on_after_it_was_told_to_stop_is_reported(natty, name, running):
    overran = asyncio.Event()

    async def stubborn(term):
        term.step_down()
        while not overran.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await overran.wait()
        return "ended"

    election = natty.election(name, lease=LONG, on_stop_overrun=overran.set, **BUCKET)
    running(election.run(stubborn))
    await overran.wait()
    await until(lambda: election.figures["losses"] == {"step_down": 1})
    assert (election.figures["leading"], election.figures["elected"]) == (False, 1)
    assert election.figures["writes"] >= 3  # the lease, the epoch, the release
    assert election.figures["slowest"] > 0


async def test_a_term_that_nobody_has_taken_up_is_released(natty, other, name):
    election = natty.election(name, lease=LONG, **BUCKET)
    await election.prepare()
    async with Candidacy(election) as candidacy:
        await until(lambda: candidacy._terms.qsize())
    async with asyncio.timeout(PATIENCE), other.leader(name, lease=LONG, **BUCKET):
        pass
