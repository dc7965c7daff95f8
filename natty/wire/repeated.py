"""One log line, with a count, where a state makes thousands: each block, message or try while a server is away."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

EVERY = 10.0  # seconds for which further lines of a state are counted before one is logged
ONCE = math.inf  # `every` for states that last, such as a damaged record: their lines are not counted
MOST_STATES = 100  # that are remembered at a time
REFUSALS_EVERY = 300.0  # seconds between two lines with the count of a refusal
REFUSAL_LASTS = 60.0  # seconds after which a refusal that was not repeated counts as over
_NUMBERS = re.compile(r'(?:\.\d+){5,}(?:\.[^".]*)?"')  # the end of an acknowledgement's subject
_ID = re.compile(r' \(sid "\d+"\)$')  # of a subscription that a new configuration does not permit
_RANDOM = re.compile(r'(?<=[._])[0-9a-f]{16,}(?=[."])')  # of an inbox, or of a consumer without a name


@dataclass
class _State:
    """What happened in a state since its last line: how often, and to how many messages."""

    logged: float
    level: int
    text: str
    more: int = 0
    messages: int = 0


class Repeated:
    """Logs the first line of a state at once. Further ones are counted, and become one line every `every` seconds.

    In an event loop that line is logged when the time is up, also when the state is over; elsewhere with the next line.
    With `every=ONCE` a state's further lines are dropped, until `forget`; a line with another text is logged at once.
    Of over MOST_STATES states, one line says that further ones are not logged.
    """

    def __init__(
        self, log: logging.Logger, *, every: float = EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._every, self._clock = log, every, clock
        self._states: dict[str, _State] = {}
        self._is_full = False

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

    def forget(self, state: str) -> None:
        """End the state: its next line is logged at once. A count that was not logged yet is dropped."""
        self._states.pop(state, None)

    def finish(self) -> None:
        """End all states: what was counted is logged now, and not when their time is up."""
        for state in list(self._states):
            self._sum_up(state)

    def _say(self, level: int, state: str, text: str, messages: int, extra: Mapping[str, object] | None) -> None:
        now, known = self._clock(), self._states.get(state)
        if known and self._is_due(known, now, text):
            self._sum_up(state)
            known = self._states.get(state)
        if known:
            known.more += 1
            known.messages += messages
        elif self._has_room(now):
            self._states[state] = _State(now, level, text)
            self._log.log(level, "%s", text, extra=extra)
            self._sum_up_later(state)
        elif not self._is_full:
            self._is_full = True
            more = "%d different lines of this kind were logged; no further ones are logged after this one: %s"
            self._log.log(level, more, len(self._states), text, extra=extra)

    def _is_due(self, known: _State, now: float, text: str) -> bool:
        return now - known.logged >= self._every or (self._every == ONCE and known.text != text)

    def _has_room(self, now: float) -> bool:
        if len(self._states) >= MOST_STATES:
            for state in [state for state, one in self._states.items() if now - one.logged >= self._every]:
                self._sum_up(state)
        if len(self._states) >= MOST_STATES:
            return False
        self._is_full = False
        return True

    def _sum_up_later(self, state: str) -> None:
        if self._every < ONCE:
            try:
                asyncio.get_running_loop().call_later(self._every, self._sum_up, state)
            except RuntimeError:  # no event loop: the next line sums up
                return

    def _sum_up(self, state: str) -> None:
        """Log what was counted of a state, and begin anew."""
        known = self._states.pop(state, None)
        if known and known.more and self._every < ONCE:
            about = f", about {known.messages:,} messages" if known.messages else ""
            text = "%s: %d more like the last one%s within %.0f s"
            seconds = self._clock() - known.logged
            count = {"action": "repeated", "count": known.more}
            self._log.log(known.level, text, state, known.more, about, seconds, extra=count)


class Refusals:
    """What the server does not permit a connection: logged once for each session and kind.

    Subjects that differ in numbers or random names alone are one kind. `listeners` get what may not be published.
    """

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.listeners: list[Callable[[str], None]] = []
        self._log, self._clock = log, clock
        self._last: dict[str, float] = {}
        self.begin()

    def __repr__(self) -> str:
        return f"Refusals({self.recent()})"

    def begin(self) -> None:
        """Begin a session: what is refused again is logged again."""
        self._repeated = Repeated(self._log, every=REFUSALS_EVERY, clock=self._clock)

    def add(self, text: str) -> None:
        """Log a refusal, in the server's words, and call the listeners with it if it is about publishing."""
        kind = _RANDOM.sub("*", _NUMBERS.sub('.>"', _ID.sub("", text)))
        if kind in self._last or len(self._last) < MOST_STATES or len(self.recent()) < MOST_STATES:
            self._last[kind] = self._clock()
        what = "give this user that permission (see `natty permissions`, `capture permissions`)"
        self._repeated.error(kind, f"the server refused: {kind}: {what}", extra={"action": "refused"})
        if "for subscription" not in text.lower():
            for listener in list(self.listeners):
                listener(text)

    def recent(self) -> list[str]:
        """Return the kinds that were refused within the last REFUSAL_LASTS seconds, in the server's words."""
        since = self._clock() - REFUSAL_LASTS
        self._last = {kind: at for kind, at in self._last.items() if at > since}
        return list(self._last)
