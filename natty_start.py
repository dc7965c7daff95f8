"""What the commands `natty` and `capture` begin with: signals first, since to import the rest takes half a second.

`python -m natty` and `python -m capture` begin with it as well, when the package itself is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

VALUED = ("--log-level", "--log-format")  # options before the command that have a value
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


def natty() -> None:
    """Run the command line `natty`."""
    guard("natty", sys.argv[1:])
    import_module("natty.cli").main()


def capture() -> None:
    """Run the command line `capture`."""
    guard("capture", sys.argv[1:])
    import_module("capture.cli").main()


def command_of(arguments: Sequence[str]) -> str:
    """Return the command that these arguments name; "" if they name none."""
    rest = iter(arguments)
    for one in rest:
        if one in VALUED:
            next(rest, None)
        elif not one.startswith("-"):
            return one
    return ""


def guard(program: str, arguments: Sequence[str]) -> None:
    """Have SIGTERM, SIGINT and SIGHUP end the process at once, without a word: nothing has begun.

    The exit status is 128 and the signal's number; 0 for a capture node, whose stop is no failure. SIGHUP tells a node
    to read its configuration again: one that starts is about to read it. Signals that are ignored stay so.
    """
    graceful = program == "capture" and command_of(arguments) == "run"
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            if not graceful:
                signal.signal(number, _end)
            elif number == getattr(signal, "SIGHUP", None):
                signal.signal(number, _go_on)
            else:
                signal.signal(number, _end_well)


def unguard() -> None:
    """From here on the command sees to signals. A node's stay as they are until it has its own."""
    for number in ENDING:
        if signal.getsignal(number) is _end:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _end(number: int, frame: object) -> None:
    os._exit(128 + number)


def _end_well(number: int, frame: object) -> None:
    os._exit(0)


def _go_on(number: int, frame: object) -> None:
    pass
