"""How a process stops at a signal: at once while it starts, later within a deadline. SIGHUP reloads instead."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator

STOPS = (signal.SIGTERM, signal.SIGINT)
RELOADS = getattr(signal, "SIGHUP", None)  # Windows does not have SIGHUP


class Stopping:
    """The stop of one process; `requested` says whether a stop was requested.

    Run the whole process in `async with scope():`, and the part that gets time to end in `with draining(…):`.
    """

    def __init__(self) -> None:
        self.requested = False
        self._scope: asyncio.Timeout | None = None
        self._began: Callable[[], float] | None = None
        self._ending = False

    def __repr__(self) -> str:
        return f"Stopping({'requested' if self.requested else 'not requested'})"

    @contextlib.asynccontextmanager
    async def scope(self, signals: tuple[signal.Signals, ...] = STOPS) -> AsyncIterator[None]:
        """Run the body until its end or its deadline. The deadline cancels the body, and this returns without an error.

        The signals, by default SIGTERM and SIGINT, request a stop. A second signal ends the process at once, as if
        there were no handler.
        """
        with _handling(signals, self.request):
            try:
                async with asyncio.timeout(0.0 if self.requested else None) as self._scope:
                    yield
            except TimeoutError:
                if self._scope is None or not self._scope.expired():
                    raise
            finally:
                self._ending = True

    @contextlib.contextmanager
    def draining(self, begin: Callable[[], float]) -> Iterator[None]:
        """While the body runs, a stop calls `begin`, and cancels the body after the seconds that it returns."""
        self._began = begin
        try:
            yield
        finally:
            self._ending = True
            if self._scope is not None and not self._scope.expired():
                self._scope.reschedule(None)

    def request(self) -> None:
        """Request the stop. Idempotent."""
        if self.requested:
            return
        self.requested = True
        if self._scope is not None and not self._ending:
            within = self._began() if self._began else 0.0
            self._scope.reschedule(asyncio.get_running_loop().time() + within)


@contextlib.contextmanager
def reloading(reload: Callable[[], None]) -> Iterator[None]:
    """While the body runs, each SIGHUP calls `reload`."""
    if RELOADS is None:
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(RELOADS)
    loop.add_signal_handler(RELOADS, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(RELOADS)
        signal.signal(RELOADS, before)  # nohup had set it to be ignored


@contextlib.contextmanager
def _handling(numbers: tuple[signal.Signals, ...], call: Callable[[], None]) -> Iterator[None]:
    """While the body runs, the first of these signals calls `call`; after that they end the process."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}

    def first() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        call()

    for number in numbers:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
