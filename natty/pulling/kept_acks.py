"""Acks that were due while there was no connection."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from natty.config.units import NANOSECONDS, parse_time
from natty.errors import ConsumerNotFoundError, NattyError, NotConnectedError, StreamNotFoundError
from natty.jetstream import JetStream
from natty.wire.ack import ACK

logger = logging.getLogger("natty.pull")

UNCONNECTED = "%d acks were not sent: no connection; the server redelivers these messages after ack_wait"
INVALID = "%d acks were not sent: other clients may have the messages, or get them after ack_wait"
Valid = Callable[[], bool]


class KeptAcks:
    """Keeps acks without a connection, and sends them when it is back: the server still accepts them then.

    An ack names a sequence, and the server takes it for whichever client and message has that now. So an ack with a
    condition, `valid`, is sent at once if that still holds, and dropped otherwise. The others are sent if the server
    says that the consumer is older than our last sign of it, `heard` (on the monotonic clock): it was not made anew,
    with other messages of the same sequences. At most one ack is kept for each message that was delivered, so the
    pull's credit bounds them. It keeps none before `begin` and after `end`.
    """

    def __init__(self, jetstream: JetStream, stream: str, consumer: str, heard: Callable[[], float]) -> None:
        self._jetstream, self._connection = jetstream, jetstream.connection
        self._info, self._heard = f"CONSUMER.INFO.{stream}.{consumer}", heard
        self._begun = False
        self._since = 0.0  # when we had heard of the consumer last, before the connection was lost
        self._kept: list[tuple[list[bytes], Valid | None]] = []
        self._checking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"KeptAcks({sum(len(replies) for replies, _ in self._kept)})"

    def begin(self) -> None:
        """Keep acks from now on."""
        self._begun = True
        self._connection.listeners.append(self._on_event)

    def end(self) -> None:
        """Drop the kept acks, and keep no more."""
        self._begun = False
        self._connection.listeners.remove(self._on_event)
        if self._checking is not None:
            self._checking.cancel()
        self._drop(UNCONNECTED)

    def keep(self, replies: list[bytes], valid: Valid | None) -> None:
        """Keep acks that can't be sent now."""
        if not self._kept:
            self._since = self._heard()
        self._kept.append((replies, valid))
        if not self._begun:
            self._drop(UNCONNECTED)

    def _on_event(self, event: str) -> None:
        if event == "connected" and self._kept:
            kept, self._kept = self._kept, []
            for replies, valid in kept:
                if valid is None or not valid():
                    self._kept.append((replies, valid))
                else:
                    self._connection.send_to_each(replies, ACK)
            self._drop(INVALID, lambda valid: valid is not None)
            if self._kept and (self._checking is None or self._checking.done()):
                self._checking = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        """Send the kept acks if the consumer is still the one that has delivered their messages."""
        asked = time.monotonic()
        try:
            info = await self._jetstream.request(self._info)
            age = (parse_time(info["ts"]) - parse_time(info["created"])) / NANOSECONDS
            if age >= asked - self._since:
                for replies, valid in self._kept:
                    if valid is None:
                        self._connection.send_to_each(replies, ACK)
                self._kept = [(replies, valid) for replies, valid in self._kept if valid is not None]
        except (ConsumerNotFoundError, StreamNotFoundError):
            pass
        except NotConnectedError:  # the next session tries again
            return
        except NattyError as error:
            logger.warning("kept acks are dropped, since their consumer can't be inspected: %s", error)
        self._drop(INVALID, lambda valid: valid is None)

    def _drop(self, text: str, which: Callable[[Valid | None], bool] = lambda _: True) -> None:
        lost = sum(len(replies) for replies, valid in self._kept if which(valid))
        self._kept = [one for one in self._kept if not which(one[1])]
        if lost:
            logger.warning(text, lost)
