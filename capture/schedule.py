"""When something that happens every so often is due: a function of the time, so that a new leader needs no memory."""

from __future__ import annotations


def next_run(now: float, every: float) -> float:
    """Return when the next slot begins, always after `now`: slots start at the multiples of `every` (Unix seconds).

    However many slots were missed, the next one comes alone: no stampede after an outage. ValueError if `every` is not
    above 0.
    """
    if every <= 0:
        raise ValueError(f"every must be above 0 seconds, not {every}")
    return now // every * every + every
