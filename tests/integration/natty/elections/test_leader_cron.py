"""Work that a leader runs by a cron expression, with a clock that the test sets."""

import asyncio
import contextlib
import logging
from types import SimpleNamespace

import msgspec
import pytest
from electing import LONG
from patient import PATIENCE, PATIENT, until

from natty import ConfigError, Natty
from natty.elections import last_success, work_loop
from natty.elections.term import Term

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "cron_leaders"}
CRON = "0 3 * * *"
DAY, HOUR = 86_400.0, 3600.0
THREE = 1_795_219_200.0 + 3 * HOUR  # 2026-11-21T03:00Z


@pytest.fixture
def wall(monkeypatch):
    """The clock of all nodes, whose runs begin at once: set `wall.now`. They look at it a hundred times a second."""
    wall = SimpleNamespace(now=THREE - HOUR)
    monkeypatch.setattr(work_loop, "time", SimpleNamespace(time=lambda: wall.now + 2 * work_loop.AFTER))
    monkeypatch.setattr(work_loop, "LOOK", 0.01)
    return wall


class Runs:
    """Work that records when it ran by the clock; it raises `errors` first, and with `hold` waits to be cancelled."""

    def __init__(self, wall, *errors, hold=False):
        self.at, self.hold, self.returned = [], hold, 0
        self._wall, self._errors = wall, list(errors)

    async def __call__(self, term):
        self.at.append(self._wall.now)
        if self._errors:
            raise self._errors.pop(0)
        if self.hold:
            await asyncio.Event().wait()
        self.returned += 1


class Node:
    """One candidate; its term has begun when it is entered, and is over when it is left."""

    def __init__(self, natty, name, work, cron=CRON, lease=LONG, **options):
        self.election = natty.election(name, lease=lease, cron=cron, **options, **BUCKET)
        self._work = work

    async def __aenter__(self):
        self._task = asyncio.create_task(self.election.run(self._work))
        await until(lambda: self.election.is_leader())
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def kept(self):
        """Return the time of the last success, as it is kept; None if none is."""
        last = await self.election.last_commit(work_loop.LAST_RUN)
        return msgspec.json.decode(last.data)["slot"] if last is not None and last.data else None

    async def keeps(self, slot):
        async with asyncio.timeout(PATIENCE):
            while await self.kept() != slot:
                await asyncio.sleep(0.01)


async def test_the_work_runs_at_each_time_and_the_first_leader_of_all_makes_up_for_nothing(natty, name, wall, caplog):
    caplog.set_level(logging.INFO)
    work = Runs(wall)
    async with Node(natty, name, work) as node:
        await node.keeps(THREE - DAY)  # noted, and not run
        assert work.at == []
        assert await last_success(natty.jetstream, node.election.subjects) is None
        await until(lambda: [one.getMessage() for one in caplog.records if one.__dict__.get("action") == "no_last_run"])
        wall.now = THREE + 1
        await node.keeps(THREE)
        wall.now = THREE + DAY
        await node.keeps(THREE + DAY)
    assert work.at == [THREE + 1, THREE + DAY]
    assert (node.election.figures["succeeded"], node.election.figures["failed"]) == (2, 0)


async def test_missed_times_are_made_up_for_once_at_take_over(natty, name, wall):
    async with Node(natty, name, Runs(wall)) as first:
        await first.keeps(THREE - DAY)
    wall.now = THREE + 5 * DAY + HOUR  # meanwhile no node led
    work = Runs(wall)
    async with Node(natty, name, work) as second:
        await second.keeps(THREE + 5 * DAY)
        wall.now = THREE + 6 * DAY
        await second.keeps(THREE + 6 * DAY)
    assert work.at == [THREE + 5 * DAY + HOUR, THREE + 6 * DAY]


async def test_a_success_is_not_repeated_by_the_next_leader(natty, name, wall):
    async with Node(natty, name, Runs(wall)) as first:
        await first.keeps(THREE - DAY)
        wall.now = THREE
        await first.keeps(THREE)
    work = Runs(wall)
    async with Node(natty, name, work) as second:
        wall.now = THREE + DAY
        await second.keeps(THREE + DAY)
    assert work.at == [THREE + DAY]


