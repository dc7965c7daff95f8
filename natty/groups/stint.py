"""The time for which the server has this instance pinned, and how it is kept."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from natty.consuming.receipts import Receipts
from natty.elections import clock
from natty.groups.place import seen
from natty.jetstream import JetStream
from natty.pulling.pin import Pin
from natty.pulling.requests import next_subject, read_status, request_body
from natty.wire.message import RawMessage

ANSWER = 0.05  # seconds within which the server answers to a request that keeps the pin
DRIFT = 0.02  # how far the server's clock and ours may differ in rate
FLUSH_TIMEOUT = 2.0


class Stint:
    """The time for which we are pinned on one incarnation of our consumer: handlers may start while it lasts.

    `until` is the end of the lease: no other instance gets our messages before. It counts from before the request was
    sent that the server accepted with our pin, by a clock that runs on while this process is stopped.
    """

    def __init__(self, reads: object, pin: str, receipts: Receipts, margin: float) -> None:
        self.reads, self.pin, self.receipts = reads, pin, receipts
        self.mark = pin.encode()  # in the headers of each message that is delivered in it
        self.watched = False  # whether a timer will stop its handlers
        self.until = 0.0
        self._margin = margin  # seconds before its end in which handlers are stopped, and none is started
        self.open = False  # whether all that our predecessor had begun is settled, or came to us
        self.over = False
        self.interruptions = 0
        self.early: list[RawMessage] = []  # what arrived before it was open
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "over" if self.over else f"{self.until - clock():.2f} s left" if self.open else "taking over"
        return f"Stint({self.pin}, {state})"

    def may_start(self) -> bool:
        """Return whether a handler may be started now."""
        return self.open and not self.over and self.remaining() > 0

    def remaining(self) -> float:
        """Return for how many seconds handlers may run, as things stand."""
        return self.until - self._margin - clock()

    def lasts(self) -> bool:
        """Return whether the lease has not ended: nobody else has our messages yet."""
        return clock() < self.until

    async def changed(self) -> None:
        """Return when that may have changed."""
        self._changed.clear()
        await self._changed.wait()

    def extend(self, until: float) -> None:
        """The server has accepted our pin: the lease lasts until then."""
        self.until = max(self.until, until)
        self._changed.set()

    def begin(self) -> None:
        """Let handlers start."""
        self.open = True
        self._changed.set()

    def interrupt(self) -> None:
        """Let none start until it has begun again: what was on its way to us may come late."""
        self.open = False
        self.interruptions += 1

    def end(self) -> None:
        """Let none start any more."""
        self.over = True
        self._changed.set()


class Kept(NamedTuple):
    """What came of it: whether the server has us pinned, until when (`leader.clock`), and what it tells besides."""

    ours: bool
    until: float
    info: dict[str, Any]


async def keep_pin(jetstream: JetStream, stream: str, consumer: str, pin: Pin, window: float) -> Kept:
    """Ask with our pin for a message of a byte: none is that small. Nobody else is pinned for `window` seconds then.

    Such a request restarts the pin's time. That the server took it says nothing yet: with nothing to deliver it
    does so from anybody while nobody is pinned. Who is, it tells afterwards; an id is never given twice. The time
    counts from before the request was sent. ConsumerNotFoundError, NoRespondersError: there is no consumer any more;
    another NattyError: nobody knows.
    """
    mine, sent = pin.id, clock()
    body = request_body(1, min(ANSWER, window / 10), max_bytes=1, pin=pin.fields())
    answer = await jetstream.connection.request(next_subject(jetstream, stream, consumer), body, timeout=window / 2)
    info = await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}", timeout=FLUSH_TIMEOUT)
    ours = not read_status(answer).is_pin_refused and seen(info).pinned == mine != ""
    return Kept(ours, sent + window * (1 - DRIFT), info)
