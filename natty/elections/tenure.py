"""A stay in office as both sides see it: written by the renewer's thread, read by any."""

from __future__ import annotations

import os
from collections.abc import Callable

from natty.config.units import clock
from natty.errors import LeadershipLostError


class Tenure:
    """The token, and how long it may still be acted upon. Reading is one comparison of two floats."""

    def __init__(self, token: int, term: int, stop_before: float) -> None:
        self.token = token
        self.term = term
        self.stop_before = stop_before
        self.deadline = 0.0
        self.ended = ""  # why, once it is over
        self.stopping = ""  # why the work is told to stop
        self.watchers: list[Callable[[Tenure], None]] = []  # called in the renewer's thread at every change
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Tenure({self.token}, {self.ended or f'{self.remaining():.2f} s left'})"

    def remaining(self) -> float:
        """Seconds until the deadline; 0 in a child that was forked off."""
        if self.ended or os.getpid() != self._process:
            return 0.0
        return max(0.0, self.deadline - clock())

    def check(self, who: str) -> None:
        """LeadershipLostError if it is over, or the work was told to stop."""
        if self.remaining() <= 0:
            raise LeadershipLostError(f"{who} any more (token {self.token}{f', {self.ended}' if self.ended else ''})")
        if self.stopping:
            raise LeadershipLostError(f"{who} for long: told to stop, {self.stopping} (token {self.token})")

    def extend(self, deadline: float) -> None:
        """A renewal moved the deadline."""
        if deadline != self.deadline and not self.ended:
            self.deadline = deadline
            self._changed()

    def stop(self, reason: str) -> None:
        """Tell the work to stop."""
        self.stopping = reason
        self._changed()

    def end(self, reason: str) -> None:
        """It is over."""
        self.ended = reason
        self._changed()

    def _changed(self) -> None:
        for watcher in list(self.watchers):
            watcher(self)
