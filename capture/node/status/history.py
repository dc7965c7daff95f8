"""The last hour of each archive, in the memory of the status page's server: messages stored per second, and lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class _Count(NamedTuple):
    """The messages that a node had stored at a point."""

    messages: int
    at: float


@dataclass
class History:
    """The points of each archive, the newest at the end. It reads no clock, and does no I/O."""

    _points: dict[str, deque[Point]] = field(default_factory=dict)
    _counted: dict[str, dict[tuple[str, float], _Count]] = field(default_factory=dict)  # by node and its start

    def add(self, found: Iterable[Status], now: float) -> None:
        """Add a point for each archive. Archives that are not in `found` get one at which nothing is known.

        No point is added less than half a STEP after another one. If the clock was set back, the points after `now` are
        removed.
        """
        by_name = {one.archive: one for one in found}
        for name in by_name:
            self._points.setdefault(name, deque())
        for name, points in self._points.items():
            while points and points[-1].at > now:
                points.pop()
            if points and now < points[-1].at + STEP / 2:
                continue
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
        """Return the point of `now`.

        The clock of a node may be wrong, and the clock of this process may be set at any time.
        """
        running = [one.node for one in status.board.nodes if not one.is_late]
        counts = {(one.node, one.since): _Count(one.stored.get("messages", 0), now) for one in running}
        known, began = self._counted.setdefault(status.archive, {}), now - WINDOW - STEP / 2
        lag = _find_lag(status)
        if not counts:
            return Point(now, lag=lag)
        if not known:
            known |= counts
            return Point(now, _average(counts, now), lag, 0)
        total = next((one.total for one in reversed(points) if one.total is not None), 0)
        for key, count in counts.items():
            total += _grown(known.get(key), count, is_new=bool(points) and points[-1].at < key[1] <= now, began=began)
        kept = {(one.node.node, one.node.since) for one in status.board.nodes}
        self._counted[status.archive] = {key: count for key, count in (known | counts).items() if key in kept}
        window = [one for one in points if one.total is not None and one.at >= began]
        rate = (total - (window[0].total or 0)) / (now - window[0].at) if window else None
        return Point(now, rate, lag, total)


def _average(counts: dict[tuple[str, float], _Count], now: float) -> float | None:
    """Return the messages stored per second since the nodes started; None if one has not started yet by its clock."""
    if any(since > now for _, since in counts):
        return None
    return sum(count.messages / max(now - since, STEP) for (_, since), count in counts.items())


def _grown(known: _Count | None, count: _Count, *, is_new: bool, began: float) -> int:
    """Return how many messages a node has stored since `known`, its count before; `began` is the window's begin.

    1. Without an earlier count, all messages of a node that `is_new` (it started after the last point) are counted. Of
    any other node nothing is counted yet: it may have stored its messages long ago. 2. Nothing is counted if the
    earlier count is older than the window: the messages may have been stored before it. 3. The result is 0 or more.
    """
    if known is None:
        return count.messages if is_new else 0
    return max(0, count.messages - known.messages) if known.at >= began else 0


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
