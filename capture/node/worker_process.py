"""One run of a worker, as its supervisor sees it: the process, its log, its reports, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from capture.node.worker_reports import FIGURES, HANGS_AFTER, LATE_AFTER, RELOAD, STOP, VARIABLE, Ended, Family, Report
from natty.wire.background import cancel_all

LOOK = 1.0  # seconds between two looks at the time
LAST_WORDS_WITHIN = 1.0  # seconds in which the rest of a dead worker's log is read: a child of it may hold its end open
LONGEST_LINE = 1 << 20  # bytes of the log
LONGEST_REPORT = 64 << 20  # bytes


class WorkerProcess:
    """A running worker. Create it with `start`, and wait for its end with `wait`, which also watches it."""

    def __init__(
        self,
        name: str,
        process: Process,
        line: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        log: asyncio.Task[None],
    ) -> None:
        self.name = name
        self._process = process
        self._reader, self._writer = line
        self._log = log
        self._clock = asyncio.get_running_loop().time
        self._began = self._heard = self._clock()
        self._looks = 0  # since the last report: a supervisor that was suspended has not looked
        self._kill_at = float("inf")
        self._last: Report | None = None
        self._failure = ""
        self.stored: Counter[str] = Counter()  # messages and blocks that it has reported
        self._asked: list[asyncio.Future[list[Family]]] = []

    @classmethod
    async def start(
        cls, command: Sequence[str], name: str, *, number: int, count: int, relay: Callable[[list[bytes]], None]
    ) -> WorkerProcess:
        """Start a worker. `relay` gets the lines of its log, as they come. OSError if it can't be started."""
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=DEVNULL,
                    stderr=write_end,
                    pass_fds=(theirs.fileno(),),
                    env=os.environ | {VARIABLE: f"{number},{count},{theirs.fileno()}"},
                    start_new_session=True,  # a terminal sends Ctrl-C to the supervisor alone
                )
            finally:
                os.close(write_end)
                theirs.close()
        except BaseException:
            os.close(read_end)
            ours.close()
            raise
        line = await asyncio.open_unix_connection(sock=ours, limit=LONGEST_REPORT)
        return cls(name, process, line, asyncio.create_task(_relay(read_end, relay)))

    def __repr__(self) -> str:
        return f"WorkerProcess({self.name}, pid={self._process.pid}, {'captured' if self.captured else 'not captured'})"

    @property
    def captured(self) -> bool:
        """Whether it has reported that it captures, or did before."""
        return self._last is not None and self._last.captured

    def describe_trouble(self) -> list[str]:
        """Return why it does not capture now, in sentences."""
        if self._last is None:
            return ["it starts"]
        silent = self._clock() - self._heard
        return [f"it has not reported for {silent:.0f} s"] if silent > LATE_AFTER else self._last.reasons

    def stop(self, within: float) -> None:
        """Let it stop as at SIGTERM, and send SIGKILL if it has not ended after so many seconds."""
        self._kill_at = self._clock() + within
        self._writer.write(STOP + b"\n")

    def kill(self) -> None:
        """Send SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def reload(self) -> None:
        """Let it read its configuration again, when it has begun."""
        self._writer.write(RELOAD + b"\n")

    async def read_figures(self) -> list[Family]:
        """Return its metrics. Raises ConnectionError if it ends before it answers."""
        waiting = asyncio.get_running_loop().create_future()
        self._asked.append(waiting)
        if len(self._asked) == 1:
            self._writer.write(FIGURES + b"\n")
        return await waiting  # type: ignore[no-any-return]

    async def wait(self) -> Ended:
        """Return how it ended. Meanwhile read its reports, and kill it if it hangs. When cancelled, kill it."""
        reading, because = asyncio.create_task(self._read()), ""
        ended = asyncio.ensure_future(self._process.wait())
        try:
            while not (await asyncio.wait({ended}, timeout=LOOK))[0]:
                self._looks += 1
                if self._clock() > self._kill_at:
                    because = "did not stop in time and was killed"
                elif self._looks * LOOK > HANGS_AFTER and self._kill_at == float("inf"):
                    because = f"did not report for {HANGS_AFTER:g} s and was killed"
                if because:
                    self.kill()
            await asyncio.wait({reading, self._log}, timeout=LAST_WORDS_WITHIN)
            return Ended(ended.result(), self._failure, self.captured, self._clock() - self._began, because)
        finally:
            if not ended.done():
                self.kill()
            await cancel_all([reading, self._log, ended])
            self._writer.close()
            for waiting in self._asked:
                if not waiting.done():
                    waiting.set_exception(ConnectionError(f"{self.name} has ended"))

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await self._reader.readline():
                report = msgspec.json.decode(line, type=Report)
                self._heard, self._looks, self._last = self._clock(), 0, report
                self._failure = report.failure or self._failure
                self.stored |= Counter(messages=report.messages, blocks=report.blocks)
                if report.figures is not None:
                    asked, self._asked = self._asked, []
                    for waiting in asked:
                        if not waiting.done():
                            waiting.set_result(report.figures)


async def _relay(descriptor: int, relay: Callable[[list[bytes]], None]) -> None:
    """Pass on the whole lines of a log until its end, and then what is left."""
    reader = asyncio.StreamReader()
    pipe = os.fdopen(descriptor, "rb", 0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    rest = b""
    try:
        while chunk := await reader.read(LONGEST_LINE):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            relay(lines)
    finally:
        transport.close()
        if rest:
            relay([rest])


def write_lines(name: str, lines: list[bytes]) -> None:
    """Write lines of a worker's log to standard error, with its name in front of those that are not JSON."""
    mark = f"{name} | ".encode()
    text = b"".join((line if line.startswith(b"{") else mark + line) + b"\n" for line in lines)
    with contextlib.suppress(OSError):  # as logging does: nobody reads it
        sys.stderr.flush()
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
