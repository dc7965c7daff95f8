"""The last hour of each archive, in the memory of the status page's server: messages stored per second, and lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from capture.ingest.board import StreamState
from capture.node.status.status import Status

STEP = 10.0
"""Seconds between two points."""
KEPT = 3600.0
"""Seconds for which points are kept."""
WINDOW = 60.0
"""Seconds over which the rate is averaged: nodes report every few seconds, and store whole blocks."""


@dataclass(frozen=True)
class Point:
    """An archive at `at` (Unix seconds). What is not known is None.

    `stored` messages were stored per second over the last WINDOW, or since the nodes started at the first point. The
    oldest message that is not captured is `lag` seconds old; 0: there is none. `total` counts the stored messages since
    the first point.
    """

    at: float
    stored: float | None = None
    lag: float | None = None
    total: int | None = None


@dataclass
class History:
    """The points of each archive, the newest at the end. It reads no clock, and does no I/O."""

    _points: dict[str, deque[Point]] = field(default_factory=dict)
    _counted: dict[str, dict[tuple[str, float], int]] = field(default_factory=dict)  # by node and its start

    def add(self, found: Iterable[Status], now: float) -> None:
        """Add a point for each archive. Archives that are not in `found` get one at which nothing is known."""
        by_name = {one.archive: one for one in found}
        for name in by_name:
            self._points.setdefault(name, deque())
        for name, points in self._points.items():
            points.append(self._measure(by_name[name], points, now) if name in by_name else Point(now))
            while points[0].at < now - KEPT:
                points.popleft()

    def lacks(self, found: Iterable[Status]) -> bool:
        """Return whether one of these archives has no point yet."""
        return any(one.archive not in self._points for one in found)

    def as_dict(self) -> dict[str, Any]:
        """Return the points for programs: by archive, lists of time, messages stored per second, and lag."""
        rows = {name: [[one.at, one.stored, one.lag] for one in points] for name, points in self._points.items()}
        return {"step": STEP, "kept": KEPT, "window": WINDOW, "archives": rows}

    def _measure(self, status: Status, points: deque[Point], now: float) -> Point:
        running = [one.node for one in status.board.nodes if not one.is_late]
        counts = {(one.node, one.since): one.stored.get("messages", 0) for one in running}
        known = self._counted.setdefault(status.archive, {})
        lag = _find_lag(status)
        if not counts:
            return Point(now, lag=lag)
        if not known:
            known |= counts
            average = sum(count / (now - since) for (_, since), count in counts.items() if since < now)
            return Point(now, average, lag, 0)
        total = next((one.total for one in reversed(points) if one.total is not None), 0)
        for key, count in counts.items():
            # A node that has started since the last point had stored nothing then.
            total += count - known.get(key, 0 if not points or key[1] > points[-1].at else count)
        kept = {(one.node.node, one.node.since) for one in status.board.nodes}
        self._counted[status.archive] = {key: count for key, count in (known | counts).items() if key in kept}
        window = [one for one in points if one.total is not None and one.at >= now - WINDOW - STEP / 2]
        rate = (total - (window[0].total or 0)) / (now - window[0].at) if window else None
        return Point(now, rate, lag, total)


def known_lag(stream: StreamState) -> float | None:
    """Return the age in seconds of the oldest message that is not captured; 0: there is none, None: it is not known."""
    return stream.lag if stream.pending or stream.unacked else 0.0


def _find_lag(status: Status) -> float | None:
    """Return the largest lag of the archive's streams; None if one of them is not known."""
    streams = status.board.state.streams if status.board.state else []
    if not streams or not all(map(status.knows, streams)):
        return None
    lags = [known_lag(one) for one in streams]
    return None if None in lags else max(lag for lag in lags if lag is not None)
