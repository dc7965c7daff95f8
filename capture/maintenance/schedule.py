"""Computes when periodic work is due, as a function of the time, so that a new leader needs no memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from capture.errors import ConfigError
from natty.config.cron import Cron

LOOK = 10.0
"""Seconds between two checks of the waiting blocks, if their number or size can begin a slot."""


def next_run(now: float, every: float) -> float:
    """Return when the next slot begins, always after `now`: slots start at the multiples of `every` (Unix seconds).

    After any number of missed slots only the next one follows: no stampede after an outage. ValueError if `every` is
    not above 0.
    """
    if every <= 0:
        raise ValueError(f"every must be above 0 seconds, not {every}")
    return now // every * every + every


def is_due(since: float, every: float, turn: float) -> bool:
    """Return whether work is due that was last done `since` seconds ago and that is done every `every` seconds.

    It can be done only every `turn` seconds, sometimes a little earlier or later: in the turn that is nearest to its
    time.
    """
    return since >= every - turn / 2


@dataclass(frozen=True)
class Moment:
    """The time at which a run decides what is due. Blocks stored after `stored_by` (Unix seconds) wait."""

    now: float
    stored_by: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When waiting blocks are checked: every `every` seconds, or by a cron expression (in UTC).

    A slot takes the blocks that were stored before it began, in as many runs as needed; missed slots count as one. A
    slot begins at once when this many blocks or bytes wait (0: no limit). ConfigError if the cron expression is not
    valid.
    """

    every: float = 300.0
    cron: str = ""
    waiting_files: int = 0
    waiting_bytes: int = 0
    _times: Cron | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "_times", Cron(self.cron) if self.cron else None)
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def moment(self, now: float, files: int, size: int) -> Moment:
        """Return the moment that decides, at `now`, which blocks are due; pure. So many wait, with so many bytes."""
        if 0 < self.waiting_files <= files or 0 < self.waiting_bytes <= size:
            return Moment(now)
        slot = self.last(now)
        return Moment(slot, slot)

    def last(self, now: float) -> float:
        """Return when the slot of `now` began; -inf if there was none."""
        return self._times.last(now) if self._times else now // self.every * self.every

    def next(self, now: float) -> float:
        """Return when to check again, always after `now`."""
        begins = self._times.next(now) if self._times else next_run(now, self.every)
        return min(begins, now + LOOK) if self.waiting_files or self.waiting_bytes else begins


AT_ONCE = Schedule(waiting_files=1)
"""Takes all waiting blocks, at any time."""
