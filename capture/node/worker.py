"""A worker's end of its line to the supervisor: reports, obeys, and stops the worker when the supervisor has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping

import msgspec

from capture.config.settings import CaptureConfig
from capture.config.workers import as_worker
from capture.node.node import Node
from capture.node.nodes import Several
from capture.node.readiness import count_stored, has_captured, not_ready
from capture.node.worker_reports import FIGURES, RELOAD, REPORT_EVERY, STOP, VARIABLE, Family, Report
from natty.wire.background import cancel_all

FAIL_WITHIN = 2.0  # seconds to report an error to a supervisor that does not read

log = logging.getLogger("capture.workers")

Figures = Callable[[Node | Several], list[Family]]


class Worker:
    """This process as one of several workers. The supervisor has the other end of `line`."""

    def __init__(self, number: int, count: int, line: socket.socket) -> None:
        self.number, self.count = number, count
        self._line = line
        self._running: Node | Several | None = None

    def __repr__(self) -> str:
        return f"Worker({self.number} of {self.count})"

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Worker:
        """Return this process as the worker that its environment names. Programs that it starts are not workers."""
        number, count, descriptor = map(int, environment.pop(VARIABLE).split(","))
        os.set_inheritable(descriptor, False)
        return cls(number, count, socket.socket(fileno=descriptor))

    def configure(self, config: CaptureConfig) -> CaptureConfig:
        """Return this worker's configuration."""
        return as_worker(config, self.number, self.count)

    def fail(self, sentence: str) -> None:
        """Report the error that ends this worker."""
        captured = self._running is not None and has_captured(self._running)
        with contextlib.suppress(OSError):  # the supervisor has ended, or does not read
            self._line.settimeout(FAIL_WITHIN)
            self._line.sendall(_encode(Report(failure=sentence, captured=captured)))

    @contextlib.asynccontextmanager
    async def obey(self, running: Node | Several, figures: Figures) -> AsyncIterator[None]:
        """While the body runs `running`, report every REPORT_EVERY seconds, and do what the supervisor asks for.

        When the supervisor has ended, stop as at SIGTERM. `figures` reads the metrics.
        """
        self._running = running
        reader, writer = await asyncio.open_unix_connection(sock=self._line.dup())
        tasks = [
            asyncio.create_task(self._report(running, writer)),
            asyncio.create_task(self._listen(running, reader, writer, figures)),
        ]
        try:
            yield
        finally:
            await cancel_all(tasks)
            with contextlib.suppress(ConnectionError):
                writer.write(_encode(_make_report(running)))  # all that it has stored
            writer.close()

    async def _report(self, running: Node | Several, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(_encode(_make_report(running)))
                await writer.drain()
                await asyncio.sleep(REPORT_EVERY)

    async def _listen(
        self, running: Node | Several, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, figures: Figures
    ) -> None:
        """Do what the supervisor asks for. At the end of the line, which is the end of the supervisor, stop."""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                order = line.strip()
                if order == STOP:
                    running.stop()
                elif order == RELOAD:
                    running.reload()
                elif order == FIGURES:
                    writer.write(_encode(_read_report(running, figures)))
        running.stop()


def _read_report(running: Node | Several, figures: Figures) -> Report:
    """Return a report with figures: none if they can't be read, since the next order may be to stop."""
    try:
        found = figures(running)
    except Exception:
        log.exception("the figures can't be read", extra={"action": "figures_failed"})
        found = []
    return _make_report(running, found)


def _make_report(running: Node | Several, figures: list[Family] | None = None) -> Report:
    return Report(
        reasons=not_ready(running),
        captured=has_captured(running),
        messages=count_stored(running, "messages"),
        blocks=count_stored(running, "blocks"),
        figures=figures,
    )


def _encode(report: Report) -> bytes:
    return msgspec.json.encode(report) + b"\n"
