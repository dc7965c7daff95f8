"""The backlog of capture's consumers, and a log line with figures while there is work."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from capture.config.consumers import Position, consumer_states
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.reading.remaining import ArchivePosition, Remaining, read_direct_scope
from capture.stores import Store
from natty import ConsumerNotFoundError, Natty, NattyError
from natty.config.units import NANOSECONDS, parse_time, write_count

log = logging.getLogger("capture.summary")


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The messages that a durable consumer still has to capture, over all of its nodes, as the server reports them.

    `pending` messages are not delivered yet, `unacked` ones are not acknowledged. `oldest` is when the stream stored
    the first of all these (Unix seconds), and `first` its sequence; None if there is none. On the subjects in `filters`
    everything is acknowledged up to sequence `acked`. The server delivers a message again that is not acknowledged for
    `ack_wait` seconds. Without a consumer, `remaining` are the messages that the archive does not hold.
    """

    pending: int
    unacked: int
    oldest: float | None = None
    first: int | None = None
    acked: int = 0
    filters: tuple[str, ...] = (">",)
    ack_wait: float = 0.0
    remaining: Remaining | None = None

    @property
    def gets_all(self) -> bool:
        """Whether the consumer captures every subject."""
        return ">" in self.filters


async def read_backlog(natty: Natty, config: CaptureConfig, stream: str = "") -> Backlog:
    """Request the backlog of a stream from the server; default: the configuration's stream. NattyError."""
    stream = stream or config.stream
    states = await consumer_states(natty, config, stream)
    if not states:
        raise ConsumerNotFoundError(f"stream {stream} has no consumer that captures it")
    position = Position.of(states)
    filters: list[str] = []
    found: list[tuple[int, float] | None] = []
    for one in states:
        wanted = one["config"].get("filter_subjects") or [one["config"].get("filter_subject") or ">"]
        filters += wanted
        if one["num_pending"] or one["num_ack_pending"]:
            after = int(one["ack_floor"]["stream_seq"]) + 1
            found += [await _read_stored_at(natty, stream, after, subject) for subject in wanted]
    waiting = [one for one in found if one]
    return Backlog(
        pending=position.pending,
        unacked=position.unacked,
        oldest=min((at for _, at in waiting), default=None),
        first=min((sequence for sequence, _ in waiting), default=None),
        acked=position.floor,
        filters=tuple(filters),
        ack_wait=max(one["config"]["ack_wait"] for one in states) / NANOSECONDS,
    )


async def read_direct_backlog(natty: Natty, store: Store, position: ArchivePosition) -> Backlog:
    """Return what a capture without a consumer still has to store.

    Its `pending` messages are in the stream and not in the archive; `remaining` says which. NattyError; StoreError;
    ManifestError.
    """
    config = position.config
    scope = await read_direct_scope(store, config.stream)
    remaining = await position.read(scope.start if scope else 1)
    unread = remaining.unread
    first = await _read_stored_at(natty, config.stream, unread.first, ">") if unread else None
    return Backlog(
        pending=len(unread),
        unacked=0,
        oldest=first[1] if first else None,
        first=first[0] if first else None,
        acked=remaining.floor,
        ack_wait=config.ack_wait,
        remaining=remaining,
    )


async def _read_stored_at(natty: Natty, stream: str, after: int, subject: str) -> tuple[int, float] | None:
    """Return the first message from this sequence on, and when it was stored; None if there is none any more."""
    try:
        found = await natty.jetstream.request(f"STREAM.MSG.GET.{stream}", {"seq": after, "next_by_subj": subject})
    except NattyError:
        return None
    return int(found["message"]["seq"]), parse_time(found["message"]["time"]) / 1e9


def sentence(node: str, stored: Counter[str], seconds: float, backlog: Backlog, now: float) -> str:
    """Return a sentence about the messages stored in `seconds`, and the backlog."""
    parts = [
        f"{node}: {write_count(stored['messages'], 'message')} in {write_count(stored['blocks'], 'block')} of "
        f"{write_count(stored['bytes'], 'byte')} stored "
        f"in {seconds:.0f} s, {stored['messages'] / seconds:,.0f} messages/s"
    ]
    if stored["failures"]:
        parts.append(f"{write_count(stored['failures'], 'block')} could not be stored")
    waiting = f"{backlog.pending:,} pending, {backlog.unacked:,} unacknowledged"
    if backlog.oldest is not None:
        waiting += f", the oldest {max(0.0, now - backlog.oldest):,.0f} s old"
    return "; ".join([*parts, waiting])


async def summarise(
    node: str,
    stored: Counter[str],
    every: Callable[[], float],
    backlog: Callable[[], Awaitable[Backlog]],
    *,
    clock: Callable[[], float] = time.time,
    elapsed: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Log a line for each period in which messages were stored or are waiting. Never returns.

    Calls `every` before each period for its length in seconds; 0 means "not now". `stored` counts from the start.
    """
    before, began = Counter(stored), elapsed()
    while True:
        wait = every()
        await sleep(wait or 1.0)
        if not wait:
            continue
        try:
            left = await backlog()
        except (NattyError, CaptureError) as error:
            log.warning("the server does not report the backlog: %s", error, extra={"action": "summary"})
            continue
        done, seconds = Counter(stored), elapsed() - began
        news = done - before
        if news or left.pending or left.unacked:
            figures = {"pending": left.pending, "unacknowledged": left.unacked, **news}
            log.info("%s", sentence(node, news, seconds, left, clock()), extra={"action": "summary", **figures})
        before, began = done, elapsed()
