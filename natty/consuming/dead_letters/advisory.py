"""The server's advisories about messages that it gave up on."""

from __future__ import annotations

import hashlib
from datetime import datetime

import msgspec

from natty.config.units import NANOSECONDS, parse_time
from natty.consuming.dead_letters.letter import Original
from natty.errors import NattyError
from natty.jetstream import StoredMessage

RETRY_DELAY = 1.0  # seconds before the watch begins anew; doubled for each look at the same advisory
RETRY_DELAY_MAX = 300.0
CLOCKS_APART = 60  # seconds at most between the clocks of two servers of a cluster


class BadAdvisoryError(NattyError):
    """A message among the advisories is none of this consumer's."""


class Advisory(msgspec.Struct, frozen=True):
    """What the server says when it gives up on a message: `max_deliver` or `terminated`."""

    type: str
    stream: str
    consumer: str
    stream_seq: int
    timestamp: datetime
    deliveries: int = 0
    reason: str = ""

    @property
    def letter_reason(self) -> str:
        """Why the message died, in the letter's words."""
        if self.type.endswith(".terminated"):
            return f"terminated: {self.reason}" if self.reason else "terminated"
        return f"max deliveries: the server gave up after {self.deliveries}"

    def is_about(self, stored: StoredMessage) -> bool:
        """Return whether this can be the message: not if its stream was deleted and made again meanwhile."""
        return parse_time(stored.time) / NANOSECONDS <= self.timestamp.timestamp() + CLOCKS_APART

    def original(self, stored: StoredMessage | None) -> Original:
        """Return what is known of the message; `stored` is None where its stream has it no more."""
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
    """Return an advisory. BadAdvisoryError: everybody who may publish on its subject can have written it."""
    try:
        return msgspec.json.decode(data, type=Advisory)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadAdvisoryError(str(error)) from error


def delay_of(deliveries: int) -> float:
    """Return the seconds before the next look at an advisory that was delivered so often."""
    return min(RETRY_DELAY * 2.0 ** min(deliveries, 30), RETRY_DELAY_MAX)


def durable_of(stream: str, consumer: str, shown: str = "") -> str:
    """Return the name of the advisories' consumer: readable, and no other stream and consumer have it."""
    digest = hashlib.blake2b(f"{stream}.{consumer}".encode(), digest_size=6).hexdigest()
    return f"{stream[:64]}-{(shown or consumer)[:64]}-{digest}"
