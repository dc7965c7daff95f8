"""The user's hook: a function that is called after each attempt to store a block."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from capture.stores.plugin import FAULTS, ends_task, load_function
from natty.consuming.handler import run_in_thread
from natty.wire.background import cancel_all

LONGEST_QUEUE = 10_000  # completions that wait for a slow hook; beyond it the oldest ones are dropped, and counted
END_WITHIN = 5.0  # seconds that a hook has for the waiting completions when capture ends

_TOO_SLOW = {"action": "hook_too_slow"}

log = logging.getLogger("capture.hooks")


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The end of an attempt to store a block, retries included; `error` is None on success.

    `first`, `last` and `count` are the messages' sequences and number, `duration` is in seconds. `path` and `bytes` are
    those of the object; "" and 0 if the attempt failed before there was one. An `error` of CancelledError says that
    capture was stopped before the block was stored. With any error, no message of the block was acknowledged.
    """

    stream: str
    key: str
    path: str
    first: int
    last: int
    count: int
    bytes: int
    duration: float
    error: BaseException | None = None


class Hook:
    """Calls a function with each completion, one after the other, in the background. Use it with `async with`.

    A plain function runs in a thread, an `async def` in this event loop. An exception that it raises is logged. When
    capture ends, the function has END_WITHIN seconds for the waiting completions.
    """

    def __init__(self, function: Callable[[Completion], Any]) -> None:
        self.dropped = 0
        self._function = function
        self._waiting: deque[Completion] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Hook({self._function!r}, {len(self._waiting)} waiting, {self.dropped} dropped)"

    def __call__(self, completion: Completion) -> None:
        """Queue a completion; never waits."""
        if len(self._waiting) == LONGEST_QUEUE:
            self._waiting.popleft()
            self.dropped += 1
            if self.dropped == 1:
                log.error("the hook %r is too slow: it is not called for every block", self._function, extra=_TOO_SLOW)
        self._waiting.append(completion)
        self._idle.clear()
        self._arrived.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._call_for_each(), name="capture hook")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        try:
            async with asyncio.timeout(END_WITHIN):
                await self._idle.wait()
        except TimeoutError:
            log.error("the hook %r was not called for all blocks: %r", self._function, self, extra=_TOO_SLOW)
        finally:
            await cancel_all([self._task])

    async def _call_for_each(self) -> None:
        while True:
            while self._waiting:
                await self._call(self._waiting.popleft())
            self._idle.set()
            self._arrived.clear()
            await self._arrived.wait()

    async def _call(self, completion: Completion) -> None:
        try:
            if inspect.iscoroutinefunction(self._function):
                await self._function(completion)
            else:
                await run_in_thread(None, self._function, completion)
        except FAULTS as error:
            if ends_task(error):
                raise
            failed = {"action": "hook_failed", "path": completion.path}
            log.exception("the hook %r failed", self._function, extra=failed)


def hook(spec: str) -> Callable[[Completion], Any] | None:
    """Return the function that "module:function" names; None for "". Raises ConfigError if there is none."""
    return load_function(spec, "on_store_complete", (), allow_async=True) if spec else None
