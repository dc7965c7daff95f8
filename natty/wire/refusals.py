"""What the server does not permit a connection: logged once a session and kind, and remembered while it goes on."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from natty.wire.repeated import Repeated

LASTS = 60.0  # seconds after which a refusal that did not come again is taken for over
COUNTED_FOR = 300.0  # seconds between two lines with the count of a refusal that goes on
NUMBERS = re.compile(r'(?:\.\d+){5,}(?:\.[^".]*)?"')  # the end of an acknowledgement's subject
RANDOM = re.compile(r'(?<=[._])[0-9a-f]{16,}(?=[."])')  # of an inbox, or of a consumer without a name


class Refusals:
    """Which kinds of subjects the server refused a connection; what only numbers tell apart is one kind."""

    def __init__(self, log: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._last: dict[str, float] = {}
        self.begin()

    def __repr__(self) -> str:
        return f"Refusals({self.now()})"

    def begin(self) -> None:
        """Begin a session: what is refused again is logged again."""
        self._repeated = Repeated(self._log, every=COUNTED_FOR, clock=self._clock)
        self._said: set[str] = set()

    def add(self, text: str, most: int) -> None:
        """Take note of a refusal, in the server's words. Log `most` kinds of a session."""
        kind = RANDOM.sub("*", NUMBERS.sub('.>"', text))
        new = kind not in self._said
        if new and len(self._said) >= most:
            return
        self._last[kind] = self._clock()
        self._said.add(kind)
        what = "give this user that permission (see `natty permissions`, `capture permissions`)"
        self._repeated.error(kind, f"the server refused: {kind}: {what}", extra={"action": "refused"})
        if new and len(self._said) == most:
            more = "the server refused %d different things: others of this session are not logged"
            self._log.error(more, most, extra={"action": "refused"})

    def now(self) -> list[str]:
        """Return the kinds that were refused within the last LASTS seconds, in the server's words."""
        since = self._clock() - LASTS
        self._last = {kind: at for kind, at in self._last.items() if at > since}
        return list(self._last)
