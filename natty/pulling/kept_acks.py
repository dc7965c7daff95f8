"""Acks that are due while there is no connection, and the sender of messages that keeps them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from natty.config.units import NANOSECONDS, parse_time
from natty.errors import (
    ConnectionClosedError,
    ConsumerNotFoundError,
    NattyError,
    NotConnectedError,
    StreamNotFoundError,
)
from natty.jetstream import JetStream
from natty.wire.ack import ACK, IN_PROGRESS, NAK
from natty.wire.connection import Connection
from natty.wire.message import Withdraw

logger = logging.getLogger("natty.pull")

UNCONNECTED = "%d acks were not sent: no connection; the server redelivers these messages after ack_wait"
INVALID = "%d acks were not sent: other clients may have the messages, or get them after ack_wait"
UNRETURNED = "a message was not returned: no connection; the server redelivers it after ack_wait"
Valid = Callable[[], bool]


class Kept(NamedTuple):
    """The ack subjects of messages, and what is sent on them, an ack or a `term`, under which condition."""

    replies: list[bytes]
    valid: Valid | None
    answer: bytes


class KeptAcks:
    """Keeps acks without a connection, and sends them when it is back: the server still accepts them then.

    What ends all deliveries of a message, `term`, is kept like an ack.

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
        self._kept: dict[bytes, Kept] = {}  # by the first ack subject of each
        self._checking: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"KeptAcks({sum(len(kept.replies) for kept in self._kept.values())})"

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

    def keep(self, replies: list[bytes], valid: Valid | None, answer: bytes = ACK) -> None:
        """Keep acks that can't be sent now."""
        if not self._kept:
            self._since = self._heard()
        if replies:
            self._kept[replies[0]] = Kept(replies, valid, answer)
        if not self._begun:
            self._drop(UNCONNECTED)

    def withdraw(self, reply: bytes) -> bool:
        """Forget what was kept of one message; return False if it was sent or dropped meanwhile."""
        return self._kept.pop(reply, None) is not None

    def sender(self, valid: Valid | None = None) -> KeepingSender:
        """Return what messages are settled with, so that their acks are kept with this condition."""
        return KeepingSender(self._connection, self, valid)

    def _on_event(self, event: str) -> None:
        if event == "connected" and self._kept:
            self._send(lambda valid: valid is not None and valid())
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
                self._send(lambda valid: valid is None)
        except (ConsumerNotFoundError, StreamNotFoundError):
            pass
        except NotConnectedError:  # the next session tries again
            return
        except NattyError as error:
            logger.warning("kept acks are dropped, since their consumer can't be inspected: %s", error)
        self._drop(INVALID, lambda valid: valid is None)

    def _send(self, which: Callable[[Valid | None], bool]) -> None:
        for first, kept in [one for one in self._kept.items() if which(one[1].valid)]:
            self._connection.send_to_each(kept.replies, kept.answer)
            del self._kept[first]

    def _drop(self, text: str, which: Callable[[Valid | None], bool] = lambda _: True) -> None:
        before, lost = self._kept, 0
        self._kept = {}
        for first, kept in before.items():
            if which(kept.valid):
                lost += len(kept.replies)
            else:
                self._kept[first] = kept
        if lost:
            logger.warning(text, lost)


class KeepingSender:
    """Settles messages, and keeps their acks while there is no connection. ConnectionClosedError after `close`.

    A `nak` is then dropped, and logged: the server delivers the message again after `ack_wait`, as it should, and a
    later `nak` could take the message from the client that has it by then. A restart of `ack_wait` is dropped, too.
    """

    def __init__(self, connection: Connection, kept: KeptAcks, valid: Valid | None) -> None:
        self._connection, self._kept, self._valid = connection, kept, valid

    def __repr__(self) -> str:
        return f"KeepingSender({self._kept!r})"

    def send(self, subject: bytes, data: bytes) -> Withdraw | None:
        """Settle the message of this ack subject with the next write; as `Sender.send`."""
        try:
            self._connection.send(subject, data)
        except ConnectionClosedError:
            raise
        except NotConnectedError:
            self._connection.check_loop()
            if data.startswith(NAK):
                logger.info(UNRETURNED)
            elif data != IN_PROGRESS:
                self._kept.keep([subject], self._valid, data)
            return partial(self._kept.withdraw, subject)
        return None

    def confirm(self, subject: bytes, data: bytes) -> Awaitable[object]:
        """As `Connection.confirm`."""
        return self._connection.confirm(subject, data)

    async def flush(self) -> None:
        """As `Connection.flush`."""
        await self._connection.flush()
