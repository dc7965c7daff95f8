"""Work that a leader repeats: `every`. See test_leader_cron.py for `cron`."""

import asyncio
import contextlib
import logging
import threading

import pytest
from electing import LONG
from patient import NEVER, PATIENCE, PATIENT, until

from natty import ConnectionClosedError, LeadershipLostError, Natty, StaleTokenError
from natty.elections import work_loop

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "loop_leaders"}


@pytest.fixture
def quick(monkeypatch):
    """Pause for a moment after an error, and never long."""
    monkeypatch.setattr(work_loop, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(work_loop, "LONGEST_PAUSE", 0.001)


class Runs:
    """Work that records its terms; it raises `errors` first, and a run with `hold` waits until it is cancelled."""

    def __init__(self, *errors, hold=False):
        self.terms, self.hold, self.cancelled, self.returned = [], hold, 0, 0
        self._errors = list(errors)

    async def __call__(self, term):
        self.terms.append(term)
        if self._errors:
            raise self._errors.pop(0)
        if self.hold:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        self.returned += 1

    @property
    def tokens(self):
        return [term.token for term in self.terms]


async def test_an_error_is_logged_and_counted_and_the_node_stays_in_office(natty, other, name, running, quick, caplog):
    work, waiting, seen = Runs(RuntimeError("boom"), ValueError("bad")), Runs(), []
    one = natty.election(name, lease=LONG, every=0.001, node_name="one", **BUCKET)
    running(one.run(work))
    await until(lambda: work.terms)
    two = other.election(name, lease=LONG, every=0.001, on_new_leader=seen.append, **BUCKET)
    running(two.run(waiting))
    await until(lambda: work.returned >= 3 and seen)
    assert len(set(work.tokens)) == 1
    assert (waiting.tokens, one.is_leader()) == ([], True)
    assert one.figures["failed"] == 2
    assert one.figures["succeeded"] >= 2
    failures = [record for record in caplog.records if getattr(record, "action", "") == "run_failed"]
    assert [record.levelno for record in failures] == [logging.ERROR] * 2
    assert [record.getMessage() for record in failures] == [
        f"the work of {name!r} failed once, and runs again in 1ms: RuntimeError('boom')",
        f"the work of {name!r} failed 2 times in a row, and runs again in 1ms: ValueError('bad')",
    ]
    assert failures[0].exc_info[1].args == ("boom",)


async def test_the_pause_doubles_with_each_error_in_a_row_and_begins_anew_after_a_success(
    natty, name, running, monkeypatch, caplog
):
    monkeypatch.setattr(work_loop, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(work_loop, "LONGEST_PAUSE", 0.004)
    errors = iter([True] * 5 + [False] + [True, False])
    done = asyncio.Event()

    async def work(term):
        fails = next(errors, None)
        if fails is None:
            done.set()
        elif fails:
            raise RuntimeError

    running(natty.election(name, lease=LONG, every=0.001, **BUCKET).run(work))
    await until(done.is_set)
    pauses = [record.args[2] for record in caplog.records if getattr(record, "action", "") == "run_failed"]
    assert pauses == ["1ms", "2ms", "4ms", "4ms", "4ms", "1ms"]


async def test_runs_do_not_overlap_and_the_next_begins_at_once_after_a_long_one(natty, name, running):
    together, begun = [], 0

    async def work(term):
        nonlocal begun
        begun += 1
        together.append(begun)
        await asyncio.sleep(0.05)  # ten intervals
        together.append(begun)

    running(natty.election(name, lease=LONG, every=0.005, **BUCKET).run(work))
    await until(lambda: begun >= 4)
    assert together[:6] == [1, 1, 2, 2, 3, 3]


async def test_the_next_run_waits_for_the_interval(natty, name, running, monkeypatch):
    waits = []
    wait = work_loop.Interval.wait
    monkeypatch.setattr(work_loop.Interval, "wait", lambda *given: waits.append(wait(*given)) or waits[-1])
    work = Runs()
    running(natty.election(name, lease=LONG, every=NEVER, **BUCKET).run(work))
    await until(lambda: waits and waits[-1] > 0)
    assert work.returned == 1
    assert NEVER - PATIENCE < waits[-1] <= NEVER


async def test_work_that_never_waits_leaves_the_event_loop_to_others(natty, name, running):
    runs = turns = 0
    done = asyncio.Event()

    async def work(term):
        nonlocal runs
        runs += 1
        if runs == 1000:
            done.set()
            await asyncio.Event().wait()

    async def others():
        nonlocal turns
        while not done.is_set():
            turns += runs > 0
            await asyncio.sleep(0)

    running(natty.election(name, lease=LONG, every=1e-9, **BUCKET).run(work))
    running(others())
    await until(done.is_set)
    assert turns >= 900


async def test_a_plain_function_is_repeated_in_threads(natty, name, running):
    threads = []

    @natty.as_leader(name, lease=LONG, every="1ms", **BUCKET)
    def work(term, label):
        threads.append((threading.current_thread(), label))

    running(work("given"))
    await until(lambda: len(threads) >= 3)
    assert all(label == "given" and thread is not threading.main_thread() for thread, label in threads)


async def test_the_office_that_is_lost_in_the_middle_of_a_run_is_won_again_and_the_work_runs_again(
    natty, name, running, renewed_often
):
    work, lost = Runs(hold=True), []
    election = natty.election(name, lease=0.6, every=NEVER, on_lost=lost.append, **BUCKET)
    campaign = running(election.run(work))
    await until(lambda: work.terms)
    await natty.bucket(BUCKET["bucket"]).delete(name)  # a foreign delete
    await until(lambda: "superseded" in lost)
    assert work.cancelled >= 1
    held = len(work.terms)
    work.hold = False
    await until(lambda: len(work.terms) > held and work.returned)
    assert work.tokens == sorted(work.tokens)
    assert work.tokens[-1] > work.tokens[0]
    assert not campaign.done()
    assert election.figures["failed"] == 0


async def test_a_leader_that_steps_down_in_the_middle_of_a_run_stays_a_candidate(natty, other, name, running):
    first, second, seen = Runs(hold=True), Runs(hold=True), []
    one = natty.election(name, lease=LONG, every=NEVER, node_name="one", **BUCKET)
    two = other.election(name, lease=LONG, every=NEVER, node_name="two", on_new_leader=seen.append, **BUCKET)
    running(one.run(first))
    await until(lambda: first.terms)
    running(two.run(second))
    await until(lambda: seen)
    one.step_down("two")
    await until(lambda: second.terms)  # a term begins with a run
    assert first.cancelled == 1
    first.hold = False
    two.step_down("one")
    await until(lambda: first.returned)
    assert first.tokens[0] < second.tokens[0] < first.tokens[1]
    assert (one.figures["succeeded"], one.figures["failed"]) == (1, 0)


async def test_cancelling_ends_the_run_and_releases_the_lease_at_once(natty, other, name, running):
    work = Runs(hold=True)
    campaign = running(natty.as_leader(name, lease=LONG, every=1.0, **BUCKET)(work)())
    await until(lambda: work.terms)
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    assert work.cancelled == 1
    async with asyncio.timeout(PATIENCE), other.leader(name, lease=LONG, **BUCKET):
        pass


async def test_cancelling_between_two_runs_releases_the_lease_at_once(natty, other, name, running):
    work = Runs()
    campaign = running(natty.election(name, lease=LONG, every=NEVER, **BUCKET).run(work))
    await until(lambda: work.returned)
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    async with asyncio.timeout(PATIENCE), other.leader(name, lease=LONG, **BUCKET):
        pass


async def test_a_cancellation_of_the_works_own_is_an_error_like_any_other(natty, name, running, quick):
    work, waited = Runs(), asyncio.Event()

    async def cancelled_by_itself(term):
        if not work.terms:
            work.terms.append(term)
            raise asyncio.CancelledError
        waited.set()

    election = natty.election(name, lease=LONG, every=0.001, **BUCKET)
    running(election.run(cancelled_by_itself))
    await until(waited.is_set)
    assert election.figures["failed"] == 1
    assert election.figures["elected"] == 1


async def test_a_loss_of_another_election_is_an_error_and_a_commit_of_a_deposed_leader_ends_the_term(
    natty, name, running, quick
):
    lost = []
    work = Runs(LeadershipLostError("another one"), StaleTokenError("refused"))
    election = natty.election(name, lease=0.6, every=NEVER, on_lost=lost.append, **BUCKET)
    running(election.run(work))
    await until(lambda: work.returned)
    assert election.figures["failed"] == 1
    assert "done" in lost
    assert work.tokens[1] < work.tokens[2]


async def test_a_run_that_swallows_its_cancellation_and_returns_ends_with_the_term(natty, other, name, running):
    terms, seen, second = [], [], Runs()

    async def work(term):
        terms.append(term)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    one = natty.election(name, lease=LONG, every=0.001, **BUCKET)
    running(one.run(work))
    await until(lambda: terms)
    running(other.election(name, lease=LONG, every=NEVER, on_new_leader=seen.append, **BUCKET).run(second))
    await until(lambda: seen)
    one.step_down()
    await until(lambda: second.terms)
    assert len(terms) == 1
    assert one.figures["succeeded"] == one.figures["failed"] == 0


async def test_a_closed_client_ends_the_loop(nats_server, name, running):
    client = await Natty.connect(**nats_server.connect_options(), **PATIENT)
    work = Runs(hold=True)
    campaign = running(client.election(name, lease=LONG, every=1.0, **BUCKET).run(work))
    await until(lambda: work.terms)
    await client.close()
    with pytest.raises(ConnectionClosedError, match="the client was closed"):
        await campaign
    assert work.cancelled == 1


async def test_a_block_is_not_repeated(natty, name):
    with pytest.raises(ValueError, match="a block runs once in a term: use every and cron with as_leader"):
        async with natty.leader(name, every=5.0, **BUCKET):
            pass
