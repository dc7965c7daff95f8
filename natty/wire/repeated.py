"""One log line, with a count, where a state makes thousands: each block, message or try while a server is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

EVERY = 10.0  # seconds that further lines of a state are counted before one is logged


@dataclass
class _State:
    """What happened in a state since its last line: how often, and to how many messages."""

    logged: float
    level: int
    more: int = 0
    messages: int = 0


class Repeated:
    """Logs the first line of a state at once. Further ones are counted, and become one line every EVERY seconds.

    In an event loop that line comes by itself, also when the state is over; elsewhere with the next one.
    """

    def __init__(
        self, log: logging.Logger, *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._every, self._clock = log, every, clock
        self._states: dict[str, _State] = {}

    def __repr__(self) -> str:
        return f"Repeated({self._states})"

    def warning(self, state: str, text: str, *, messages: int = 0, extra: Mapping[str, object] | None = None) -> None:
        """Log `text`, or count it as one more of this `state`, that concerns so many messages."""
        self._say(logging.WARNING, state, text, messages, extra)

    def info(self, state: str, text: str, *, messages: int = 0, extra: Mapping[str, object] | None = None) -> None:
        """Do the same at level info."""
        self._say(logging.INFO, state, text, messages, extra)

    def error(self, state: str, text: str, *, messages: int = 0, extra: Mapping[str, object] | None = None) -> None:
        """Do the same at level error."""
        self._say(logging.ERROR, state, text, messages, extra)

    def _say(self, level: int, state: str, text: str, messages: int, extra: Mapping[str, object] | None) -> None:
        now, known = self._clock(), self._states.get(state)
        if known and now - known.logged >= self._every:
            self._sum_up(state)
            known = self._states.get(state)
        if known:
            known.more += 1
            known.messages += messages
            return
        self._states[state] = _State(now, level)
        self._log.log(level, "%s", text, extra=extra)
        try:
            asyncio.get_running_loop().call_later(self._every, self._sum_up, state)
        except RuntimeError:  # no event loop: the next one sums up
            return

    def _sum_up(self, state: str) -> None:
        """Log what was counted of a state, and begin anew."""
        known = self._states.pop(state, None)
        if known and known.more:
            about = f", about {known.messages:,} messages" if known.messages else ""
            text = "%s: %d more like the last one%s within %.0f s"
            seconds = self._clock() - known.logged
            count = {"action": "repeated", "count": known.more}
            self._log.log(known.level, text, state, known.more, about, seconds, extra=count)
