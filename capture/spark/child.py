"""The driver's process as its client sees it: requests go in, answers come out, and it can be ended for certain."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

import capture
from capture.errors import SparkError
from capture.spark import processes
from capture.spark.options import SparkOptions
from capture.spark.protocol import Answer, Pong, Request, Start
from capture.spark.scratch import Scratch

LONGEST_ANSWER_BYTES = 256 * 1024 * 1024
END_TIMEOUT = 15.0
"""Seconds the driver gets to end by itself once its standard input is closed."""

KILL_INTERVAL = 0.01
QUOTED_LOG_LINES = 3

Result = TypeVar("Result", bound=msgspec.Struct)


class Child:
    """One run of the driver. Made by `start`; of no more use once it has ended."""

    def __init__(self, process: Process, scratch: Scratch, log: Path) -> None:
        self._process = process
        self._scratch = scratch
        self._log = log
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._ended = False
        self._last_words = ""
        self._running = asyncio.create_task(self._run())

    @classmethod
    async def start(cls, options: SparkOptions, log: Path | None) -> "Child":
        """Start the driver and Spark in it. Raises SparkError, which says why it did not come up."""
        scratch = Scratch()
        try:
            child = await cls._spawn(scratch, log or scratch.path / "log")
        except BaseException:
            scratch.remove()
            raise
        try:
            await child.ask(Start(options=options), Pong)
        except BaseException:
            await child.kill()
            raise
        return child

    @classmethod
    async def _spawn(cls, scratch: Scratch, log: Path) -> "Child":
        with log.open("ab") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(Path(__file__).with_name("__main__.py")), str(os.getpid()),
                stdin=PIPE, stdout=PIPE, stderr=stderr, limit=LONGEST_ANSWER_BYTES,
                env=_environment(scratch.path), start_new_session=True,
            )  # fmt: skip
        return cls(process, scratch, log)

    def __repr__(self) -> str:
        return f"Child(pid={self.session}, {'ended' if self._ended else f'{len(self._waiting)} waiting'})"

    @property
    def session(self) -> int:
        """The session that holds the driver, its JVM and its Python workers, and nothing else."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it can't be asked any more."""
        return self._ended

    async def ask(self, request: Request, kind: type[Result]) -> Result:
        """The driver's answer. Raises SparkError with its sentence, or when it ends before it has answered."""
        if self._ended:
            raise SparkError(self._last_words)
        self._asked += 1
        request.id = self._asked
        waiting = self._waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(request)
            answer = await waiting
        finally:
            self._waiting.pop(request.id, None)
        if not answer.ok:
            raise SparkError(answer.error)
        return msgspec.json.decode(answer.result, type=kind)

    async def close(self) -> None:
        """Let it end by itself; kill what is left after END_TIMEOUT."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_TIMEOUT)
        except TimeoutError:
            pass
        finally:
            await self.kill()

    async def kill(self) -> None:
        """SIGKILL to driver, JVM and workers; returns when none is left. A cancelled caller leaves none either."""
        if not self._ended:  # else its number may be another's by now
            processes.kill(self.session)
        await asyncio.wait([self._running])

    async def _send(self, request: Request) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(ConnectionError):  # it has ended: the reader says so, and why
            stdin.write(msgspec.json.encode(request) + b"\n")
            await stdin.drain()

    async def _run(self) -> None:
        """Hand out answers until the driver ends, then see to it that nothing of it is left."""
        try:
            await self._read()
        finally:
            self._ended = True
            while processes.kill(self.session):  # noqa: ASYNC110 - not our children: nobody tells of their end
                await asyncio.sleep(KILL_INTERVAL)
            self._last_words = _last_words(self._log)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(SparkError(self._last_words))
            await self._process.wait()
            self._scratch.remove()

    async def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        while line := await stdout.readline():
            answer = msgspec.json.decode(line, type=Answer)
            waiting = self._waiting.get(answer.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)


def _last_words(log: Path) -> str:
    try:
        said = log.read_text(errors="replace").splitlines()[-QUOTED_LOG_LINES:]
    except OSError:
        said = []
    return "Spark's driver has ended" + (f"; the last it said: {' | '.join(said)}" if said else "")


def _environment(scratch: Path) -> dict[str, str]:
    importable = str(Path(capture.__file__).resolve().parent.parent)
    python_path = os.pathsep.join([importable, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": python_path, "TMPDIR": str(scratch)}
