"""What users write: blocks, decorators, threads, programs, handing over, looking on."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from natty import Leadership, LeadershipLost, Natty, NattyError, StreamExistsError
from natty.leader import trail
from natty.leader.candidacy import Candidacy
from natty.leader.renewer import renewer_of

ROOT = Path(__file__).parents[2]
LEASE = 0.6  # seconds
BUCKET = {"bucket": "api_leaders"}


async def until(condition, within=30.0):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def name(natty_name):
    return natty_name("job")


@pytest.fixture
async def other(nats_server):
    async with Natty(**nats_server.connect_options()) as client:
        yield client


@pytest.fixture
async def running():
    """Run coroutines in the background until the test has ended."""
    tasks = []
    yield lambda coroutine: tasks.append(asyncio.create_task(coroutine)) or tasks[-1]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def forever(terms):
    """Work that notes its term and never ends."""

    async def work(term):
        terms.append(term)
        await asyncio.Event().wait()

    return work


async def test_a_block_runs_while_leader_and_ends_with_the_term(natty, name):
    election = natty.leader(name, lease=LEASE, **BUCKET)
    async with election as term:
        await term.commit("position", b"1")
        assert election.is_leader()
    assert not election.is_leader()
    with pytest.raises(LeadershipLost, match="not lead"):
        term.check()

    async def again():
        async with election as term:
            assert await term.read("position") == b"1"
            await natty.bucket(BUCKET["bucket"]).delete(name)  # a foreign delete
            await asyncio.Event().wait()

    with pytest.raises(LeadershipLost, match=f"does not lead '{name}' any more: superseded"):
        await again()
    assert asyncio.current_task().cancelling() == 0


async def test_an_error_of_the_block_is_raised_as_it_is_and_releases(natty, other, name):
    with pytest.raises(ValueError, match="broken"):
        async with natty.leader(name, lease=60.0, **BUCKET):
            raise ValueError("broken")
    async with asyncio.timeout(30), other.leader(name, lease=60.0, **BUCKET):
        pass


async def test_cancelling_the_block_from_outside_stays_a_cancellation(natty, other, name, running):
    inside = asyncio.Event()

    async def office():
        async with natty.leader(name, lease=60.0, **BUCKET):
            inside.set()
            await asyncio.Event().wait()

    task = running(office())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(30), other.leader(name, lease=60.0, **BUCKET):
        pass


async def test_who_makes_the_bucket_on_one_server_is_warned_once(natty, natty_name, caplog):
    election = natty.election("any", bucket=natty_name("leaders"))
    await election.prepare()
    warned = [one.getMessage() for one in caplog.records if one.name == "natty.leader" and one.levelname == "WARNING"]
    assert len(warned) == 1
    assert "have 1 replica(s): while its server is down nobody is elected" in warned[0]
    caplog.clear()
    await election.prepare()
    assert "WARNING" not in caplog.text


async def test_a_plain_function_runs_in_a_thread_and_is_joined_before_the_lease_is_released(natty, other, name):
    began, ended = threading.Event(), []

    @natty.as_leader(name, lease=LEASE, node_name="one", **BUCKET)
    def work(term):
        assert threading.current_thread() is not threading.main_thread()
        began.set()
        with contextlib.suppress(LeadershipLost):
            while True:
                term.check()
                time.sleep(0.01)
        time.sleep(2 * LEASE)
        ended.append(time.monotonic())
        return "done"

    working = asyncio.create_task(work())
    await asyncio.to_thread(began.wait)
    assert await other.step_down(name, **BUCKET) == "one"
    async with other.leader(name, lease=LEASE, **BUCKET):
        assert ended
        assert ended[0] < time.monotonic()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


async def test_a_thread_hears_by_check_that_its_work_was_cancelled_though_the_term_goes_on(natty, name):
    began, heard = threading.Event(), []

    def work(term):
        began.set()
        try:
            while True:
                term.check()
                time.sleep(0.01)
        except LeadershipLost as error:
            heard.append(str(error))

    async with natty.leader(name, lease=60.0, **BUCKET) as term:
        working = asyncio.create_task(term.to_thread(work, term))
        await asyncio.to_thread(began.wait)
        working.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(working, return_exceptions=True)
        assert working.cancelled()
        assert "was cancelled" in heard[0]
        term.check()


async def test_the_office_goes_to_the_node_that_is_named(natty, other, name, running):
    first, second = [], []
    one = natty.election(name, lease=60.0, node_name="one", **BUCKET)
    running(one.run(forever(first)))
    await until(lambda: first)
    running(other.election(name, lease=60.0, node_name="two", **BUCKET).run(forever(second)))
    one.transfer("two")
    await until(lambda: second)
    assert await natty.have_leader(name, "two", **BUCKET)
    assert await natty.step_down(name, to="one", **BUCKET) == "two"
    await until(lambda: len(first) == 2)
    assert first[0].token < second[0].token < first[1].token
    notes = await trail(natty.jetstream, one.subjects)
    assert [note.node for note in notes] == ["one", "two", "one"]
    assert [note.reason for note in notes] == ["transfer", "step_down", ""]


async def test_a_node_that_comes_first_is_handed_the_office(natty, other, name, running):
    last, first = [], []
    lost = []
    options = {"lease": LEASE, **BUCKET}
    running(natty.election(name, priority=5, on_lost=lost.append, **options).run(forever(last)))
    await until(lambda: last)
    running(other.election(name, priority=1, **options).run(forever(first)))
    await until(lambda: first)
    assert lost == ["transfer"]


async def test_nobody_can_be_asked_to_step_down_where_nobody_leads(natty, name):
    assert await natty.step_down(name, bucket="never_made") == ""
    async with natty.leader(name, **BUCKET):
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
    async with other.leader(name, lease=60.0, node_name="one", **BUCKET) as term:
        await until(lambda: len(seen) == 2)
        assert (seen[1].node, seen[1].token, seen[1].lease) == ("one", term.token, 60.0)
        assert seen[1].since.startswith("20")
    await until(lambda: len(seen) == 3)
    assert not seen[2]
    async with other.leader(name, node_name="two", **BUCKET):
        await until(lambda: len(seen) == 4)
    assert seen[3].node == "two"
    assert seen[3].token > seen[1].token


async def test_a_leader_that_falls_silent_is_not_shown_for_ever(natty, natty_proxy, name, running):
    terms, seen = [], []

    async def look():
        async for now in natty.observe(name, **BUCKET):
            seen.append(now.node)

    async with Natty(**natty_proxy.options) as far:
        running(far.election(name, lease=LEASE, node_name="far", **BUCKET).run(forever(terms)))
        await until(lambda: terms)
        running(look())
        await until(lambda: seen == ["far"])
        natty_proxy.half_open()
        await until(lambda: seen == ["far", ""])
        await natty_proxy.restore()


async def test_the_ancestors_names_of_the_options_work(natty, natty_name):
    bucket, key = natty_name("ancestor"), "some.key"
    options = {"bucket": bucket, "key": key, "bucket_ttl": 1.0, "replica_count": 1, "description": "mine"}
    async with natty.leader("a name of mine", node_name="node-1", **options):
        assert await natty.get_leader("whatever", bucket=bucket, key=key) == "node-1"
    config = (await natty.jetstream.request(f"STREAM.INFO.KV_{bucket}"))["config"]
    assert (config["num_replicas"], config["description"], config["max_age"]) == (1, "mine", 0)
    assert config["republish"]["dest"] == f"el.obs.{bucket}.>"
    assert config["first_seq"] > 1_700_000_000_000


async def test_a_bucket_that_lacks_what_is_needed_is_refused_with_the_difference(natty, natty_name):
    bucket = natty_name("plain")
    await natty.create_bucket(bucket)
    with pytest.raises(StreamExistsError, match="allow_atomic is None, wanted True; republish"):
        await natty.election("x", bucket=bucket).run(forever([]))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"lease": 1.0, "bucket_ttl": 2.0}, "two names of one setting"),
        ({"lease": float("nan")}, "too short"),
        ({"max_stall": 0.1}, r"max_stall of 0\.1 s is less than two signs of life"),
        ({"grace": 0.0}, "tell the work to stop when it is too late"),
        ({"priority": 101}, "not between 0, the first, and 100"),
        ({"key": "a..b"}, "no key of a bucket"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        Natty().election("x", **options)


async def test_many_elections_share_one_thread_one_connection_and_one_subscription(natty_proxy, name, running):
    terms = []
    async with Natty(**natty_proxy.options) as client:
        for number in range(30):
            running(client.election(f"{name}-{number}", lease=5.0, **BUCKET).run(forever(terms)))
        await until(lambda: len(terms) == 30)
        assert natty_proxy.connections == 2
        assert len(renewer_of(client.connection)._connection._subscriptions) == 3  # answers, calls, what was stored
        assert sum(thread.name == "natty renewer" for thread in threading.enumerate()) == 1


async def test_the_renewers_thread_ends_with_the_last_election(natty, name):
    async with natty.leader(name, **BUCKET), natty.leader(f"{name}-2", **BUCKET):
        pass
    assert "natty renewer" not in {thread.name for thread in threading.enumerate()}


async def test_a_busy_event_loop_costs_nobody_the_office(natty, other, name, running):
    first, second = [], []
    running(natty.election(name, lease=LEASE, **BUCKET).run(forever(first)))
    await until(lambda: first)
    running(other.election(name, lease=LEASE, **BUCKET).run(forever(second)))
    await asyncio.sleep(0.1)
    time.sleep(3 * LEASE)  # the loop of both is stuck
    assert first[0].remaining() > 0
    assert second == []


async def test_a_hung_main_side_is_not_kept_in_office(natty, name, running):
    terms = []
    running(natty.election(name, lease=LEASE, max_stall=0.5, **BUCKET).run(forever(terms)))
    await until(lambda: terms)
    began = time.monotonic()
    while terms[0].remaining() > 0:
        assert time.monotonic() - began < 30
        time.sleep(0.01)  # the loop is stuck
    with pytest.raises(LeadershipLost):
        terms[0].check()


async def test_work_that_is_not_well_leaves_office(natty, other, name, running):
    first, second, lost, elected = [], [], [], []
    well = True
    options = {"lease": 60.0, "on_lost": lost.append, "on_elected": elected.append}
    running(natty.election(name, health=lambda: well, **options, **BUCKET).run(forever(first)))
    await until(lambda: first)
    seen = []
    running(other.election(name, lease=60.0, on_new_leader=seen.append, **BUCKET).run(forever(second)))
    await until(lambda: seen)
    well = False
    await until(lambda: second)
    assert lost == ["health"]
    assert elected == [first[0].token]


async def test_work_that_goes_on_after_it_was_told_to_stop_is_reported(natty, name):
    overran = asyncio.Event()

    async def stubborn(term):
        term.step_down()
        while not overran.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await overran.wait()
        return "ended"

    election = natty.election(name, lease=60.0, on_stop_overrun=overran.set, **BUCKET)
    task = asyncio.create_task(election.run(stubborn))
    await overran.wait()
    await until(lambda: election.figures["losses"] == {"step_down": 1})
    assert (election.figures["leading"], election.figures["elected"]) == (False, 1)
    assert election.figures["writes"] >= 3  # the lease, the epoch, the release
    assert election.figures["slowest"] > 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_several_commits_are_stored_together_or_not_at_all(natty, name):
    election = natty.leader(name, lease=60.0, **BUCKET)
    async with election as term:
        await term.batch({"a": b"1", "b": b"1"})
        await natty.publish(election.commit_subject("b"), b"stolen")  # somebody without a token
        with pytest.raises(NattyError):
            await term.batch({"a": b"2", "b": b"2"})
        assert (await election.last_commit("a")).data == b"1"
        await term.batch({"a": b"3", "b": b"3"})  # what was in doubt is read again
        assert (await election.last_commit("b")).data == b"3"


async def test_a_program_runs_while_leader_and_tells_its_status(natty, name):
    async with natty.leader(name, lease=60.0, **BUCKET) as term:
        assert await term.run_process(["sh", "-c", "exit 7"]) == 7
        assert await term.run_process(["sh", "-c", "kill -9 $$"]) == -signal.SIGKILL
        assert await term.run_process(["no such program"]) == 127
        started = []
        stopping = asyncio.create_task(
            term.run_process([sys.executable, "-c", "import time; time.sleep(600)"], on_start=started.append)
        )
        await until(lambda: started)
        await asyncio.sleep(0.2)
        started[0].send_signal(signal.SIGUSR1)
        assert await stopping == -signal.SIGUSR1


STUBBORN = """
trap '' TERM
echo $$ >> {0}
sh -c 'echo $$ >> {0}; while :; do sleep 0.1; done' &
while :; do sleep 0.1; done
"""


def alive(path):
    """Return which of the processes noted in a file are alive."""
    found = []
    for line in path.read_text().split():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(line))
    return found


async def noted(path, count):
    await until(lambda: path.exists() and len(path.read_text().split()) == count)


async def test_a_program_is_killed_with_its_children_before_the_deadline(natty_proxy, name, tmp_path, running):
    pids, left = tmp_path / "pids", []

    async def work(term):
        try:
            await term.run_process(["sh", "-c", STUBBORN.format(pids)])
        finally:
            left.append(term.remaining())

    async with Natty(**natty_proxy.options) as client:
        running(client.election(name, lease=1.0, **BUCKET).run(work))
        await noted(pids, 2)
        natty_proxy.half_open()
        await until(lambda: left)
        assert alive(pids) == []
        await natty_proxy.restore()


PARENT = textwrap.dedent("""
    import asyncio, json, sys
    from natty import Natty

    async def main(settings, name, bucket, lease, command):
        async with Natty(**settings) as natty:
            async with natty.leader(name, lease=lease, **bucket) as term:
                await term.run_process(["sh", "-c", command])

    asyncio.run(main(*json.loads(sys.argv[1])))
