"""SIGTERM and SIGHUP end a command as Ctrl-C does: it cleans up, and its exit status names the signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALED = 128  # plus the signal's number: the exit status, as in shells
TAKEN = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """The signals of one run of a command line; `number` is the one that ended it, by default SIGINT."""

    def __init__(self) -> None:
        self.number: int = signal.SIGINT

    def __repr__(self) -> str:
        return f"Interrupts({signal.Signals(self.number).name})"

    @property
    def status(self) -> int:
        """The exit status of a command that a signal has ended."""
        return SIGNALED + self.number

    @property
    def sentence(self) -> str:
        """The sentence that reports it."""
        return "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"

    @contextmanager
    def handle(self) -> Iterator[None]:
        """While the body runs, SIGTERM and SIGHUP work as Ctrl-C, unless they are ignored or have another handler.

        After the first one, more of them change nothing, and the process ends with the status of the first: a closed
        terminal sends SIGHUP twice, and the second one must not interrupt the command while it cleans up.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        mine = [number for number in TAKEN if signal.getsignal(number) == signal.SIG_DFL]
        for number in mine:
            signal.signal(number, self._interrupt)
        try:
            yield
        finally:
            for number in mine:
                if signal.getsignal(number) is not _ignore:
                    signal.signal(number, signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for taken in TAKEN:
            if signal.getsignal(taken) == self._interrupt:
                signal.signal(taken, _ignore)
        self.number = number
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):  # Python's own handler raises KeyboardInterrupt, asyncio's cancels the running task
            handler(signal.SIGINT, frame)
        else:  # ignored, as for background jobs of a shell
            raise KeyboardInterrupt


@contextmanager
def restore_handlers() -> Iterator[None]:
    """After the body, each signal has the handler that it had before, if an event loop of the body has left its own.

    A closed loop of uvloop leaves a handler that does nothing: Ctrl-C would not end what the command still does.
    """
    import asyncio  # here, because every start imports this file

    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            left_by = getattr(signal.getsignal(number), "__self__", None)
            if isinstance(left_by, asyncio.AbstractEventLoop) and left_by.is_closed():
                signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass  # a handler and not SIG_IGN, which child processes would inherit
