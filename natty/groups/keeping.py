"""How a pinned client keeps its pin, and learns until when nobody else gets its messages."""

from __future__ import annotations

from typing import Any, NamedTuple

from natty.elections import clock
from natty.groups.place import seen
from natty.jetstream import JetStream
from natty.pulling.pin import Pin
from natty.pulling.requests import next_subject, read_status, request_body

ANSWER = 0.05  # seconds within which the server answers to a request that keeps the pin
DRIFT = 0.02  # how far the server's clock and ours may differ in rate
FLUSH_TIMEOUT = 2.0


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
