"""How far a stream is captured: what stream and consumer say, and what the archive holds of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from capture.asked import read_records
from capture.config import CaptureConfig
from capture.coverage import Coverage
from capture.sequences import Sequences
from capture.state import StreamState, server_time
from capture.stores import Store
from capture.summary import Backlog, read_backlog
from natty import Natty, NattyError
from natty.stream import stream_state

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """What was said of a stream, and when, by the server's clock; before a sweep, which finds what was acknowledged."""

    stream: str
    first: int
    last: int
    now: float
    backlog: Backlog
    begin: int | None  # the sequence that the first durable began with, if that was recorded
    whole: bool  # whether messages of all subjects were to be captured, always

    async def covered(self, natty: Natty, found: Coverage | None) -> StreamState:
        """Return how far the stream is captured. `found` is what is held of it; None: it can't be told this time."""
        known = found or Coverage()
        first = None if self.begin is None else max(1, self.first, self.begin)
        gaps = found.gaps(self.backlog.acked, first) if found else Sequences()
        missing = await self._still_there(natty, gaps) if found and self.whole else None
        oldest = self.backlog.oldest
        return StreamState(
            stream=self.stream,
            first=self.first,
            last=self.last,
            acked=self.backlog.acked,
            pending=self.backlog.pending,
            unacked=self.backlog.unacked,
            lag=None if oldest is None else max(0.0, self.now - oldest),
            held=len(known.held),
            overlaps=len(known.overlaps),
            removed=len(known.removed - known.held),
            gaps=len(gaps),
            gaps_are=gaps.describe() if gaps else "",
            missing=None if missing is None else len(missing),
            missing_are=missing.describe() if missing else "",
        )

    async def _still_there(self, natty: Natty, gaps: Sequences) -> Sequences | None:
        """Return which of these the stream has: acknowledged, not stored, and neither deleted nor expired."""
        if not gaps:
            return gaps
        try:
            state = await stream_state(natty.jetstream, self.stream, deleted=True)
        except NattyError as error:
            log.info("it can't be told what of %s is missing: %s", self.stream, error, extra={"action": "no_progress"})
            return None
        there = Sequences.from_range(max(1, state["first_seq"]), state["last_seq"])
        return (gaps & there) - Sequences.from_iterable(state.get("deleted") or ())


async def read_progress(natty: Natty, store: Store, stream: str, config: CaptureConfig) -> Progress | None:
    """Ask the server how far a stream is captured; None if it does not say, or has no such stream or consumer.

    StoreError; ManifestError if what was asked of a durable can't be read.
    """
    try:
        backlog = await read_backlog(natty, config, stream)
        info: dict[str, Any] = await natty.jetstream.request(f"STREAM.INFO.{stream}")
    except NattyError as error:
        log.info("it can't be told how far %s is captured: %s", stream, error, extra={"action": "no_progress"})
        return None
    state, asked = info["state"], await read_records(store, stream)
    return Progress(
        stream,
        first=int(state["first_seq"]),
        last=int(state["last_seq"]),
        now=server_time(info),
        backlog=backlog,
        begin=min((one.start for one in asked), default=None),
        whole=backlog.gets_all and not any(one.filter_subjects for one in asked),
    )
