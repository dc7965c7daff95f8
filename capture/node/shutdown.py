"""How a process ends that is told to: at once while it starts, within a deadline while it captures."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator

STOPS = (signal.SIGTERM, signal.SIGINT)
RELOADS = getattr(signal, "SIGHUP", None)  # Windows has none


class Stopping:
    """The stop of one process; `told` is whether it was told to.

    `async with scope():` runs the whole of it; in there, `with draining(…):` that part which is given time.
    """

    def __init__(self) -> None:
        self.told = False
        self._scope: asyncio.Timeout | None = None
        self._began: Callable[[], float] | None = None
        self._ending = False

    def __repr__(self) -> str:
        return f"Stopping({'told' if self.told else 'not told'})"

    @contextlib.asynccontextmanager
    async def scope(self, signals: tuple[signal.Signals, ...] = STOPS) -> AsyncIterator[None]:
        """Run the body until its end, or until its time is over: it is cancelled then, and this ends without an error.

        The signals, by default SIGTERM and SIGINT, tell it to stop. A second one ends the process at once, as if there
        were no handler.
        """
        with _called_by(self.tell, signals):
            try:
                async with asyncio.timeout(0.0 if self.told else None) as self._scope:
                    yield
            except TimeoutError:
                if self._scope is None or not self._scope.expired():
                    raise
            finally:
                self._ending = True

    @contextlib.contextmanager
    def draining(self, begin: Callable[[], float]) -> Iterator[None]:
        """Meanwhile, a stop calls `begin` and gives the body the seconds that it returns. What follows is not timed."""
        self._began = begin
        try:
            yield
        finally:
            self._ending = True
            if self._scope is not None and not self._scope.expired():
                self._scope.reschedule(None)

    def tell(self) -> None:
        """Stop. Idempotent."""
        if self.told:
            return
        self.told = True
        if self._scope is not None and not self._ending:
            within = self._began() if self._began else 0.0
            self._scope.reschedule(asyncio.get_running_loop().time() + within)


@contextlib.contextmanager
def reloading(reload: Callable[[], None]) -> Iterator[None]:
    """Meanwhile, SIGHUP calls `reload`, as often as it comes."""
    if RELOADS is None:
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(RELOADS)
    loop.add_signal_handler(RELOADS, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(RELOADS)
        signal.signal(RELOADS, before)  # nohup had it ignored


@contextlib.contextmanager
def _called_by(tell: Callable[[], None], numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Meanwhile, the first of these signals calls `tell`; from then on they end the process."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}

    def first() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        tell()

    for number in numbers:
        loop.add_signal_handler(number, first)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