""")


@pytest.mark.parametrize(("number", "lease"), [(signal.SIGKILL, 600.0), (signal.SIGSTOP, 1.0)])
async def test_a_program_does_not_outlive_the_term_of_a_parent_that_is_dead_or_frozen(
    nats_server, name, tmp_path, number, lease
):
    pids = tmp_path / "pids"
    arguments = json.dumps([nats_server.connect_options(), name, BUCKET, lease, STUBBORN.format(pids)])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, arguments], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        await noted(pids, 2)
        assert len(alive(pids)) == 2
        parent.send_signal(number)
        await until(lambda: alive(pids) == [])
    finally:
        parent.kill()
        parent.wait()


async def test_a_term_that_nobody_has_taken_up_is_released(natty, other, name):
    election = natty.election(name, lease=60.0, **BUCKET)
    await election.prepare()
    async with Candidacy(election) as candidacy:
        await until(lambda: candidacy._terms.qsize())
    async with asyncio.timeout(30), other.leader(name, lease=60.0, **BUCKET):
        pass


async def test_a_candidacy_that_is_cancelled_at_any_moment_leaves_nobody_in_office(natty, other, name):
    """The campaign is parked and cancelled at one turn of the loop after the other, up to the work itself."""
    for turns in (*range(12), 20, 40, 80):
        task = asyncio.create_task(natty.election(name, lease=60.0, **BUCKET).run(forever([])))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: "natty renewer" not in {thread.name for thread in threading.enumerate()})
    for seconds in (0.01, 0.02, 0.03, 0.04):
        task = asyncio.create_task(natty.election(name, lease=60.0, **BUCKET).run(forever([])))
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with asyncio.timeout(30), other.leader(name, lease=60.0, **BUCKET):
        pass
