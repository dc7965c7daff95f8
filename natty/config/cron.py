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
DAY = 86_400  # seconds; no clock of a time zone is changed by more


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
        # Looking back from the next second finds a time that is right now.
        begin, found = self._clock(now) + timedelta(seconds=1) + self._set_back(now - DAY), -math.inf
        for slot in self._search(begin, back=True):
            moments = self._moments(slot)
            found = max([found, *(one for one in moments if one <= now)])
            if moments and moments[-1] <= now:
                break
        return found

    def next(self, now: float) -> float:
        """Return the first time after `now`; inf if there is none."""
        begin, found = self._clock(now) - self._set_back(now), math.inf
        for slot in self._search(begin):
            moments = self._moments(slot)
            found = min([found, *(one for one in moments if one > now)])
            if moments and moments[0] > now:
                break
        return found

    def _set_back(self, since: float) -> timedelta:
        """Return by how much a clock of the time zone is set back within a day: so much it shows twice."""
        return max(timedelta(), self._clock(since) + timedelta(seconds=DAY) - self._clock(since + DAY))

    def _clock(self, now: float) -> datetime:
        """Return what a clock of the time zone shows, in whole seconds."""
        return datetime.fromtimestamp(math.floor(now), self._zone).replace(tzinfo=None)

    def _moments(self, slot: datetime) -> list[float]:
        """Return when a clock of the time zone shows a time that matches, in order: once, twice or never."""
        first, second = (slot.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        if not self._is_fixed:
            return sorted({one.timestamp() for one in (first, second) if self._clock(one.timestamp()) == slot})
        while self._clock(first.timestamp()) != slot:  # skipped
            slot += timedelta(minutes=1)
            first = slot.replace(tzinfo=self._zone)
        return [first.timestamp()]

    @property
    def _is_fixed(self) -> bool:
        """Whether neither the minute nor the hour begins with a star."""
        return not any(field.startswith("*") for field in self._fields.split()[:2])

    def _search(self, begin: datetime, *, back: bool = False) -> CronSim:
        """Return the matching times of a clock that is never changed: the library loses some when one is."""
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
