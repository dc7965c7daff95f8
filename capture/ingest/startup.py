"""The start of a node: waits until the server and the store can be reached, and logs that rarely."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from capture.errors import CaptureError, NotStartedError, StoreError, StoreUnfitError, StoreUnreadableError
from capture.ingest.source import UNAVAILABLE
from natty import AuthorizationError, ConnectError, JetStreamError, NattyError, NotConnectedError, RequestTimeoutError
from natty.errors import (
    ConnectionClosedError,
    JetStreamNotEnabledError,
    NoRespondersError,
    PublishError,
    TLSClosedError,
    TLSError,
)
from natty.streams.refusal import NO_PEERS

START_TIMEOUT = 86_400.0  # seconds that a start waits
FIRST_PAUSE = 0.25  # seconds before the second attempt; doubled for each further one
LONGEST_PAUSE = 5.0
LOG_AGAIN = 300.0  # seconds until the same reason is logged again
CLOSED_TRIES = 3  # consecutive TLS handshakes that end without a reason: a stopping server closes one or two

_MAY_PASS = (ConnectError, NotConnectedError, RequestTimeoutError, NoRespondersError, PublishError, StoreError)
_STAY = (AuthorizationError, ConnectionClosedError, StoreUnreadableError, StoreUnfitError)

log = logging.getLogger("capture.starting")

T = TypeVar("T")


def may_pass(error: Exception) -> bool:
    """Return whether waiting may help: the server or the store is not reachable, overloaded, full, or without a leader.

    Also if servers are missing that replicas could be on.

    It does not help if a person must change something: credentials, certificates, permissions, a missing bucket or
    stream, an archive of another stream, or any other fault of the configuration.
    """
    if isinstance(error, JetStreamError):
        unavailable = error.code == UNAVAILABLE or error.err_code == NO_PEERS
        return unavailable and not isinstance(error, JetStreamNotEnabledError)
    if isinstance(error, TLSError):
        return isinstance(error, TLSClosedError)
    return isinstance(error, _MAY_PASS) and not isinstance(error, _STAY)


def pauses() -> Iterator[float]:
    """Yield the seconds between attempts: about twice as many each time, up to LONGEST_PAUSE, random for each node."""
    pause = FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(2 * pause, LONGEST_PAUSE)


class Start:
    """The start of a node: waits up to `timeout` seconds in total; with 0 it does not wait.

    `waits_for` is a sentence that says what it waits for, or "". The caller sets `over` at the end of the start.
    """

    def __init__(
        self,
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.waits_for = ""
        self.over = False
        self._timeout, self._clock, self._sleep = timeout, clock, sleep
        self._deadline: float | None = None  # set at the first failure
        self._logged: dict[type[Exception], float] = {}

    def __repr__(self) -> str:
        return f"Start({'over' if self.over else self.waits_for or 'under way'})"

    async def step(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt`; call it again while it fails with an error that may pass.

        Raises the error if waiting does not help, and NotStartedError after `timeout` seconds.
        """
        waits, closed = pauses(), 0
        while True:
            try:
                result = await attempt()
            except (CaptureError, NattyError) as error:
                closed = closed + 1 if isinstance(error, TLSClosedError) else 0
                if not may_pass(error) or closed == CLOSED_TRIES or not self._timeout:
                    raise
                self._note(error)
                await self._sleep(min(next(waits), self._seconds_left(error)))
            else:
                self.waits_for = ""
                return result

    @asynccontextmanager
    async def enter(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
        """Enter the context that `make` returns, a new one for each attempt. Raises the errors of `step`."""
        async with AsyncExitStack() as stack:
            yield await self.step(lambda: stack.enter_async_context(make()))

    def _seconds_left(self, error: Exception) -> float:
        """Return the seconds that are left to wait. Raises NotStartedError if there are none."""
        now = self._clock()
        if self._deadline is None:
            self._deadline = now + self._timeout
        if now >= self._deadline:
            raise NotStartedError(f"gave up after {self._timeout:g} s (start_timeout): {error}") from error
        return self._deadline - now

    def _note(self, error: Exception) -> None:
        """Log an error once, and again after LOG_AGAIN seconds; each kind of error has its own time."""
        self.waits_for = str(error)
        last, now = self._logged.get(type(error)), self._clock()
        if last is None or now >= last + LOG_AGAIN:
            self._logged[type(error)] = now
            log.warning("not ready to capture yet, waiting: %s", error, extra={"action": "wait"})
