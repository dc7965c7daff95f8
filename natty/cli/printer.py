"""Prints the messages of a subject without delaying the event loop."""

from __future__ import annotations

import asyncio
import math
import os
import queue
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from natty.cli.show import Form, message_text
from natty.cli.terminal import escape
from natty.wire.message import RawMessage

BUFFER_BYTES = 32 * 1024 * 1024  # of messages that wait to be printed
MESSAGE_BYTES = 512  # that a message takes in Python besides its content: at most 65 536 of them wait
TELL_EVERY = 1.0  # seconds between two reports of dropped messages
FINISH_WITHIN = 0.5  # seconds that the output has for waiting messages when the command is interrupted
_AT_ONCE = 64 * 1024  # bytes of messages that are written together, if that many wait


class Printer:
    """Prints messages of a subject, which has no flow control, in a thread: `async with Printer(form) as printer`.

    So the event loop never waits for an output that is slow or blocked. The printer holds up to `BUFFER_BYTES` of
    waiting messages; it drops further ones, and reports their number on standard error. Messages are numbered as they
    arrive, so a gap is visible. At the end of the block the output gets `FINISH_WITHIN` seconds, and the printer
    reports how many messages were not printed.
    """

    def __init__(self, form: Form, count: int | None = None) -> None:
        self.arrived = self.dropped = self.printed = 0
        self._form, self._terminal = form, sys.stdout.isatty()
        self._left = math.inf if count is None else count
        self._waiting: queue.SimpleQueue[tuple[int, RawMessage] | None] = queue.SimpleQueue()
        self._bytes_in = self._bytes_out = 0  # written by the event loop, and by the thread
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reporter: threading.Thread | None = None
        self._reported_at = -math.inf

    def __repr__(self) -> str:
        return f"Printer({self.arrived} arrived, {self.printed} printed, {self.dropped} dropped)"

    async def __aenter__(self) -> Self:
        threading.Thread(target=self._print, name="natty printer", daemon=True).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        await asyncio.wait({self._ended}, timeout=FINISH_WITHIN)
        if lost := self.dropped if self._ended.done() else self.arrived - self.printed:
            print(self._describe_loss(lost), file=sys.stderr, flush=True)

    async def wait(self) -> None:
        """Return when `count` messages are printed. Raises the output's error, such as BrokenPipeError."""
        await asyncio.shield(self._ended)

    def take(self, messages: list[RawMessage]) -> bool:
        """Queue messages to print, in order; return whether more are wanted. Never waits."""
        dropped = self.dropped
        for raw in messages:
            if not self._left:
                break
            self.arrived += 1
            if self._bytes_in - self._bytes_out >= BUFFER_BYTES:
                self.dropped += 1
                continue
            self._bytes_in += _size(raw)
            self._waiting.put((self.arrived, raw))
            self._left -= 1
            if not self._left:
                self._end()
        if self.dropped > dropped:
            self._report()
        return self._left > 0

    def _end(self) -> None:
        self._left = 0
        self._waiting.put(None)

    def _report(self) -> None:
        """Report it now and then, in a thread: standard error may be the terminal that is blocked."""
        now = time.monotonic()
        if now - self._reported_at >= TELL_EVERY and not (self._reporter and self._reporter.is_alive()):
            self._reported_at = now
            line = self._describe_loss(self.dropped) + "\n"
            self._reporter = threading.Thread(target=_write, args=(sys.stderr.fileno(), line.encode()), daemon=True)
            self._reporter.start()

    def _describe_loss(self, count: int) -> str:
        return f"{count} of {self.arrived} messages were dropped, because the output is slower than the subject"

    def _print(self) -> None:
        fault: Exception | None = None
        try:
            while self._print_some():
                pass
        except Exception as error:  # usually the output was closed
            fault = error
        with suppress(RuntimeError):  # the command has ended in the meantime
            self._loop.call_soon_threadsafe(self._finish, fault)

    def _print_some(self) -> bool:
        """Write the waiting messages, or the next one; return False at the end."""
        lines: list[bytes] = []
        size, more = 0, True
        while more and (not lines or (size < _AT_ONCE and not self._waiting.empty())):
            if (entry := self._waiting.get()) is None:
                more = False
            else:
                number, raw = entry
                lines.append(message_text(number, raw, self._form))
                size += _size(raw)
        data = b"".join(lines)
        _write(sys.stdout.fileno(), escape(data) if self._terminal else data)
        self.printed += len(lines)
        self._bytes_out += size
        return more

    def _finish(self, fault: Exception | None) -> None:
        if fault is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(fault)
            self._ended.exception()  # mark it as retrieved: maybe nothing waits for it any more


def _size(raw: RawMessage) -> int:
    return sum(map(len, raw)) + MESSAGE_BYTES


def _write(descriptor: int, data: bytes) -> None:
    """Write all data, bypassing Python's own buffers, whose locks would keep the process from ending."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
