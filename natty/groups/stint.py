"""A pinned stint: the time for which the server has pinned this instance, its lease, and the messages handled in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from natty.consuming.dead_letters import TooManyDeliveriesError
from natty.consuming.handler import Handler
from natty.consuming.options import key_by
from natty.consuming.work import Delivery, Stint, Work
from natty.elections import clock
from natty.groups.joining import PARTITION, JoinOptions
from natty.groups.partitions import PartitionedMessage, token_of
from natty.groups.place import parse_info
from natty.jetstream import JetStream
from natty.pulling.pin import Pin
from natty.pulling.pull import Pull
from natty.pulling.requests import next_subject, read_status, request_body
from natty.wire.ack import identity_of
from natty.wire.message import RawMessage

logger = logging.getLogger("natty.groups")

ANSWER = 0.05  # seconds within which the server answers a request that renews the pin
DRIFT = 0.02  # maximum relative difference in rate between the server's clock and ours
FLUSH_TIMEOUT = 2.0


class Memory:
    """A member's memory across its stints: which messages succeeded, and which were delivered too often.

    After `max_deliveries` deliveries that did not finish it, a message has failed. With `gives_up` False it is still
    handled again.
    """

    def __init__(self, max_deliveries: int, *, gives_up: bool) -> None:
        self._max_deliveries, self._gives_up = max_deliveries, gives_up
        self._succeeded: set[bytes] = set()
        self._succeeded_before: set[bytes] = set()
        self.suspects: dict[Hashable, tuple[bytes, int]] = {}  # by key: a message delivered too often, and how often

    def __repr__(self) -> str:
        return f"Memory({len(self._succeeded) + len(self._succeeded_before)} succeeded, {len(self.suspects)} suspects)"

    def note_success(self, identity: bytes) -> None:
        """Remember a message until the second call of `age` from now."""
        self._succeeded.add(identity)

    def knows(self, identity: bytes) -> bool:
        """Return whether a message has succeeded."""
        return identity in self._succeeded or identity in self._succeeded_before

    def age(self, busy: set[Hashable]) -> None:
        """Forget messages that succeeded before the previous call, and suspects whose key is not busy."""
        self._succeeded_before, self._succeeded = self._succeeded, set()
        self.suspects = {key: suspect for key, suspect in self.suspects.items() if key in busy}

    def check(self, turn: Delivery) -> None:
        """TooManyDeliveriesError for a message delivered too often, but only for the first one of its key.

        The messages behind it were delivered as often, perhaps only because of it. One of them is refused next if it is
        delivered more often than that.
        """
        identity, deliveries, most = identity_of(turn.message.raw[1]), turn.message.deliveries, self._max_deliveries
        suspect, times = self.suspects.get(turn.key, (identity, 0))
        if deliveries <= most or (suspect != identity and deliveries <= times):
            return
        self.suspects[turn.key] = identity, deliveries
        text = f"it was delivered {deliveries} times (max_deliveries {most}) and never finished"
        if self._gives_up:
            raise TooManyDeliveriesError(f"{text}: does its handler end the process?")
        logger.error("%r: %s; natty handles it again, since there are no dead letters", turn.message, text)


class PinnedStint(Stint):
    """The time for which we are pinned on one incarnation of our consumer: handlers may start while it lasts.

    `until` is the end of the lease: no other instance gets our messages before. The lease starts just before we sent
    the request that the server accepted with our pin, on a clock that also runs while this process is stopped.
    """

    leased = True

    def __init__(self, reads: object, pin: str, pull: Pull, first: bytes, margin: float, memory: Memory) -> None:
        super().__init__(pull, first)
        self.reads, self.pin = reads, pin
        self.mark = pin.encode()  # in the headers of each message that is delivered in it
        self.watched = False  # whether a timer will stop its handlers
        self.until = 0.0
        self._margin = margin  # seconds before its end at which handlers are stopped, and no more are started
        self._memory = memory
        self.open = False  # whether all messages that our predecessor had are settled, or came to us
        self.since = clock()  # when we began to wait for that
        self.missing = 0  # of these messages, at the last request beyond our credit
        self.pause, self.next_request = 0.0, 0.0  # seconds until the next one if none of them comes, and its time
        self.interruptions = 0
        self.early: list[RawMessage] = []  # messages that arrived before it was open
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "over" if self.over else f"{self.until - clock():.2f} s left" if self.open else "taking over"
        return f"PinnedStint({self.pin}, {state})"

    def may_start(self) -> bool:
        """Return whether a handler may be started now."""
        return self.open and not self.over and self.remaining() > 0

    def remaining(self) -> float:
        """Return for how many seconds handlers may still run if the lease is not extended."""
        return self.until - self._margin - clock()

    def lasts(self) -> bool:
        """Return whether the lease has not ended: no other instance has our messages yet."""
        return clock() < self.until

    async def wait_for_change(self) -> None:
        """Wait until `may_start` may have changed."""
        self._changed.clear()
        await self._changed.wait()

    def extend(self, until: float) -> None:
        """Extend the lease after the server has accepted our pin."""
        self.until = max(self.until, until)
        self._changed.set()

    def begin(self) -> None:
        """Let handlers start."""
        self.open = True
        self._changed.set()

    def interrupt(self) -> None:
        """Let no handler start until `begin` is called again: messages that were sent to us may come late."""
        self.open, self.since = False, clock()
        self.missing, self.pause, self.next_request = 0, 0.0, 0.0
        self.interruptions += 1

    def end(self) -> None:
        """Let no handler start any more."""
        super().end()
        self._changed.set()

    def was_handled(self, turn: Delivery) -> bool:
        """Return whether a handler has succeeded with this message before, in any stint."""
        return self._memory.knows(identity_of(turn.message.raw[1]))

    def note_success(self, turn: Delivery) -> None:
        """Remember that a handler has succeeded with this message."""
        self._memory.note_success(identity_of(turn.message.raw[1]))

    async def admit(self, turn: Delivery) -> None:
        """Check a message that was delivered before. TooManyDeliveriesError."""
        await asyncio.sleep(0)  # the message may end this process: first let earlier acks be written
        self._memory.check(turn)


class Kept(NamedTuple):
    """The result of `keep_pin`: whether we are pinned, until when (`elections.clock`), and the CONSUMER.INFO."""

    ours: bool
    until: float
    info: dict[str, Any]


async def keep_pin(jetstream: JetStream, stream: str, consumer: str, pin: Pin, window: float) -> Kept:
    """Renew our pin: for `window` seconds no other instance is pinned.

    It requests, with our pin, a message of at most one byte; no message is that small. Such a request restarts the
    pin's time. The server's acceptance alone proves nothing: with nothing to deliver, it accepts any request while no
    instance is pinned. So it then reads which instance is pinned; the server never uses an id twice. The time counts
    from before the request was sent. ConsumerNotFoundError, NoRespondersError: the consumer does not exist any more;
    another NattyError: unknown.
    """
    mine, sent = pin.id, clock()
    body = request_body(1, min(ANSWER, window / 10), max_bytes=1, pin=pin.fields())
    answer = await jetstream.connection.request(next_subject(jetstream, stream, consumer), body, timeout=window / 2)
    info = await jetstream.request(f"CONSUMER.INFO.{stream}.{consumer}", timeout=FLUSH_TIMEOUT)
    ours = not read_status(answer).is_pin_refused and parse_info(info).pinned == mine != ""
    return Kept(ours, sent + window * (1 - DRIFT), info)


def make_work(
    jetstream: JetStream, group: str, member: str, handler: Handler, options: JoinOptions, on_fault: Callable[[], None]
) -> Work:
    """Return the `Work` that runs a member's handlers across all of its stints."""
    return Work(
        jetstream,
        (group, member),
        group,
        handler,
        options,
        make=PartitionedMessage,
        key=token_of if options.ordered_by == PARTITION else key_by(options.ordered_by),
        default_key=token_of,
        counts_deliveries=False,
        on_fault=lambda fault: on_fault(),
        log=logger,
    )
