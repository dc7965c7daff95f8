"""The time for which the server has this instance pinned: how it is kept, and what may be handled in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from natty.consuming.handler import Handler
from natty.consuming.options import key_by
from natty.consuming.work import Delivery, Receipts, Stint, TooManyDeliveriesError, Work
from natty.elections import clock
from natty.groups.joining import PARTITION, JoinOptions
from natty.groups.partitions import PartitionedMessage, token_of
from natty.groups.place import seen
from natty.jetstream import JetStream
from natty.pulling.pin import Pin
from natty.pulling.requests import next_subject, read_status, request_body
from natty.wire.ack import identity_of
from natty.wire.message import RawMessage

logger = logging.getLogger("natty.groups")

ANSWER = 0.05  # seconds within which the server answers to a request that keeps the pin
DRIFT = 0.02  # how far the server's clock and ours may differ in rate
FLUSH_TIMEOUT = 2.0


class Memory:
    """What a member remembers through all of its stints: which messages succeeded, and which were delivered too often.

    `max_deliveries`: after so many that did not finish it, a message has failed. With `gives_up` False it is handled
    again nevertheless.
    """

    def __init__(self, max_deliveries: int, *, gives_up: bool) -> None:
        self._max_deliveries, self._gives_up = max_deliveries, gives_up
        self._succeeded: set[bytes] = set()
        self._succeeded_before: set[bytes] = set()
        self.suspects: dict[Hashable, tuple[bytes, int]] = {}  # by key: what came too often, and how often

    def __repr__(self) -> str:
        return f"Memory({len(self._succeeded) + len(self._succeeded_before)} succeeded, {len(self.suspects)} suspects)"

    def succeeded(self, identity: bytes) -> None:
        """Remember a message for one call of `age`, and until the next."""
        self._succeeded.add(identity)

    def knows(self, identity: bytes) -> bool:
        """Return whether a message has succeeded."""
        return identity in self._succeeded or identity in self._succeeded_before

    def age(self, busy: set[Hashable]) -> None:
        """Forget what succeeded before the last time that this was called, and suspects whose key is not busy."""
        self._succeeded_before, self._succeeded = self._succeeded, set()
        self.suspects = {key: suspect for key, suspect in self.suspects.items() if key in busy}

    def check(self, turn: Delivery) -> None:
        """TooManyDeliveriesError for what came too often, the first one of its key: those behind it came as often.

        One of these is the next to be refused if it comes more often than that.
        """
        identity, deliveries, most = identity_of(turn.message.raw[1]), turn.message.deliveries, self._max_deliveries
        suspect, times = self.suspects.get(turn.key, (identity, 0))
        if deliveries <= most or (suspect != identity and deliveries <= times):
            return
        self.suspects[turn.key] = identity, deliveries
        text = f"it was delivered {deliveries} times (max_deliveries {most}) and never finished"
        if self._gives_up:
            raise TooManyDeliveriesError(f"{text}: does its handler end the process?")
        logger.error("%r: %s; it is handled again, as there are no dead letters", turn.message, text)


class PinnedStint(Stint):
    """The time for which we are pinned on one incarnation of our consumer: handlers may start while it lasts.

    `until` is the end of the lease: no other instance gets our messages before. It counts from before the request was
    sent that the server accepted with our pin, by a clock that runs on while this process is stopped.
    """

    leased = True

    def __init__(
        self, reads: object, pin: str, receipts: Receipts, first: bytes, margin: float, memory: Memory
    ) -> None:
        super().__init__(receipts, first)
        self.reads, self.pin = reads, pin
        self.mark = pin.encode()  # in the headers of each message that is delivered in it
        self.watched = False  # whether a timer will stop its handlers
        self.until = 0.0
        self._margin = margin  # seconds before its end in which handlers are stopped, and none is started
        self._memory = memory
        self.open = False  # whether all that our predecessor had begun is settled, or came to us
        self.interruptions = 0
        self.early: list[RawMessage] = []  # what arrived before it was open
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "over" if self.over else f"{self.until - clock():.2f} s left" if self.open else "taking over"
        return f"PinnedStint({self.pin}, {state})"

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
        super().end()
        self._changed.set()

    def was_handled(self, turn: Delivery) -> bool:
        """Return whether a handler has succeeded with this message before, in whichever stint."""
        return self._memory.knows(identity_of(turn.message.raw[1]))

    def note_success(self, turn: Delivery) -> None:
        """Remember it."""
        self._memory.succeeded(identity_of(turn.message.raw[1]))

    async def admit(self, turn: Delivery) -> None:
        """Check a message that was delivered before. TooManyDeliveriesError."""
        await asyncio.sleep(0)  # it may end this process: let the acks of those before it be written
        self._memory.check(turn)


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


def make_work(
    jetstream: JetStream,
    group: str,
    member: str,
    handler: Handler,
    options: JoinOptions,
    on_fault: Callable[[], None],
) -> Work:
    """Return what runs the handlers of a member, through all of its stints."""
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
