"""When a pipeline runs: its schedule, and the time after failures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from capture.maintenance.schedule import Schedule
from capture.pipelines.document import Run

RETRY, LONGEST_RETRY = 30.0, 3600.0
"""Seconds after a failed run until the next one; they double with each further failure."""
FAST = 60.0
"""Seconds by which the clock of the last leader may have been ahead; a run that began later does not delay the next."""


def time_to_retry(runs: Sequence[Run], now: float) -> float:
    """Return the seconds until a pipeline may run again after failed runs; 0 if the last one did not fail."""
    failures = 0
    for one in reversed(runs):
        if not one.error:
            break
        failures += 1
    if not failures:
        return 0.0
    ended, wait = runs[-1].ended, min(LONGEST_RETRY, RETRY * 2 ** min(failures - 1, 20))
    return ended + wait - now if ended - FAST <= now < ended + wait else 0.0


def is_due(times: Schedule, runs: Sequence[Run], now: float, looked: float = 0.0) -> bool:
    """Return whether a slot has begun since the last run of a pipeline, and the wait after failed runs is over.

    `looked` is the time at which the leader last found nothing new; it counts as a run. 0: the leader has not looked.
    """
    began = max((one for one in (looked, *(one.began for one in runs[-1:])) if one <= now + FAST), default=0.0)
    return not (began and began >= times.last(now)) and not time_to_retry(runs, now)


def find_next(times: Schedule, runs: Sequence[Run], now: float) -> float:
    """Return when a pipeline is due next, if a leader looks at each slot (Unix seconds; infinite: never)."""
    retry = time_to_retry(runs, now)
    at = now + retry
    return at if retry and runs[-1].began < times.last(at) else times.next(at)
