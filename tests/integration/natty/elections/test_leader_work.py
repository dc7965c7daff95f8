"""Work that is no coroutine: threads, and programs. See test_leader_programs.py for the guard beside a program."""

import asyncio
import contextlib
import functools
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
from electing import LONG, forever, renewals
from patient import PATIENCE, PATIENT, until

from natty import LeadershipLostError, Natty

pytestmark = pytest.mark.usefixtures("released_without_hurry")

ROOT = Path(__file__).parents[4]
BUCKET = {"bucket": "work_leaders"}


async def test_a_plain_function_runs_in_a_thread_and_is_joined_before_the_lease_is_released(
    nats_server, natty, name, running, renewed_often
):
    began, go_on, first, second, seen = asyncio.Event(), threading.Event(), [], [], []
    loop = asyncio.get_running_loop()

    @natty.as_leader(name, lease=LONG, max_stall=LONG, node_name="one", **BUCKET)
    def work(term):
        assert threading.current_thread() is not threading.main_thread()
        first.append(term)
        loop.call_soon_threadsafe(began.set)
        with contextlib.suppress(LeadershipLostError):
            while True:
                term.check()
                time.sleep(0.01)
        go_on.wait()

    running(work())
    await until(began.is_set)
    async with Natty(**nats_server.connect_options(), **PATIENT) as other:
        candidate = other.election(name, lease=LONG, on_new_leader=seen.append, **BUCKET)
        campaign = running(candidate.run(forever(second)))
        try:
            await until(lambda: seen)
            assert await other.step_down(name, **BUCKET) == "one"
            await until(first[0].lost.is_set)
            await renewals(first[0])  # it is renewed until the thread has ended
            assert second == []
        finally:
            go_on.set()
        await until(lambda: second)
        assert second[0].token > first[0].token
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)


class Plain:
    """Work that is not a coroutine function, in every shape a callable has; it returns the thread it ran in."""

    def method(self, term):
        term.check()
        return threading.current_thread()

    __call__ = method


class Coroutines:
    """The same as coroutine functions."""

    async def method(self, term):
        term.check()
        return threading.current_thread()

    __call__ = method


async def later(term):
    return threading.current_thread()


@pytest.mark.parametrize(
    ("work", "in_thread"),
    [
        (Plain().method, True),
        (Plain(), True),
        (functools.partial(Plain.method, Plain()), True),
        (functools.partial(Plain()), True),
        (lambda term: threading.current_thread(), True),
        (lambda term: later(term), False),  # what it returns is awaited on the event loop
        (Coroutines().method, False),
        (Coroutines(), False),
        (functools.partial(Coroutines.method, Coroutines()), False),
    ],
)
async def test_any_plain_callable_runs_in_a_thread_and_any_coroutine_function_on_the_event_loop(
    natty, name, work, in_thread
):
    ran_in = await natty.as_leader(name, lease=LONG, **BUCKET)(work)()
    assert (ran_in is not threading.main_thread()) == in_thread


async def test_a_thread_hears_by_check_that_its_work_was_cancelled_though_the_term_goes_on(natty, name):
    began, heard = threading.Event(), []

    def work(term):
        began.set()
        try:
            while True:
                term.check()
                time.sleep(0.01)
        except LeadershipLostError as error:
            heard.append(str(error))

    async with natty.leader(name, lease=LONG, **BUCKET) as term:
        working = asyncio.create_task(term.to_thread(work, term))
        await asyncio.to_thread(began.wait)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        assert working.cancelled()
        assert "was cancelled" in heard[0]
        term.check()


async def test_a_program_runs_while_leader_and_tells_its_status(natty, name, tmp_path):
    ready = tmp_path / "ready"
    async with natty.leader(name, lease=LONG, **BUCKET) as term:
        assert await term.run_process(["sh", "-c", "exit 7"]) == 7
        assert await term.run_process(["sh", "-c", "kill -9 $$"]) == -signal.SIGKILL
        assert await term.run_process(["no such program"]) == 127
        for command, status in (("trap 'exit 5' USR1", 5), ("", -signal.SIGUSR1)):
            started = []
            script = f"{command}\ntouch {ready}; while :; do sleep 0.05; done"
            stopping = asyncio.create_task(term.run_process(["sh", "-c", script], on_start=started.append))
            await until(lambda started=started: started and ready.exists())
            ready.unlink()
            started[0].send_signal(signal.SIGUSR1)
            assert await stopping == status


STUBBORN = """
trap '' TERM
echo $$ >> {0}
sh -c 'echo $$ >> {0}; while :; do sleep 0.1; done' &
while :; do sleep 0.1; done
"""


def alive(path):
    """Return which of the processes noted in a file are alive."""
    found = []
    for line in path.read_text().split() if path.exists() else ():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{line}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(int(line))
    return found


async def test_a_program_is_killed_with_its_children_when_its_term_ends(natty_proxy, name, tmp_path):
    pids, left = tmp_path / "pids", []

    async def work(term):
        try:
            await term.run_process(["sh", "-c", STUBBORN.format(pids)])
        finally:
            left.append(alive(pids))
        await asyncio.Event().wait()  # a stall has ended the program: another term is another try

    async with Natty(**natty_proxy.options, **PATIENT) as client:
        leading = asyncio.create_task(client.election(name, lease=1.0, **BUCKET).run(work))
        await until(lambda: len(alive(pids)) == 2)
        natty_proxy.half_open()
        await until(lambda: alive(pids) == [])
        await until(lambda: left)
        assert left[-1] == []
        await natty_proxy.restore()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


PARENT = textwrap.dedent("""
    import asyncio, json, sys
    from natty import LeadershipLostError, Natty

    async def main(settings, name, bucket, lease, command):
        async with Natty(**settings) as natty:
            while True:
                try:
                    async with natty.leader(name, lease=lease, **bucket) as term:
                        await term.run_process(["sh", "-c", command])
                except LeadershipLostError:
                    pass

    asyncio.run(main(*json.loads(sys.argv[1])))
""")


@pytest.mark.parametrize(("number", "lease"), [(signal.SIGKILL, LONG), (signal.SIGSTOP, 1.0)])
async def test_a_program_does_not_outlive_the_term_of_a_parent_that_is_dead_or_frozen(
    nats_server, name, tmp_path, number, lease
):
    pids = tmp_path / "pids"
    settings = nats_server.connect_options() | PATIENT
    arguments = json.dumps([settings, name, BUCKET, lease, STUBBORN.format(pids)])
    parent = subprocess.Popen([sys.executable, "-c", PARENT, arguments], env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        await until(lambda: len(alive(pids)) == 2, within=2 * PATIENCE)  # a whole program starts, then another
        parent.send_signal(number)
        await until(lambda: alive(pids) == [])
    finally:
        parent.kill()
        parent.wait()
