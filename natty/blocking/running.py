"""Handlers that run while the program's threads do something else, until they are stopped or the program ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from natty.blocking.loop import Loop
from natty.consuming.consume import Consumption
from natty.consuming.messaging import Responder


class Running:
    """Running handlers: call `run()` to block until they stop, or use `with` to continue meanwhile. Use it once.

    A `def` handler runs in a thread, and may use the client.
    """

    def __init__(self, loop: Loop, work: Consumption | Responder) -> None:
        self._loop = loop
        self._work = work
        self._future: Future[None] | None = None

    def __repr__(self) -> str:
        return f"Running({self._work!r})"

    @property
    def counts(self) -> dict[str, int]:
        """Counts of messages by name, as `Consumption.counts`; of requests: `handled` and `failed`."""
        return self._work.counts

    def run(self) -> None:
        """Return after `stop` was called, from any thread or handler, and running handlers have finished.

        Ctrl-C stops it in the same way, and then raises KeyboardInterrupt. In the main thread SIGTERM stops it, too,
        unless the program handles it. Raises the errors of `Consumption.run`.
        """
        with _stop_at_sigterm(self.stop):
            running = self._start()
            try:
                running.result()
            except KeyboardInterrupt:
                self.stop()
                running.result()
                raise

    def stop(self) -> None:
        """Take no more messages; running handlers finish. Call it from any thread. Idempotent."""
        self._loop.call_soon(self._work.stop)

    def _start(self) -> Future[None]:
        self._loop.check()
        self._future = self._loop.submit(self._work.run())
        _started[self._future] = self
        self._future.add_done_callback(_started.pop)
        return self._future

    def __enter__(self) -> Self:
        """Start, and return when messages or requests can arrive. Raises the error that prevents it."""
        future = self._start()
        ready = self._loop.submit(self._work.ready.wait())
        both: list[Future[Any]] = [future, ready]
        try:
            wait(both, return_when=FIRST_COMPLETED)
        except BaseException:
            self.stop()
            raise
        finally:
            ready.cancel()
        if future.done():
            future.result()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._future is not None, "__enter__ has made it"
        self.stop()
        if self._loop.is_ours or self._future.done():  # after a fork it would never be
            self._future.result()


_started: dict[Future[None], Running] = {}  # what runs at the moment


def _stop_started() -> None:
    """Stop what runs, and wait until it ends, since Python ends the threads of handlers next."""
    started = {future: running for future, running in list(_started.items()) if running._loop.is_ours}
    for running in started.values():
        running.stop()
    wait(started)


# Called when the main thread ends, before that of `concurrent.futures` (imported earlier) and before `atexit`.
threading._register_atexit(_stop_started)  # type: ignore[attr-defined]


@contextmanager
def _stop_at_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM, in the main thread and unless the program handles it."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop()

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
