"""The server's advisories about messages that it gave up on."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from natty.config.units import NANOSECONDS, parse_time
from natty.consuming.dead_letters.letter import Original
from natty.errors import NattyError
from natty.jetstream import StoredMessage
from natty.names import encode
from natty.wire.ack import ack_subject
from natty.wire.message import RawMessage

RETRY_DELAY = 1.0  # seconds before the watch starts again; doubled for each try of the same advisory
RETRY_DELAY_MAX = 300.0
CLOCKS_APART = 60  # seconds at most between the clocks of two servers of a cluster


class TooManyDeliveriesError(NattyError):
    """A message was delivered many times and never finished: its handler may end the process."""


class TerminatedError(NattyError):
    """A message was terminated: its handler, or another client, called `term`."""


class BadAdvisoryError(NattyError):
    """A message among the advisories is not an advisory of this consumer."""


class Advisory(msgspec.Struct, frozen=True):
    """The server's advisory that it gave up on a message: `max_deliver` or `terminated`."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    timestamp: datetime
    deliveries: int = 0
    reason: str = ""

    @property
    def letter_reason(self) -> str:
        """The reason that the letter gives."""
        if self.type.endswith(".terminated"):
            return f"terminated: {self.reason}" if self.reason else "terminated"
        return f"max deliveries: the server gave up after {self.deliveries}"

    @property
    def error(self) -> Exception:
        """The same as an error."""
        kind = TerminatedError if self.type.endswith(".terminated") else TooManyDeliveriesError
        return kind(self.letter_reason)

    def to_raw(self, subject: str, stored: StoredMessage | None) -> RawMessage:
        """Return the message in the form of a delivered one; without payload if `stored` is None."""
        time_ns, block, data = (parse_time(stored.time), stored.header_block, stored.data) if stored else (0, b"", b"")
        reply = ack_subject(self.stream, self.consumer, self.stream_seq, time_ns, deliveries=self.deliveries)
        return encode(subject), reply, block, data

    def is_about(self, stored: StoredMessage) -> bool:
        """Return whether this can be the message: not if its stream was deleted and created again meanwhile."""
        return parse_time(stored.time) / NANOSECONDS <= self.timestamp.timestamp() + CLOCKS_APART

    def original(self, stored: StoredMessage | None) -> Original:
        """Return the known facts about the message; `stored` is None if its stream no longer has it."""
        if stored is None:
            return Original(self.stream, self.stream_seq, deliveries=self.deliveries)
        return Original(
            stream=self.stream,
            sequence=self.stream_seq,
            subject=stored.subject,
            headers=stored.headers,
            data=stored.data,
            time_ns=parse_time(stored.time),
            deliveries=self.deliveries,
        )


def read_advisory(data: bytes) -> Advisory:
    """Return an advisory. BadAdvisoryError for other data: any client that may publish on its subject can send it."""
    try:
        return msgspec.json.decode(data, type=Advisory)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadAdvisoryError(str(error)) from error


def delay_of(deliveries: int) -> float:
    """Return the seconds before the next try of an advisory with this many deliveries."""
    return min(RETRY_DELAY * 2.0 ** min(deliveries, 30), RETRY_DELAY_MAX)


def durable_of(stream: str, consumer: str, shown: str = "") -> str:
    """Return the name of the advisories' consumer: readable, and unique for this stream and consumer."""
    digest = hashlib.blake2b(f"{stream}.{consumer}".encode(), digest_size=6).hexdigest()
    return f"{stream[:64]}-{(shown or consumer)[:64]}-{digest}"
