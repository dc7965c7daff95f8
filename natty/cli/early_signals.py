"""Before a command begins: signals, since the imports of a command line take up to 0.5 s, and standard streams."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

VALUED = ("--log-level", "--log-format")  # options before the command that have a value
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


def command_of(arguments: Sequence[str]) -> str:
    """Return the command in these arguments; "" if there is none."""
    rest = iter(arguments)
    for one in rest:
        if one in VALUED:
            next(rest, None)
        elif not one.startswith("-"):
            return one
    return ""


def open_standard_streams() -> None:
    """Open /dev/null in place of closed standard streams: a socket would get their numbers, and uvloop aborts then."""
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)  # mostly it has that number already
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def guard(program: str, arguments: Sequence[str]) -> None:
    """Make SIGTERM, SIGINT and SIGHUP end the process at once and silently, because no work has begun.

    The exit status is 128 plus the signal's number; for a capture node 0, since its stop is not a failure. A node
    ignores SIGHUP, which means to read the configuration again: it is about to read it. Ignored signals stay ignored.
    """
    graceful = program == "capture" and command_of(arguments) == "run"
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            if not graceful:
                signal.signal(number, _end)
            elif number == getattr(signal, "SIGHUP", None):
                signal.signal(number, _ignore)
            else:
                signal.signal(number, _end_well)


def unguard() -> None:
    """Leave signals to the command from now on. The handlers of a node stay until it sets its own."""
    for number in ENDING:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


def _end_well(number: int, frame: object) -> None:
    os._exit(0)


def _ignore(number: int, frame: object) -> None:
    pass
