"""What happens to a message after an error, and the calls of `on_error` that report both."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from natty.consuming.handler import is_async, run_in_thread
from natty.errors import NattyError
from natty.wire.background import is_cancellation
from natty.wire.message import Message

REPORT_TIMEOUT = 10.0  # seconds that one call of `on_error` may take
LAST_REPORTS = 2.0  # seconds for the reports about handlers that a stop or a hand-over has cancelled


class HandlerCancelledError(NattyError):
    """A handler was cancelled before it finished."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextStep:
    """What happens to a message after an error; it is decided, and sent to the server, before `on_error` is called.

    "retry": the handler is called with the message again after `delay` seconds, here or in another process. If a dead
    letter was due and could not be stored, `refused` is the reason.
    "dead_letter": the message is stored as dead letter `letter`, and the server does not deliver it again.
    "handed_back": the server delivers the message again, to this process or another, at a time that it decides.
    "settled": nothing, since the handler had settled the message before it failed.
    """

    action: Literal["retry", "dead_letter", "handed_back", "settled"]
    delay: float | None = None  # seconds, of a retry
    letter: int | None = None  # its sequence in the stream of dead letters
    refused: Exception | None = None  # why the dead letter that was due could not be stored

    def __str__(self) -> str:
        if self.action == "retry":
            return f"retry in {self.delay:g} s" if self.delay else "retry"
        return f"dead letter {self.letter}" if self.action == "dead_letter" else self.action.replace("_", " ")


OnError = Callable[[Message, Exception, NextStep], object]
"""Called with each message that failed, the error, and what happens next: `async def` on the event loop, `def` in a
thread. It can't change what happens next: the message is settled already, or will be tried again."""


def check_on_error(on_error: OnError | None) -> None:
    """TypeError for a function that can't be called with (message, error, next_step)."""
    if on_error is None:
        return
    try:
        signature = inspect.signature(on_error)
    except ValueError:  # of a function in C that has none
        return
    try:
        signature.bind(None, None, None)
    except TypeError as error:
        name = getattr(on_error, "__qualname__", repr(on_error))
        raise TypeError(f"on_error is called with (message, error, next_step); {name}{signature}: {error}") from None


class Reports:
    """Reports to `on_error`, in the order of the failures. `failed` counts calls that raised or took too long.

    The caller adds to it without waiting, and sends as soon as it may wait: see `waiting`.
    """

    def __init__(self, on_error: OnError | None, name: str, concurrency: int, log: logging.Logger) -> None:
        self.waiting: deque[tuple[Message, Exception, NextStep]] = deque()
        self.failed = 0
        self._on_error, self._log = on_error, log
        self._threads: ThreadPoolExecutor | None = None
        if on_error is not None and not is_async(on_error):
            self._threads = ThreadPoolExecutor(concurrency, f"natty on_error {name}")

    def __repr__(self) -> str:
        return f"Reports({len(self.waiting)} waiting, {self.failed} failed)"

    def add(self, message: Message, error: BaseException, step: NextStep) -> None:
        """Have an error reported. A cancellation is reported as HandlerCancelledError."""
        if self._on_error is None:
            return
        if not isinstance(error, Exception):
            cancelled = HandlerCancelledError()
            cancelled.__cause__ = error
            error = cancelled
        self.waiting.append((message, error, step))

    async def send(self) -> None:
        """Report what waits. An error of `on_error` is logged and counted. Raises only if this task is cancelled."""
        while self.waiting:
            message, error, step = self.waiting.popleft()
            try:
                async with asyncio.timeout(REPORT_TIMEOUT):
                    await self._call(message, error, step)
            except (Exception, asyncio.CancelledError) as fault:
                self.failed += 1
                text = "on_error failed; its call was about %r, %r (%s)"
                self._log.exception(text, message, error, step, extra={"action": "on_error"})
                if is_cancellation(fault):
                    raise

    async def _call(self, message: Message, error: Exception, step: NextStep) -> None:
        on_error = self._on_error
        assert on_error is not None, "`add` takes no reports without it"
        if self._threads is not None:
            await run_in_thread(self._threads, on_error, message, error, step)
        elif inspect.isawaitable(answer := on_error(message, error, step)):
            await answer

    async def send_last(self) -> None:
        """Send what waits, as far as LAST_REPORTS seconds allow, when no handler runs that would send it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_REPORTS):
                await self.send()

    async def close(self) -> None:
        """Send what waits, as `send_last`; log how many reports are left then, or if this is cancelled."""
        try:
            await self.send_last()
        finally:
            if self.waiting:
                self.failed += len(self.waiting)
                self._log.warning("%d errors were not reported to on_error: no time was left", len(self.waiting))
            if self._threads is not None:
                self._threads.shutdown(wait=False)
