"""The demo's nodes as processes, whose leaders are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from capture.archive.heads import PIPELINES, SWEEP, Office
from capture.cli.demo import flights
from capture.cli.demo.screen import Result, Screen
from capture.config.pipelines import pipelines_store
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.reading.pipeline_view import PipelineView
from natty import Natty, NattyError
from natty.testing.spawner import spawn

NODES = ("node-1", "node-2")
WITHIN = 300.0  # seconds that a single step may take


class Fleet:
    """The nodes that run with the demo's `capture.toml`."""

    def __init__(self, folder: Path, screen: Screen, result: Result) -> None:
        self._folder, self._screen, self._result = folder, screen, result
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a node as a process."""
        command = [sys.executable, "-m", "capture", "--log-level", "info", "run"]
        command += ["--config", str(self._folder / "capture.toml"), "--node-name", name]
        environment = {n: value for n, value in os.environ.items() if not n.startswith(("CAPTURE_", "NATS_"))}
        environment["TMPDIR"] = str(self._folder / "tmp")  # a killed node can't remove Spark's files
        with (self._folder / "logs" / f"{name}.log").open("ab") as output:
            self._nodes[name] = spawn(command, output=output, folder=self._folder, environ=environment)

    def check(self) -> None:
        """Raise CaptureError, with the last lines of its log, if a node has ended by itself."""
        for name, process in self._nodes.items():
            if process.poll() is not None:
                last = (self._folder / "logs" / f"{name}.log").read_text().strip().splitlines()[-3:]
                raise CaptureError(f"{name} ended with status {process.returncode}: {' / '.join(last)}")

    async def find_leader(self, natty: Natty, office: Office = SWEEP, *, other_than: str = "") -> str:
        """Return the leader of the sweep, or of another office, once there is one (other than `other_than`)."""
        name = office.election(flights.STREAM)
        async with within("a node is elected"):
            while True:
                self.check()
                with contextlib.suppress(NattyError):  # the stream of the elections may have no leader for a moment
                    if (leader := await natty.get_leader(name)) and leader != other_than:
                        return leader
                await asyncio.sleep(0.02)

    async def kill_sweeper(self, natty: Natty) -> None:
        """Kill the sweep's leader with SIGKILL, and time the election of its successor."""
        killed = await self.find_leader(natty)
        self._nodes.pop(killed).kill()
        at = time.monotonic()
        self._result.killed = killed
        self._result.successor = await self.find_leader(natty, other_than=killed)
        self._result.failover_seconds = time.monotonic() - at
        self._screen.finish(
            f"Killed the sweep's leader, {killed}, with SIGKILL; {self._result.successor} took over"
            f" after {self._result.failover_seconds:.2f} s"
        )

    async def kill_in_a_run(self, natty: Natty, config: CaptureConfig) -> None:
        """Kill the pipelines' leader with SIGKILL after it has written a run's files, and before it commits them."""
        async with within("the pipelines' leader writes files of a table"):
            killed, files = await self._stop_in_a_run(natty, config)
        self._nodes.pop(killed).kill()
        at = time.monotonic()
        successor = await self.find_leader(natty, PIPELINES, other_than=killed)
        self._result.pipelines_killed, self._result.pipelines_successor = killed, successor
        self._result.pipelines_failover_seconds = time.monotonic() - at
        self._screen.finish(
            f"Killed the pipelines' leader, {killed}, in the middle of a run: it had written {files} files of a table,"
            f" and not committed them; {successor} took over after {self._result.pipelines_failover_seconds:.2f} s"
        )

    async def _stop_in_a_run(self, natty: Natty, config: CaptureConfig) -> tuple[str, int]:
        """Return the pipelines' leader, stopped by SIGSTOP, and the number of files that it has not committed."""
        folder = Path(pipelines_store(config)) / "table"
        seen = {*folder.rglob("*.parquet")}
        while True:
            self.check()
            await asyncio.sleep(0.01)
            if not (new := {*folder.rglob("*.parquet")} - seen):
                continue
            leader = await self.find_leader(natty, PIPELINES)
            if leader not in self._nodes:  # it was killed
                continue
            self._nodes[leader].send_signal(signal.SIGSTOP)
            view = await PipelineView.open(config, natty)
            committed = {one.path for name in view.list_names() for one in await view.list_files(name)}
            if files := [one for one in new if one.relative_to(folder.parent).as_posix() not in committed]:
                return leader, len(files)
            self._nodes[leader].send_signal(signal.SIGCONT)  # the run had ended: take another one
            seen |= new

    async def stop(self) -> None:
        """Stop the nodes by SIGTERM, and wait for their end."""
        for process in self._nodes.values():
            process.send_signal(signal.SIGTERM)
        for process in self._nodes.values():
            await asyncio.to_thread(process.wait, 30)
        self._nodes.clear()

    def kill(self) -> None:
        """Kill the nodes that still run."""
        for process in self._nodes.values():
            process.kill()
            process.wait()


@contextlib.asynccontextmanager
async def within(what: str) -> AsyncIterator[None]:
    """Limit the time of a step. CaptureError that names it."""
    try:
        async with asyncio.timeout(WITHIN) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise CaptureError(
            f"timed out after {WITHIN:g} s waiting until {what}; to read the logs, run with --keep"
        ) from None
