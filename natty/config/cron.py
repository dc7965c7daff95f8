"""The times of a cron expression in a time zone, as functions of the time."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from cronsim import CronSim

NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
"""Names of expressions, as crontab has them."""
REPEATED = timedelta(hours=2)  # how far a clock is set back at most when daylight saving ends: at Troll in Antarctica


class Cron:
    """A cron expression: minute, hour, day, month, weekday, or "@daily" and the like. All times are Unix seconds.

    Daylight saving, as in Debian's cron: if neither the minute nor the hour begins with `*`, a time that the change
    skips comes right after the change, and a time that comes twice counts once, the first time. Other expressions
    follow the clock: their times in a skipped hour are left out, and those in a repeated hour come twice.
    ValueError if the expression or the time zone is not valid, or if no time matches.
    """

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        self.expression = expression
        self.timezone = timezone
        self._fields = NAMED.get(expression.strip(), expression)
        self._zone = _zone_of(timezone)
        self._check()

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, {self.timezone})"

    def _check(self) -> None:
        from cronsim import CronSimError

        wrong = f"{self.expression!r} is not a cron expression (minute hour day month weekday)"
        if len(self._fields.split()) != 5:  # the library takes six, too: seconds first
            raise ValueError(f"{wrong}: write five fields, or one of {', '.join(NAMED)}")
        try:
            never = self.next(0.0) == math.inf
        except CronSimError as error:
            raise ValueError(f"{wrong}: {error}") from error
        if never:
            raise ValueError(f"{self.expression!r} is not a useful cron expression: no time matches it")

    def last(self, now: float) -> float:
        """Return the last time that is not after `now`; -inf if there is none."""
        # Looking back from the next whole second finds a time that is right now.
        begin = datetime.fromtimestamp(math.floor(now) + 1, self._zone)
        if begin.fold:  # the library counts a fixed time of a repeated hour once, but finds it only by its clock time
            begin = (begin.astimezone(UTC) + REPEATED).astimezone(self._zone)
        return next((time for slot in self._search(begin, back=True) if (time := slot.timestamp()) <= now), -math.inf)

    def next(self, now: float) -> float:
        """Return the first time after `now`; inf if there is none."""
        found = self._search(datetime.fromtimestamp(math.floor(now), self._zone))
        return next((time for slot in found if (time := slot.timestamp()) > now), math.inf)

    def _search(self, begin: datetime, *, back: bool = False) -> CronSim:
        from cronsim import CronSim

        return CronSim(self._fields, begin, reverse=back)


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, OSError, ValueError):  # an unknown name, a folder, a path
        text = f"there is no time zone {name!r} here; write one such as Europe/Berlin, or install the package tzdata"
        raise ValueError(text) from None
