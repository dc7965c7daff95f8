"""When something that happens every so often is due: a function of the time, so that a new leader needs no memory."""

from __future__ import annotations


def due(last_run: float | None, now: float, every: float) -> bool:
    """Tell whether a slot has begun since the last run; slots start at the multiples of `every` (Unix seconds).

    However many slots were missed, one run makes up for all: no stampede after an outage. Without a last run, at once.
    A clock that was set back is no reason to wait for it.
    """
    return last_run is None or last_run > now or last_run < slot(now, every)


def slot(now: float, every: float) -> float:
    """Return when the slot of `now` began. ValueError if `every` is not above 0."""
    if every <= 0:
        raise ValueError(f"every must be above 0 seconds, not {every}")
    return now // every * every


def next_run(now: float, every: float) -> float:
    """Return when the next slot begins: always after `now`."""
    return slot(now, every) + every
