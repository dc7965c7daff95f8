"""What a worker reports to its supervisor, and what the supervisor decides when a worker has ended. No I/O."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import msgspec

REPORT_EVERY = 1.0  # seconds between two reports of a worker
LATE_AFTER = 5.0  # seconds without a report after which a worker is not ready
HANGS_AFTER = 60.0  # seconds without a report after which the supervisor kills a worker
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before a worker starts again: they double with each end
STEADY_AFTER = 60.0  # seconds of a run after which the pause begins with the first one again

VARIABLE = "_CAPTURE_WORKER"
"""The variable of a worker's environment that makes it one: its number, the number of workers, its descriptor."""
RELOAD, FIGURES, STOP = b"reload", b"figures", b"stop"
"""The orders of the supervisor, each in a line: read the configuration again; report the figures; stop as at SIGTERM.

A stop is not a signal: systemd sends SIGTERM to all processes of a unit, and a second one would end a worker at once.
"""


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric of a worker: its name, help and type, and its samples with their names, labels and values."""

    name: str
    text: str
    kind: str
    samples: list[tuple[str, dict[str, str], float]]


class Report(msgspec.Struct, omit_defaults=True, frozen=True, kw_only=True):
    """A report: why the worker does not capture now, whether it has captured since it began, and what it has stored.

    With `figures` it answers a request for them. With a `failure` it is the last one: the error that ends the worker.
    """

    reasons: list[str] = []
    captured: bool = False
    messages: int = 0
    blocks: int = 0
    figures: list[Family] | None = None
    failure: str = ""


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its exit status (negative for a signal), its error, and whether it had captured.

    `because` replaces the status in the description.
    """

    status: int
    failure: str = ""
    captured: bool = False
    ran: float = 0.0  # seconds
    because: str = ""

    def __str__(self) -> str:
        if self.because:
            return self.because
        if self.status < 0:
            number = -self.status
            return f"was ended by {signal.Signals(number).name if number in {*signal.Signals} else f'signal {number}'}"
        return f"ended with exit status {self.status}" + (f": {self.failure}" if self.failure else "")


def is_final(ended: Ended, *, others_captured: bool, stop_on_failure: bool) -> bool:
    """Return whether a worker's end must be the end of all workers: to start it again would not help.

    1. It failed before it captured anything, and so did all others: the configuration is wrong, or what it names is
       missing. A worker that a signal ended is started again.
    2. It failed later, and the configuration says to stop then (`on_store_failure`).
    """
    if ended.status <= 0:
        return False
    return stop_on_failure if ended.captured or others_captured else True


class Restarts:
    """The pauses before the starts of one worker."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE

    def __repr__(self) -> str:
        return f"Restarts(next after {self._pause:g} s)"

    def pause_after(self, ran: float) -> float:
        """Return the seconds to wait after a run of so many seconds, before the worker starts again."""
        pause = FIRST_PAUSE if ran >= STEADY_AFTER else self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE)
        return pause
