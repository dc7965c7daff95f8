"""Programs that run while leader: started beside a guard that kills them in time, whatever becomes of us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from natty.leader.tenure import Tenure

GUARD = Path(__file__).with_name("guard.py")
DEADLINE = struct.Struct("=dd")  # when to send SIGTERM, when SIGKILL: seconds of the clock `options.clock`
KILL_BEFORE = 0.25  # of the grace: how long before the deadline


class Program:
    """A program that runs, for those who pass signals on to it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __repr__(self) -> str:
        return f"Program({self.pid})"

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and all of its group; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)  # not Popen's: that would take the exit status away from asyncio


async def run_guarded(
    tenure: Tenure,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    on_start: Callable[[Program], Any] | None = None,
) -> int:
    """Run a program under a tenure and return its exit status. OSError if it can't be started.

    When cancelled, the program gets SIGTERM, at the end of the grace SIGKILL, and is waited for.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def tell(tenure: Tenure) -> None:
        term, kill = (0.0, 0.0) if tenure.ended else _times(tenure)
        with contextlib.suppress(OSError):  # it has ended, or is as good as dead
            os.write(writing, DEADLINE.pack(term, kill))

    try:
        tell(tenure)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(GUARD),
            str(reading),
            *command,
            env=None if env is None else dict(env),
            cwd=cwd,
            pass_fds=(reading,),
            start_new_session=True,
        )
        tenure.watchers.append(tell)
        tell(tenure)
        try:
            if on_start is not None:
                on_start(Program(process.pid))
            return await _ended(process, tell_now=lambda: _stop(writing, tenure))
        finally:
            tenure.watchers.remove(tell)
    finally:
        os.close(reading)
        os.close(writing)


def _times(tenure: Tenure) -> tuple[float, float]:
    kill = tenure.deadline - KILL_BEFORE * tenure.stop_before
    return (0.0 if tenure.stopping else tenure.deadline - tenure.stop_before), kill


def _stop(writing: int, tenure: Tenure) -> None:
    with contextlib.suppress(OSError):
        os.write(writing, DEADLINE.pack(0.0, _times(tenure)[1]))


async def _ended(process: asyncio.subprocess.Process, *, tell_now: Callable[[], None]) -> int:
    cancelled = False
    waiting = asyncio.ensure_future(process.wait())
    while not waiting.done():
        try:
            await asyncio.wait({waiting})
        except asyncio.CancelledError:
            cancelled = True
            tell_now()
    if cancelled:
        raise asyncio.CancelledError
    return waiting.result()
