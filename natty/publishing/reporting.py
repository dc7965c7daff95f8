"""Calls the program's function with each message that was published and not stored."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from natty.errors import PublishError

logger = logging.getLogger("natty.outbox")

CALL_TIMEOUT = 10.0  # seconds that an `async def` callback may take with one error

OnPublishError = Callable[[PublishError], object]
"""Called with each message that is not stored, on the event loop: `def` at once, and must not block; `async def` in a
task, for up to CALL_TIMEOUT seconds."""


class Reporter:
    """Calls `callback` with errors. If it raises or takes too long, that is logged, and `keep` gets the error."""

    def __init__(self, callback: OnPublishError, keep: Callable[[PublishError], None]) -> None:
        self._callback, self._keep = callback, keep
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Reporter({len(self._tasks)} calls under way)"

    def report(self, error: PublishError) -> None:
        """Call the callback with an error. Never raises an error of the callback."""
        try:
            answer = self._callback(error)
        except Exception:
            self._fail(error)
            return
        if inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._finish(answer, error))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self, answer: Awaitable[object], error: PublishError) -> None:
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await answer
        except (Exception, asyncio.CancelledError):
            self._fail(error)

    def _fail(self, error: PublishError) -> None:
        logger.exception("on_publish_error failed; the error is kept for publish_errors(): %s", error)
        self._keep(error)

    async def settle(self) -> None:
        """Return when all calls that are under way have ended; at once if one of them calls this."""
        while self._tasks and asyncio.current_task() not in self._tasks:
            await asyncio.wait(self._tasks)