async def test_a_run_that_is_cut_short_is_repeated_by_the_next_leader(nats_server, natty, name, wall):
    cut, whole = Runs(wall, hold=True), Runs(wall)
    async with Node(natty, name, cut, node_name="one") as first:
        await first.keeps(THREE - DAY)
        wall.now = THREE
        await until(lambda: cut.at)
        async with Natty(**nats_server.connect_options(), **PATIENT) as other:
            task = asyncio.create_task(other.election(name, lease=LONG, cron=CRON, **BUCKET).run(whole))
            first.election.step_down()
            await first.keeps(THREE)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert (cut.returned, whole.at) == (0, [THREE])


async def test_a_leader_that_leads_again_does_not_repeat_what_another_has_run_meanwhile(nats_server, natty, name, wall):
    ours, theirs = Runs(wall), Runs(wall)
    async with Node(natty, name, ours, node_name="one") as one:
        await one.keeps(THREE - DAY)
        async with Natty(**nats_server.connect_options(), **PATIENT) as other:
            one.election.transfer("two")
            async with Node(other, name, theirs, node_name="two") as two:
                wall.now = THREE
                await two.keeps(THREE)
                two.election.transfer("one")
                await until(one.election.is_leader)
                wall.now = THREE + DAY
                await one.keeps(THREE + DAY)
    assert (theirs.at, ours.at) == ([THREE], [THREE + DAY])


async def test_a_failed_run_is_repeated_until_it_succeeds(natty, name, wall, monkeypatch):
    monkeypatch.setattr(work_loop.Timetable, "first_pause", 0.001)
    work = Runs(wall, RuntimeError("one"), RuntimeError("two"))
    async with Node(natty, name, work) as node:
        await node.keeps(THREE - DAY)
        wall.now = THREE
        await node.keeps(THREE)
    assert work.at == [THREE] * 3
    assert (node.election.figures["succeeded"], node.election.figures["failed"]) == (1, 2)


async def test_a_run_that_takes_longer_than_its_interval_is_followed_by_one(natty, name, wall):
    begun, go_on = [], asyncio.Event()

    async def work(term):
        begun.append(wall.now)
        await go_on.wait()

    async with Node(natty, name, work, cron="*/10 * * * *") as node:
        await node.keeps(THREE - HOUR)
        wall.now = THREE
        await until(lambda: begun)
        wall.now = THREE + 35 * 60  # three times passed meanwhile
        go_on.set()
        await node.keeps(THREE + 30 * 60)
    assert begun == [THREE, THREE + 35 * 60]


async def test_a_clock_that_jumps_ahead_and_back_runs_no_time_twice(natty, name, wall):
    work = Runs(wall)
    async with Node(natty, name, work) as node:
        await node.keeps(THREE - DAY)
        wall.now = THREE + 3 * DAY + 1
        await node.keeps(THREE + 3 * DAY)
        wall.now = THREE + 3 * DAY - HOUR  # back by an hour: as if nothing had happened
        await asyncio.sleep(5 * work_loop.LOOK)
        wall.now = THREE + 3 * DAY + 2
        await asyncio.sleep(5 * work_loop.LOOK)
        assert len(work.at) == 1
        wall.now = THREE + 4 * DAY
        await node.keeps(THREE + 4 * DAY)
    assert work.at == [THREE + 3 * DAY + 1, THREE + 4 * DAY]


async def test_a_success_that_a_node_with_a_wrong_clock_kept_does_not_stop_the_work_for_long(natty, name, wall, caplog):
    wall.now = THREE + 300 * DAY
    async with Node(natty, name, Runs(wall)) as ahead:
        await ahead.keeps(THREE + 300 * DAY)
    wall.now = THREE + HOUR
    work = Runs(wall)
    async with Node(natty, name, work) as node:
        await until(lambda: any("hours ahead of this node's clock" in one.getMessage() for one in caplog.records))
        wall.now = THREE + DAY
        await node.keeps(THREE + DAY)
    assert work.at == [THREE + DAY]


