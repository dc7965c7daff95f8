"""Requests for the messages of a pull consumer, and the statuses that answer them.

Protocol: `$JS.API.CONSUMER.MSG.NEXT`, ADR-13 and ADR-37. The server answers a request on its reply subject, the inbox,
with messages and with statuses: an idle heartbeat, or the end of the request.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, TypedDict

import msgspec

from natty.config.options import Count, Range, ServerSeconds, check_options
from natty.config.units import NANOSECONDS
from natty.errors import NotConnectedError, UnsupportedError
from natty.jetstream import JetStream
from natty.wire.ack import ACKS, are_acks, nak
from natty.wire.connection import Connection
from natty.wire.message import Batch, RawMessage, Sink, parse_headers, status_of

logger = logging.getLogger("natty.pull")

HAND_BACK_DELAY = 0.1  # seconds before the server delivers a message again that we handed back: by then we have left
_HEARTBEAT = 100
_NOTHING, _TIMED_OUT, _REFUSED = 404, 408, 409
_PIN_REFUSED = 423  # another client is pinned, or none is
_TOO_LARGE = "message size exceeds maxbytes"  # only its text identifies this status
_COMPLETED = "Batch Completed"

ReadPause = Annotated[float, Range(0, 0.1)]
"""Seconds; see `PullSettings.read_pause`."""


class PullSettings(TypedDict, total=False):
    """The options of `pull` as keywords: the fields of `PullOptions`."""

    max_messages: int
    """Messages that are requested, or arrived and not finished, at one time. Default 8192."""
    max_bytes: int
    """Bytes of these messages; a larger message is delivered alone. Default 32 MiB."""
    expires: float
    """Seconds that a request lives: a request of a dead connection takes messages until then. Default 10.0."""
    heartbeat: float
    """Seconds between two heartbeats of a server that has nothing to deliver. Default 5.0."""
    tick: float | None
    """Seconds without a message after which an empty batch is yielded; None: never. Default None."""
    read_pause: float
    """Seconds that the connection reads nothing after a read that brought messages and less than 32 KiB: fewer reads
    take less CPU. At most 0.1: everything that comes over the connection may come later by as much. Default 0.0."""


@dataclass(frozen=True, kw_only=True)
class PullOptions:
    """Limits of requests. They count requested messages, and those that arrived and are not finished, to bound memory.

    In Python a message takes about 400 bytes more than `size_of` counts.
    """

    max_messages: Count = 8192
    max_bytes: Count = 32 * 1024 * 1024
    expires: ServerSeconds = 10.0
    heartbeat: ServerSeconds = 5.0
    tick: ServerSeconds | None = None
    read_pause: ReadPause = 0.0

    def __post_init__(self) -> None:
        check_options(self)
        if self.heartbeat * 2 > self.expires:
            raise UnsupportedError(
                f"a heartbeat of {self.heartbeat:g} s is over half of expires, {self.expires:g} s; servers refuse that"
            )


def next_subject(jetstream: JetStream, stream: str, consumer: str) -> str:
    """Return the subject of requests for a consumer's messages."""
    return f"{jetstream.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"


def request_body(
    batch: int, expires: float, *, heartbeat: float = 0.0, max_bytes: int = 0, pin: dict[str, str] | None = None
) -> bytes:
    """Return a request for `batch` messages. It lives `expires` seconds; a `max_bytes` of 0 sets no limit."""
    body: dict[str, int | str] = {"batch": batch, "expires": int(expires * NANOSECONDS)}
    if heartbeat:
        body["idle_heartbeat"] = int(heartbeat * NANOSECONDS)
    if max_bytes:
        body["max_bytes"] = max_bytes
    return msgspec.json.encode(body | (pin or {}))


@dataclass(frozen=True, slots=True)
class Request:
    """The limits of one request; `max_bytes` is 0 if the message may have any size."""

    batch: int
    max_bytes: int


@dataclass
class PullCounts:
    """What a pull has counted since its start."""

    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0  # delivered messages that had been delivered before
    requests: int = 0
    renewals: int = 0  # sessions after the first


class Status(NamedTuple):
    """The server's status of a request. `messages` and `size_bytes` are the rest of it; None: the server sent none.

    `last_delivery` is the number of the consumer's last delivery, 0 if the server did not send it.
    """

    code: int
    text: str
    messages: int | None = None
    size_bytes: int = 0
    last_delivery: int = 0

    @property
    def is_heartbeat(self) -> bool:
        """Whether the request continues."""
        return self.code == _HEARTBEAT

    @property
    def is_end(self) -> bool:
        """Whether the request ended normally: no messages, its time is over, or all were delivered."""
        return self.code in (_NOTHING, _TIMED_OUT) or self.text == _COMPLETED

    @property
    def is_timeout(self) -> bool:
        """Whether the time of the request is over."""
        return self.code == _TIMED_OUT

    @property
    def is_too_large(self) -> bool:
        """Whether the next message is larger than the rest of `max_bytes`."""
        return self.code == _REFUSED and self.text.lower() == _TOO_LARGE

    @property
    def is_pin_refused(self) -> bool:
        """Whether another client of the priority group is pinned, or none is."""
        return self.code == _PIN_REFUSED


def read_status(raw: RawMessage) -> Status:
    """Return the status that a message without an ack subject carries."""
    code, text = status_of(raw[2])
    headers = parse_headers(raw[2])
    left, size, last = (
        headers.get(f"Nats-{name}", [""])[0] for name in ("Pending-Messages", "Pending-Bytes", "Last-Consumer")
    )
    return Status(code, text, int(left) if left else None, int(size or 0), int(last or 0))


def split_statuses(batch: Batch) -> tuple[Batch, list[RawMessage]]:
    """Return the messages of a stream in what an inbox got, and the statuses among them."""
    if are_acks(batch.replies):
        return batch, []
    statuses = [raw for raw in batch.raw if not raw[1].startswith(ACKS)]
    return Batch([raw for raw in batch.raw if raw[1].startswith(ACKS)]), statuses


class Requests:
    """Requests for messages of one consumer with a common inbox. `sink` receives the answers."""

    def __init__(self, jetstream: JetStream, stream: str, consumer: str, sink: Sink) -> None:
        self._connection = jetstream.connection
        self._subject = next_subject(jetstream, stream, consumer)
        self._inbox = self._connection.new_inbox()
        self.subscription = self._connection.subscribe(self._inbox.decode(), sink)

    def __repr__(self) -> str:
        return f"Requests({self._subject})"

    def ask(
        self,
        batch: int,
        expires: float,
        *,
        heartbeat: float = 0.0,
        max_bytes: int = 0,
        pin: dict[str, str] | None = None,
    ) -> None:
        """Send a request, see `request_body`. NotConnectedError."""
        body = request_body(batch, expires, heartbeat=heartbeat, max_bytes=max_bytes, pin=pin)
        self._connection.send(self._subject, body, reply=self._inbox)

    def close(self, *, last: Sink | None = None) -> None:
        """End the subscription. `last` receives messages that the server sent before it processed the end."""
        self.subscription.close(last=last)


def hand_back(connection: Connection, replies: Iterable[bytes], delay: float = HAND_BACK_DELAY) -> None:
    """Request another delivery of unhandled messages after `delay` seconds; statuses among them are skipped.

    Without a connection they are delivered again after `ack_wait`.
    """
    answered = [reply for reply in replies if reply.startswith(ACKS)]
    try:
        if answered:
            connection.send_to_each(answered, nak(delay))
    except NotConnectedError:
        text = "%d messages were not returned: no connection; the server redelivers them after ack_wait"
        logger.info(text, len(answered))
