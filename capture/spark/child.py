"""The client's side of the driver's process: sends requests, receives answers, and surely ends the process."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, Unpack

import msgspec

from capture.errors import PipelineError, SparkError
from capture.spark.environment import select_needed
from capture.spark.options import SparkOptions
from capture.spark.protocol import Answer, Pong, Request, Start
from capture.spark.scratch import Scratch
from natty.elections import Program, ProgramSettings, run_guarded

LONGEST_ANSWER_BYTES = 256 * 1024 * 1024
END_TIMEOUT = 15.0
"""Seconds that the driver has to end after its standard input is closed."""

QUOTED_LOG_LINES = 3

_WARNING = re.compile(r"\s|\d{4}-\S+ \S+ WARN|WARNING|\S+: \w+Warning: |NOTE: |Picked up ")
_LOGGED = re.compile(r"\d{4}-\d\d-")
_THROWN = re.compile(r'^Exception in thread "main" \S+: |^Error: ')

Result = TypeVar("Result", bound=msgspec.Struct)


class Run(Protocol):
    """Runs a program beside a guard: `natty.Term.run_process`, for as long as a term lasts, or `run_alone`."""

    def __call__(
        self, command: Sequence[str], *, on_start: Callable[[Program], None], **options: Unpack[ProgramSettings]
    ) -> Coroutine[Any, Any, int]:
        """Return the exit status once the program and all processes that it started have ended."""
        ...


async def run_alone(
    command: Sequence[str], *, on_start: Callable[[Program], None], **options: Unpack[ProgramSettings]
) -> int:
    """Run a program until it ends, or this process does."""
    return await run_guarded(None, command, on_start=on_start, **options)


class Child:
    """One run of the driver. Create it with `start`; it can't be used again after it has ended."""

    def __init__(self, program: Program, guarded: asyncio.Task[int], scratch: Scratch, log: Path) -> None:
        self._program = program
        self._guarded = guarded
        self._scratch = scratch
        self._log = log
        self._asked = 0
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._ended = False
        self._last_words = ""
        self._running = asyncio.create_task(self._run())

    @classmethod
    async def start(
        cls, options: SparkOptions, log: Path | None, run: Run = run_alone, variables: Mapping[str, str] | None = None
    ) -> "Child":
        """Start the driver, which starts Spark. Raises SparkError with the reason if it does not start.

        `variables` are set in its environment besides those of ours that it needs.
        """
        scratch = Scratch()
        log = log or scratch.path / "log"
        try:
            before = log.stat().st_size if log.exists() else 0
            environment = {**_environment(scratch.path, options.environment), **(variables or {})}
            child = await cls._spawn(scratch, log, run, environment)
        except BaseException:
            scratch.remove()
            raise
        try:
            await child.ask(Start(options=options), Pong)
        except SparkError as error:
            said = _first_words(log, before)
            await child.kill()
            raise SparkError(f"{error}{said and f': {said}'}") from None
        except BaseException:
            await child.kill()
            raise
        return child

    @classmethod
    async def _spawn(cls, scratch: Scratch, log: Path, run: Run, environment: dict[str, str]) -> "Child":
        """Start the driver beside its guard. It ends with this process, and so do its JVM and workers."""
        started: asyncio.Future[Program] = asyncio.get_running_loop().create_future()
        with log.open("ab") as stderr:
            guarded = asyncio.ensure_future(run(
                [sys.executable, "-P", str(Path(__file__).with_name("__main__.py"))],
                on_start=started.set_result,
                stdin=PIPE, stdout=PIPE, stderr=stderr, limit=LONGEST_ANSWER_BYTES, env=environment,
            ))  # fmt: skip
            either: list[asyncio.Future[Any]] = [guarded, started]
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                guarded.cancel()
                await asyncio.wait([guarded])
                raise
        if not started.done():
            guarded.result()
        return cls(started.result(), guarded, scratch, log)

    def __repr__(self) -> str:
        return f"Child(pid={self.session}, {'ended' if self._ended else f'{len(self._waiting)} waiting'})"

    @property
    def session(self) -> int:
        """The session id of the guard, the driver, its JVM and its Python workers; no other process has it."""
        return self._program.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended, and takes no more requests."""
        return self._ended

    async def ask(self, request: Request, kind: type[Result]) -> Result:
        """Return the driver's answer. SparkError, or PipelineError, with its sentence; SparkError if it ends before."""
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
        if answer.of_pipeline:
            raise PipelineError(answer.error, answer.plan)
        if not answer.ok:
            raise SparkError(answer.error)
        return msgspec.json.decode(answer.result, type=kind)

    async def close(self) -> None:
        """Wait until it ends; kill what is left after END_TIMEOUT."""
        assert self._program.stdin is not None
        self._program.stdin.close()
        try:
            await asyncio.wait([self._running], timeout=END_TIMEOUT)
        finally:
            await self.kill()

    async def kill(self) -> None:
        """Send SIGKILL to driver, JVM and workers; return when all have ended, also if the caller is cancelled."""
        self._program.kill()
        await asyncio.wait([self._running])

    async def _send(self, request: Request) -> None:
        stdin = self._program.stdin
        assert stdin is not None
        with suppress(ConnectionError):  # it has ended: the reader reports that, and why
            stdin.write(msgspec.json.encode(request) + b"\n")
            await stdin.drain()

    async def _run(self) -> None:
        """Deliver answers until the driver and all processes that it started have ended."""
        try:
            await self._read()
        finally:
            self._ended = True
            self._program.kill()
            await asyncio.wait({self._guarded})
            self._last_words = _last_words(self._log)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(SparkError(self._last_words))
            self._scratch.remove()

    async def _read(self) -> None:
        stdout = self._program.stdout
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
    return "Spark's driver has ended" + (f"; its last output: {' | '.join(said)}" if said else "")


def _first_words(log: Path, begins: int) -> str:
    """Return Java's message when it could not start: only Java reports that. "" if Spark started and logs itself."""
    try:
        lines = log.read_bytes()[begins:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = next((line for line in lines if not _WARNING.match(line)), "")
    logged = any(map(_LOGGED.match, lines)) and not _THROWN.match(said)  # or it may continue a logged message
    return "" if logged or said.startswith("Traceback") else _THROWN.sub("", said)


def _environment(scratch: Path, also: Iterable[str]) -> dict[str, str]:
    importable = str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(Path(one).absolute()) for one in given if one]  # Spark's workers have another current folder
    python_path = os.pathsep.join([importable, *folders])
    return {**select_needed(os.environ, also), "PYTHONPATH": python_path, "TMPDIR": str(scratch)}
