"""When something that happens every so often is due: a function of the time, so that a new leader needs no memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from capture.archive.manifest import Stored
from capture.errors import ConfigError

LOOK = 10.0
"""Seconds between two looks at how much waits, where that can begin a slot."""


def next_run(now: float, every: float) -> float:
    """Return when the next slot begins, always after `now`: slots start at the multiples of `every` (Unix seconds).

    However many slots were missed, the next one comes alone: no stampede after an outage. ValueError if `every` is not
    above 0.
    """
    if every <= 0:
        raise ValueError(f"every must be above 0 seconds, not {every}")
    return now // every * every + every


@dataclass(frozen=True)
class Moment:
    """As of when it is decided what is due: blocks that were stored later than `stored_by` wait (Unix seconds)."""

    now: float
    stored_by: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When what waits is looked at: `every` so many seconds, or by a cron expression (in UTC).

    A slot takes what was stored before it began, in as many runs as that needs, and missed slots are one. When so many
    blocks or bytes wait, 0 being no limit, a slot begins at once. ConfigError for what is no cron expression.
    """

    every: float = 300.0
    cron: str = ""
    waiting_files: int = 0
    waiting_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.cron:
            return
        try:
            CronSim(self.cron, datetime.fromtimestamp(0, UTC))
        except CronSimError as error:
            raise ConfigError(
                f"{self.cron!r} is no cron expression (minute hour day month weekday): {error}"
            ) from error

    def moment(self, now: float, waiting: Sequence[Stored]) -> Moment:
        """Return as of when it is decided, at `now`, which of the waiting blocks are due; pure."""
        files, size = len(waiting), sum(one.bytes for one in waiting)
        if 0 < self.waiting_files <= files or 0 < self.waiting_bytes <= size:
            return Moment(now)
        slot = self.last(now)
        return Moment(slot, slot)

    def last(self, now: float) -> float:
        """Return when the slot began that `now` is in; -inf if there was none."""
        if not self.cron:
            return now // self.every * self.every
        found = CronSim(self.cron, _after(now), reverse=True)
        return next((slot.timestamp() for slot in found), -math.inf)

    def next(self, now: float) -> float:
        """Return when to look again, always after `now`."""
        if not self.cron:
            begins = next_run(now, self.every)
        else:
            found = CronSim(self.cron, datetime.fromtimestamp(now, UTC))
            begins = next((slot.timestamp() for slot in found), math.inf)
        return min(begins, now + LOOK) if self.waiting_files or self.waiting_bytes else begins


@dataclass(frozen=True)
class AtOnce(Schedule):
    """Whatever waits, whenever it is asked for."""

    def moment(self, now: float, waiting: Sequence[Stored]) -> Moment:
        """Return that `now` decides, about all of them."""
        return Moment(now)


AT_ONCE = AtOnce()


def _after(now: float) -> datetime:
    """Return the first whole second after `now`, from which one looks back for a slot that may begin right now."""
    return datetime.fromtimestamp(math.floor(now), UTC) + timedelta(seconds=1)
