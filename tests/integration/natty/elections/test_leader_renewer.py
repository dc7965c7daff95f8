"""The thread that renews: shared by all elections of a client, and stalled by none of their work."""

import asyncio
import threading
import time

import pytest
from electing import LONG, forever, renewals, vacated
from patient import PATIENCE, PATIENT, until

from natty import LeadershipLostError, Natty
from natty.config.units import clock
from natty.elections import renewer
from natty.elections.driver import Driver
from natty.elections.renewer import renewer_of
from natty.wire.background import cancel_all

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "renewer_leaders"}


def threads():
    return sum(thread.name == "natty renewer" for thread in threading.enumerate())


async def test_many_elections_share_one_thread_one_connection_and_one_subscription(natty, natty_proxy, name, running):
    terms, names = [], [await vacated(natty, f"{name}-{number}", **BUCKET) for number in range(30)]
    async with Natty(**natty_proxy.options, **PATIENT) as client:
        tasks = [running(client.election(one, lease=LONG, **BUCKET).run(forever(terms))) for one in names]
        await until(lambda: len(terms) == 30)
        await until(lambda: natty_proxy.connections == 2)
        subscriptions = renewer_of(client.connection)._thread.connection._subscriptions
        assert len(subscriptions) == 3  # answers, calls, what was stored
        await until(lambda: threads() == 1)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_dead_link_is_noticed_within_the_shortest_lease_whenever_that_election_began(
    natty, natty_proxy, name, running
):
    terms, second = [], await vacated(natty, f"{name}-2", **BUCKET)
    async with Natty(**natty_proxy.options, **PATIENT) as client:
        tasks = [running(client.election(name, lease=LONG, **BUCKET).run(forever(terms)))]
        await until(lambda: len(terms) == 1)
        thread = renewer_of(client.connection)._thread
        assert thread.connection.config.ping_interval == LONG / 3 > PATIENCE
        tasks.append(running(client.election(second, lease=1.0, **BUCKET).run(forever(terms))))
        await until(lambda: len(terms) >= 2)
        before = thread.connection.reconnects
        natty_proxy.mute()
        await until(lambda: thread.connection.reconnects > before)
        await cancel_all(tasks[1:])
        await until(lambda: thread.connection.config.ping_interval == LONG / 3)
        assert len(thread._drivers) == 1
        await natty_proxy.cut()
        await natty_proxy.restore()
        await cancel_all(tasks)


async def test_the_renewers_thread_ends_with_the_last_election(natty, name):
    second = await vacated(natty, f"{name}-2", **BUCKET)
    async with natty.leader(name, lease=LONG, **BUCKET), natty.leader(second, lease=LONG, **BUCKET):
        assert threads() > 0
    await until(lambda: threads() == 0)


async def test_a_thread_that_ends_late_takes_nothing_from_the_next(natty, name, monkeypatch, renewed_often):
    late, go_on, close = [], threading.Event(), Driver.close

    def held_up(driver):
        if not late:
            late.append(threading.current_thread())
            go_on.wait()
        close(driver)

    monkeypatch.setattr(renewer, "CLOSE_WITHIN", 0.01)
    monkeypatch.setattr(Driver, "close", held_up)
    async with natty.leader(name, lease=LONG, **BUCKET):
        pass
    async with natty.leader(name, lease=LONG, **BUCKET) as term:
        go_on.set()
        await until(lambda: not late[0].is_alive())
        await renewals(term)
        await term.commit("position", b"1")


async def test_a_busy_event_loop_costs_nobody_the_office(natty, name, running, renewed_often):
    terms = []
    running(natty.election(name, lease=LONG, max_stall=LONG, **BUCKET).run(forever(terms)))
    await until(lambda: terms)
    began = time.monotonic()
    for _ in range(3):
        deadline = terms[0]._tenure.deadline
        while terms[0]._tenure.deadline == deadline:
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.01)  # the loop is stuck


async def test_how_well_renewals_keep_up_is_told(nats_server, natty, name, running, renewed_often):
    terms, seen = [], []
    leading = natty.election(name, lease=LONG, **BUCKET)
    assert leading.figures["least_left"] == float("inf")
    running(leading.run(forever(terms)))
    await until(lambda: terms)
    async with Natty(**nats_server.connect_options(), **PATIENT) as other:
        watching = other.election(name, lease=LONG, on_new_leader=seen.append, **BUCKET)
        following = running(watching.run(forever([])))
        await until(lambda: seen)
        await renewals(terms[0])
        await until(lambda: watching.figures["longest_silence"] > 0)
        assert 0 < leading.figures["least_left"] < LONG
        assert 0 < leading.figures["latest"] < LONG
        assert (watching.figures["writes"], watching.figures["least_left"]) == (0, float("inf"))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_what_was_due_before_its_timer_was_set_makes_no_timer_late(natty, name, running):
    """A candidate that waits for an answer has no timer, and acts at once after that."""
    terms, leading = [], natty.election(name, lease=LONG, **BUCKET)
    running(leading.run(forever(terms)))
    await until(lambda: terms)
    driver, written = leading.driver, leading.figures["writes"]
    driver.candidate._renew_at = clock() - LONG
    driver.post("connected")
    await until(lambda: leading.figures["writes"] > written)
    assert leading.figures["latest"] <= PATIENCE


async def test_a_hung_main_side_is_not_kept_in_office(natty, name, running):
    terms = []
    running(natty.election(name, lease=0.6, max_stall=0.5, **BUCKET).run(forever(terms)))
    await until(lambda: terms)
    began = time.monotonic()
    while terms[0].remaining() > 0:
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.01)  # the loop is stuck
    with pytest.raises(LeadershipLostError):
        terms[0].check()


async def test_a_candidacy_that_is_cancelled_at_any_moment_leaves_nobody_in_office(natty, name):
    """The campaign is parked and cancelled at one turn of the loop after the other, up to the work itself."""
    for turns in (*range(12), 20, 40, 80):
        task = asyncio.create_task(natty.election(name, lease=LONG, **BUCKET).run(forever([])))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: threads() == 0)
    for seconds in (0.01, 0.02, 0.03, 0.04):
        task = asyncio.create_task(natty.election(name, lease=LONG, **BUCKET).run(forever([])))
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(PATIENCE), natty.leader(name, lease=LONG, **BUCKET):
        pass
