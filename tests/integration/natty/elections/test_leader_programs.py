"""Programs under a guard: what talks to them, what ends them, and what they can't leave behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from electing import vacated

from natty import Natty
from natty.elections import guard, run_guarded

ROOT = Path(__file__).parents[4]
FAMILY = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setpgid(0, 0)  # as pyspark's daemon does: a signal to the parent's group does not reach it
    signal.pause()
print("up", flush=True)
signal.pause()
"""
PARENT = """
import asyncio, sys
from natty.elections import run_guarded

asyncio.run(run_guarded(None, [sys.executable, "-c", sys.argv[1]], on_start=lambda it: print(it.pid, flush=True)))
"""


async def until(condition, within=30.0):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


async def started(run, *command, **options):
    """Start a program, `run(command, …)`; return (the task that runs it, the program)."""
    program = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(run([sys.executable, *command], on_start=program.set_result, **options))
    return task, await program


async def family(run):
    """Start a program with a child in a process group of its own, both deaf to SIGTERM."""
    task, program = await started(run, "-c", FAMILY, stdout=PIPE)
    assert await program.stdout.readline() == b"up\n"
    assert len(guard.members(program.pid)) == 2
    return task, program


async def unled(command, **options):
    return await run_guarded(None, command, **options)


@pytest.fixture(params=["led", "unled"])
async def run(request, natty, natty_name):
    """What runs a program: a term's `run_process`, or nobody's."""
    if request.param == "unled":
        yield unled
        return
    async with natty.leader(await vacated(natty, natty_name("job")), lease=60.0) as term:
        yield term.run_process


async def test_a_program_is_talked_to_over_pipes(run):
    code = "import sys; print(sys.stdin.readline().upper(), end='', flush=True); sys.exit(len(sys.stdin.read()))"
    task, program = await started(run, "-c", code, stdin=PIPE, stdout=PIPE)
    program.stdin.write(b"hello\n")
    assert await program.stdout.readline() == b"HELLO\n"
    program.stdin.write(b"xyz")
    program.stdin.close()
    assert await task == 3
    assert await program.stdout.read() == b""


async def test_a_kill_ends_all_that_the_program_has_started(run):
    task, program = await family(run)
    program.kill()
    assert await task == -signal.SIGKILL
    assert guard.members(program.pid) == []


async def test_a_program_whose_guard_is_killed_leaves_nothing_either(run):
    task, program = await family(run)
    os.kill(program.pid, signal.SIGKILL)
    assert await task == -signal.SIGKILL
    assert guard.members(program.pid) == []


async def test_what_a_program_leaves_behind_when_it_ends_is_killed(run):
    code = "import os, signal\nif os.fork() == 0: os.setpgid(0, 0); signal.pause()"
    task, program = await started(run, "-c", code)
    assert await task == 0
    assert guard.members(program.pid) == []


async def test_cancelled_without_a_term_a_program_is_killed_at_once():
    task, program = await family(unled)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert guard.members(program.pid) == []


@pytest.mark.long
async def test_children_with_groups_of_their_own_are_killed_before_the_deadline(natty_proxy, natty_name):
    left = []

    async def work(term):
        task, program = await family(term.run_process)
        natty_proxy.half_open()
        try:
            await task
        finally:
            left.append((term.remaining(), guard.members(program.pid)))

    async with Natty(**natty_proxy.options) as client:
        candidacy = asyncio.ensure_future(client.election(natty_name("job"), lease=2.0).run(work))
        await until(lambda: left)
        await natty_proxy.restore()
        candidacy.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await candidacy
    assert [members for _, members in left] == [[]]


async def renewed(term):
    deadline = term._tenure.deadline
    await until(lambda: term._tenure.deadline > deadline)


async def test_an_order_to_stop_is_not_taken_back_by_a_renewal(natty, natty_name):
    """The lease is renewed all the time meanwhile: each renewal tells the guard of a later deadline."""
    async with natty.leader(natty_name("job"), lease=0.9) as term:
        code = "import signal; print('up', flush=True); signal.pause()"
        for _ in range(5):
            task, program = await started(term.run_process, "-c", code, stdout=PIPE)
            await program.stdout.readline()
            os.kill(program.pid, signal.SIGSTOP)  # the guard reads its orders only later
            task.cancel()
            await renewed(term)
            os.kill(program.pid, signal.SIGCONT)
            with pytest.raises(asyncio.CancelledError):
                async with asyncio.timeout(30):
                    await task


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("family_is_up", [True, False])
async def test_a_program_without_a_term_dies_with_whoever_runs_it(number, family_is_up):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PARENT, FAMILY], stdout=subprocess.PIPE, env=environment) as parent:
        session = int(await asyncio.to_thread(parent.stdout.readline))
        if family_is_up:
            await until(lambda: len(guard.members(session)) == 2)
        parent.send_signal(number)
        await asyncio.to_thread(parent.wait)
        await until(lambda: not Path(f"/proc/{session}").exists())
        await until(lambda: guard.members(session) == [])
