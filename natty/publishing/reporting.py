"""Messages without an outcome, and the program's function, which is called with those that are not stored."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context

import msgspec

from natty.config.units import write_count
from natty.errors import PublishError
from natty.names import decode

logger = logging.getLogger("natty.outbox")

CALL_TIMEOUT = 10.0  # seconds that one call of an `async def` callback may take

OnPublishError = Callable[[PublishError], object]
"""Called with each message that is not stored, on the event loop: `def` at once, and must not block; `async def` in a
task, one call after another, each for up to CALL_TIMEOUT seconds."""

_during: ContextVar[PublishError | None] = ContextVar("natty_publish_error", default=None)


class Waiting(msgspec.Struct, gc=False):
    """A message that a publisher has taken, and that is neither stored nor failed."""

    subject: bytes
    headers: bytes
    data: bytes
    msg_id: str
    in_doubt: bool = True  # it may be stored
    refused: str = ""  # why the server did not take it at the last try

    def to_error(self, reason: str) -> PublishError:
        """Return the error that names it."""
        subject = decode(self.subject)
        name = f"message {self.msg_id!r}" if self.msg_id else f"a message of {write_count(len(self.data), 'byte')}"
        return PublishError(
            f"{name} on {subject}: {reason}",
            subject=subject,
            msg_id=self.msg_id,
            data=self.data,
            in_doubt=self.in_doubt,
        )


class Reporter:
    """Calls `callback` with errors. If a call raises or takes too long, that is logged, and `keep` gets the error.

    `waiting` are calls of an `async def` that have not begun. `name` and `kept` name the callback, and where the errors
    are kept, in the log.
    """

    def __init__(self, callback: OnPublishError, keep: Callable[[PublishError], None], name: str, kept: str) -> None:
        self.callback = callback
        self.waiting: deque[tuple[PublishError, Awaitable[object]]] = deque()
        self._keep, self._name, self._kept = keep, name, kept
        self._context = copy_context()  # of the calls: an error may come up in any task, of a handler for example
        self._current: tuple[PublishError, Awaitable[object], asyncio.Task[None]] | None = None
        self._queued = 0  # calls that are or were in `waiting`
        self._settling = 0  # callers of `settle`

    def __repr__(self) -> str:
        return f"Reporter({self._name}, {len(self.waiting)} waiting)"

    @property
    def is_called_by_its_own(self) -> bool:
        """Whether the caller, in any task or thread, is part of the call that is under way."""
        return self._current is not None and self._current[0] is _during.get()

    def report(self, error: PublishError) -> None:
        """Call the callback with an error. Never raises an error of the callback."""
        try:
            answer = self.callback(error)
        except (Exception, asyncio.CancelledError) as fault:
            self._fail(error, fault)
            return
        if inspect.isawaitable(answer):
            self.waiting.append((error, answer))
            self._queued += 1
            self._begin()

    def _begin(self) -> None:
        """Begin the next call, unless one is under way."""
        if self.waiting and self._current is None:
            error, answer = self.waiting.popleft()
            call = asyncio.get_running_loop().create_task(_call(error, answer), context=self._context.copy())
            self._current = error, answer, call
            call.add_done_callback(self._end)

    def _end(self, call: asyncio.Task[None]) -> None:
        assert self._current is not None, "`_begin` has set it, and begins no other call before this one has ended"
        error, answer, _ = self._current
        self._current = None
        fault = asyncio.CancelledError() if call.cancelled() else call.exception()
        if fault is not None:
            self._fail(error, fault)
        loop_ends = call.cancelled() and call.cancelling() > 0
        if loop_ends or (self._settling and isinstance(fault, TimeoutError)):
            _drop(answer)
            self._keep_waiting()
        self._begin()

    def _fail(self, error: PublishError, fault: BaseException) -> None:
        logger.error("%s failed; the error is kept %s: %s", self._name, self._kept, error, exc_info=fault)
        self._keep(error)

    def _keep_waiting(self) -> None:
        if self.waiting:
            text = "%s was not called with %d more errors; they are kept %s; the first: %s"
            logger.error(text, self._name, len(self.waiting), self._kept, self.waiting[0][0])
        while self.waiting:
            error, answer = self.waiting.popleft()
            _drop(answer)
            self._keep(error)

    async def settle(self) -> None:
        """Return when the calls with all errors so far have ended; at once if one of them calls this.

        If a call takes too long meanwhile, the errors behind it are kept: a caller does not wait for that many calls.
        """
        if self.is_called_by_its_own:
            return
        last = self._queued
        self._settling += 1
        try:
            while self._current is not None and self._queued - len(self.waiting) <= last:
                await asyncio.wait({self._current[2]})
        finally:
            self._settling -= 1


async def _call(error: PublishError, answer: Awaitable[object]) -> None:
    _during.set(error)
    async with asyncio.timeout(CALL_TIMEOUT):
        await answer


def _drop(answer: Awaitable[object]) -> None:
    """End a call that has not begun."""
    if inspect.iscoroutine(answer):
        answer.close()
