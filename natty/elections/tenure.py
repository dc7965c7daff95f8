"""A stay in office, as both sides see it: the renewer's thread writes it, any thread reads it."""

from __future__ import annotations

import os
from collections.abc import Callable

from natty.config.units import clock
from natty.errors import LeadershipLostError


class Tenure:
    """The token, and how long its holder may still act. Reading it compares two floats."""

    def __init__(self, token: int, term: int, stop_before: float) -> None:
        self.token = token
        self.term = term
        self.stop_before = stop_before
        self.deadline = 0.0
        self.ended = ""  # the reason, once it is over
        self.stopping = ""  # the reason why the work has to stop
        self.watchers: list[Callable[[Tenure], None]] = []  # called in the renewer's thread at every change
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"Tenure({self.token}, {self.ended or f'{self.remaining():.2f} s left'})"

    def remaining(self) -> float:
        """Return the seconds until the deadline; 0 in a forked child."""
        if self.ended or os.getpid() != self._process:
            return 0.0
        return max(0.0, self.deadline - clock())

    def check(self, who: str) -> None:
        """LeadershipLostError if the term is over, or the work has to stop."""
        if self.remaining() <= 0:
            raise LeadershipLostError(f"{who} any more (token {self.token}{f', {self.ended}' if self.ended else ''})")
        if self.stopping:
            raise LeadershipLostError(f"{who} for long: its work has to stop, {self.stopping} (token {self.token})")

    def extend(self, deadline: float) -> None:
        """Move the deadline, after a renewal."""
        if deadline != self.deadline and not self.ended:
            self.deadline = deadline
            self._notify()

    def stop(self, reason: str) -> None:
        """Make the work stop."""
        self.stopping = reason
        self._notify()

    def end(self, reason: str) -> None:
        """End it."""
        self.ended = reason
        self._notify()

    def _notify(self) -> None:
        for watcher in list(self.watchers):
            watcher(self)
