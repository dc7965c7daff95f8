"""Programs that run while this node leads. A guard process kills them in time, even if this process is dead."""

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

DEADLINE = struct.Struct("=dd")  # when to send SIGTERM, when SIGKILL: seconds of `guard.clock`
NEVER = float("inf")
KILL_BEFORE = 0.25  # of the grace: how long before the deadline


class Program:
    """A running program: send signals to it, use its pipes, or kill it.

    `pid` is the pid of its guard, and the id of the session of the guard, the program and all its children. `stdin`
    and `stdout` are set if the options asked for pipes.
    """

    def __init__(self, process: Process, kill: Callable[[], None]) -> None:
        self.pid = process.pid
        self.stdin = process.stdin
        self.stdout = process.stdout
        self._kill = kill

    def __repr__(self) -> str:
        return f"Program({self.pid})"

    def send_signal(self, number: int) -> None:
        """Send a signal to the program and its whole group. Does nothing after it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)  # not Popen's method: it would take the exit status away from asyncio

    def kill(self) -> None:
        """Make the guard kill the program and all its children now. `run_guarded` waits until that is done."""
        self._kill()


class _Line:
    """The line to the guard: sends it its times, from any thread, and shows whether it lives.

    An order to stop or to kill is never withdrawn.
    """

    def __init__(self, tenure: Tenure | None) -> None:
        self._ours, self.its = socket.socketpair()
        self._ours.setblocking(False)
        self._tenure = tenure
        self._lock = threading.Lock()
        self._stop = self._kill = False
        if tenure is not None:
            tenure.watchers.append(self._report)
        self._report()

    def stop(self) -> None:
        """Order SIGTERM now, and SIGKILL as late as the tenure allows; without a tenure, SIGKILL now."""
        self._stop = True
        self._report()

    def kill(self) -> None:
        """Order SIGKILL now."""
        self._kill = True
        self._report()

    async def wait_for_end(self) -> None:
        """Wait until the guard has ended: it is the only process with its end of the line."""
        self.its.close()
        with contextlib.suppress(ConnectionError):  # it ended before it had read all its orders
            await asyncio.get_running_loop().sock_recv(self._ours, 1)

    def close(self) -> None:
        """Close both ends, and watch the tenure no longer."""
        if self._tenure is not None:
            self._tenure.watchers.remove(self._report)
        self.its.close()
        self._ours.close()

    def _report(self, _: Tenure | None = None) -> None:
        with self._lock, contextlib.suppress(OSError):  # it has ended, or is as good as dead
            self._ours.send(DEADLINE.pack(*self._times()))

    def _times(self) -> tuple[float, float]:
        tenure = self._tenure
        if self._kill or (tenure.ended if tenure is not None else self._stop):
            return 0.0, 0.0
        if tenure is None:
            return NEVER, NEVER
        stopping = self._stop or tenure.stopping
        kill = tenure.deadline - KILL_BEFORE * tenure.stop_before
        return 0.0 if stopping else tenure.deadline - tenure.stop_before, kill


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
    """Run a program under a tenure, or with None as long as this process lives. Return its exit status.

    When cancelled, sends SIGTERM to the program, SIGKILL at the end of the grace, and waits for its end; without a
    tenure, sends SIGKILL at once. OSError if the guard can't be started.
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
        return await _run_to_end(process, line)
    finally:
        line.close()


async def _run_to_end(process: Process, line: _Line) -> int:
    cancelled = False
    waiting = asyncio.ensure_future(_wait_until_gone(process, line))
    while not waiting.done():
        try:
            await asyncio.wait({waiting})
        except asyncio.CancelledError:
            cancelled = True
            line.stop()
    if cancelled:
        raise asyncio.CancelledError
    return waiting.result()


async def _wait_until_gone(process: Process, line: _Line) -> int:
    """Wait until the guard, the program and its children have ended, even if the guard was killed.

    Don't wait for the process first: asyncio waits until its pipes are closed, and a child may hold them open.
    """
    await line.wait_for_end()
    while guard.kill(process.pid):  # noqa: ASYNC110 - not our children: we get no signal at their end
        await asyncio.sleep(guard.KILL_INTERVAL)
    return await process.wait()
