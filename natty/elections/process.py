"""Programs that run while leader: started beside a guard that kills them in time, whatever becomes of us."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypedDict, Unpack

from natty.elections import guard
from natty.elections.tenure import Tenure

DEADLINE = struct.Struct("=dd")  # when to send SIGTERM, when SIGKILL: seconds of the clock `options.clock`
NEVER = float("inf")
KILL_BEFORE = 0.25  # of the grace: how long before the deadline


class Program:
    """A program that runs: for those who pass signals on to it, talk to it, or end it.

    `pid` is its guard's, and the id of the session that holds guard, program and what it has started. `stdin` and
    `stdout` are there where pipes were asked for.
    """

    def __init__(self, process: Process, kill: Callable[[], None]) -> None:
        self.pid = process.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._kill = kill

    def __repr__(self) -> str:
        return f"Program({self.pid})"

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and all of its group; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)  # not Popen's: that would take the exit status away from asyncio

    def kill(self) -> None:
        """Have the guard kill the program and all that it has started, now; whoever runs it waits until it is done."""
        self._kill()


class _Line:
    """To the guard: what it is told, from whichever thread, and whether it lives.

    An order to stop or to kill is never taken back.
    """

    def __init__(self, tenure: Tenure | None) -> None:
        self._ours, self.its = socket.socketpair()
        self._ours.setblocking(False)
        self._tenure = tenure
        self._lock = threading.Lock()
        self._stop = self._kill = False
        if tenure is not None:
            tenure.watchers.append(self._tell)
        self._tell()

    def stop(self) -> None:
        """SIGTERM now, SIGKILL as late as the tenure allows; without one, now."""
        self._stop = True
        self._tell()

    def kill(self) -> None:
        """SIGKILL now."""
        self._kill = True
        self._tell()

    async def ended(self) -> None:
        """Wait until the guard has ended: nobody else has its end of the line."""
        self.its.close()
        with contextlib.suppress(ConnectionError):  # it ended before it had read all that it was told
            await asyncio.get_running_loop().sock_recv(self._ours, 1)

    def close(self) -> None:
        """Give it up."""
        if self._tenure is not None:
            self._tenure.watchers.remove(self._tell)
        self.its.close()
        self._ours.close()

    def _tell(self, _: Tenure | None = None) -> None:
        with self._lock, contextlib.suppress(OSError):  # it has ended, or is as good as dead
            self._ours.send(DEADLINE.pack(*self._times()))

    def _times(self) -> tuple[float, float]:
        tenure = self._tenure
        if self._kill or (tenure.ended if tenure is not None else self._stop):
            return 0.0, 0.0
        if tenure is None:
            return NEVER, NEVER
        told = self._stop or tenure.stopping
        kill = tenure.deadline - KILL_BEFORE * tenure.stop_before
        return 0.0 if told else tenure.deadline - tenure.stop_before, kill


class ProgramSettings(TypedDict, total=False):
    """The options of `run_process` for its program: those of `asyncio.create_subprocess_exec`."""

    env: Mapping[str, str] | None
    """Environment of the program. Default None: that of this process."""
    cwd: str | os.PathLike[str] | None
    """Working directory of the program. Default None: that of this process."""
    stdin: int | IO[Any] | None
    """Standard input, as for `subprocess.Popen`. Default None: that of this process."""
    stdout: int | IO[Any] | None
    """Standard output. Default None: that of this process."""
    stderr: int | IO[Any] | None
    """Standard error. Default None: that of this process."""
    limit: int
    """Bytes that a pipe's reader buffers. Default 64 KiB."""


async def run_guarded(
    tenure: Tenure | None,
    command: Sequence[str],
    *,
    on_start: Callable[[Program], Any] | None = None,
    **options: Unpack[ProgramSettings],
) -> int:
    """Run a program under a tenure, or None: for as long as it and we live. Return its exit status.

    When cancelled, the program gets SIGTERM, at the end of the grace SIGKILL, and is waited for; without a tenure
    SIGKILL at once. OSError if the guard can't be started.
    """
    line = _Line(tenure)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", guard.__file__, str(line.its.fileno()), *command),
            pass_fds=(line.its.fileno(),),
            start_new_session=True,
            **options,
        )
        if on_start is not None:
            on_start(Program(process, line.kill))
        return await _ended(process, line)
    finally:
        line.close()


async def _ended(process: Process, line: _Line) -> int:
    cancelled = False
    waiting = asyncio.ensure_future(_gone(process, line))
    while not waiting.done():
        try:
            await asyncio.wait({waiting})
        except asyncio.CancelledError:
            cancelled = True
            line.stop()
    if cancelled:
        raise asyncio.CancelledError
    return waiting.result()


async def _gone(process: Process, line: _Line) -> int:
    """Wait until guard and program have ended, and nothing is left of them, were it that the guard was killed.

    Not for the process first: asyncio waits until its pipes are closed, and what is left may hold them.
    """
    await line.ended()
    while guard.kill(process.pid):  # noqa: ASYNC110 - not our children: nobody tells of their end
        await asyncio.sleep(guard.KILL_INTERVAL)
    return await process.wait()