async def test_the_time_zone_decides_when(natty, name, wall):
    work = Runs(wall)
    async with Node(natty, name, work, timezone="Europe/Berlin") as node:
        await node.keeps(THREE - HOUR)  # 03:00 in Berlin
        wall.now = THREE
        await asyncio.sleep(5 * work_loop.LOOK)
        wall.now = THREE + DAY - HOUR
        await node.keeps(THREE + DAY - HOUR)
    assert work.at == [THREE + DAY - HOUR]


async def test_an_unreadable_last_success_counts_as_none(natty, name, wall, caplog):
    async with natty.leader(name, lease=LONG, **BUCKET) as term:
        await term.commit(work_loop.LAST_RUN, b"not ours")
    work = Runs(wall)
    async with Node(natty, name, work) as node:
        await until(lambda: any(getattr(one, "action", "") == "bad_record" for one in caplog.records))
        wall.now = THREE
        await until(lambda: work.returned)
        await node.keeps(THREE)
    assert work.at == [THREE]


async def test_a_last_success_that_the_server_does_not_give_is_read_again_and_no_run_has_failed(
    natty, name, wall, caplog, monkeypatch
):
    async with Node(natty, name, Runs(wall)) as first:
        await first.keeps(THREE - DAY)
    errors, read = [ConfigError("no right to read"), RuntimeError("a fault")], Term.read

    async def refuse(term, commit_name):
        if errors:
            raise errors.pop(0)
        return await read(term, commit_name)

    monkeypatch.setattr(Term, "read", refuse)
    monkeypatch.setattr(work_loop, "FIRST_PAUSE", 0.001)
    wall.now = THREE
    work = Runs(wall)
    async with Node(natty, name, work) as node:
        await node.keeps(THREE)
    assert work.at == [THREE]
    assert (node.election.figures["succeeded"], node.election.figures["failed"]) == (1, 0)
    said = [(one.action, one.getMessage()) for one in caplog.records if one.levelno >= logging.ERROR]
    unread = f"no run begins: the last success of {name!r} can't be read, natty tries again in"
    assert said == [
        ("last_run_unread", f"{unread} 1ms: no right to read"),
        ("last_run_unread", f"{unread} 2ms: RuntimeError('a fault')"),
    ]


async def test_cancelling_while_the_last_success_is_unreadable_ends_the_node(natty, name, wall, caplog, monkeypatch):
    async def refuse(term, commit_name):
        raise ConfigError("no right to read")

    monkeypatch.setattr(Term, "read", refuse)
    async with asyncio.timeout(PATIENCE):
        async with Node(natty, name, Runs(wall)):
            await until(lambda: any(getattr(one, "action", "") == "last_run_unread" for one in caplog.records))


async def test_a_success_that_a_later_term_refuses_ends_the_term_and_is_repeated(natty, name, wall, caplog):
    tokens = []

    async def work(term):
        tokens.append(term.token)
        if len(tokens) == 1:  # as if a later term had begun, and this node had not noticed
            await natty.publish(term._subjects.epoch, b"{}")

    async with Node(natty, name, work, lease=0.6) as node:
        await node.keeps(THREE - DAY)
        wall.now = THREE
        await node.keeps(THREE)
    assert tokens[0] < tokens[1]
    assert not [one for one in caplog.records if getattr(one, "action", "") == "run_not_kept"]


async def test_a_success_that_can_not_be_kept_is_logged_and_not_repeated_by_this_leader(
    natty, name, wall, caplog, monkeypatch
):
    work, commit = Runs(wall), Term.commit
    refused = []

    async def refuse(term, commit_name, data):
        if wall.now == THREE:
            refused.append(commit_name)
            raise ConfigError("no space")
        await commit(term, commit_name, data)

    monkeypatch.setattr(Term, "commit", refuse)
    async with Node(natty, name, work) as node:
        await node.keeps(THREE - DAY)
        wall.now = THREE
        await until(lambda: refused)
        wall.now = THREE + DAY
        await node.keeps(THREE + DAY)
    assert work.at == [THREE, THREE + DAY]
    levels = {one.getMessage(): one.levelno for one in caplog.records if getattr(one, "action", "") == "run_not_kept"}
    assert levels == {
        f"the work of {name!r} succeeded, but that could not be kept: another leader would run it again: no space": (
            logging.ERROR
        )
    }
