"""Reads the messages of a durable consumer, keeps them alive while they wait, and settles them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

from capture.errors import NotAloneError
from capture.ingest.ack_floor import DeliveryGap, Floor
from capture.ingest.record import Delivered, Part
from natty import (
    Batch,
    JetStreamError,
    Natty,
    NattyError,
    NotConnectedError,
    Pull,
    RequestTimeoutError,
    StreamNotFoundError,
)
from natty.errors import ConnectionClosedError
from natty.names import check_name
from natty.streams import led_info
from natty.wire.background import cancel_all, keep_up, wait_until_set
from natty.wire.repeated import Repeated

log = logging.getLogger("capture.source")

TICK = 0.25  # seconds between two batches of a quiet stream, so that blocks are sealed when they reach `max_age`
ENOUGH = 1000  # messages that form a batch at once
GATHER = 0.01  # seconds that fewer messages wait for more
READ_PAUSE = 0.01  # seconds between a small read and the next one: messages in a block can wait
READ_AHEAD = 32_768  # messages that are requested and not yet in a block; with a quarter of it the node waits for more
END_TIMEOUT = 2.0  # seconds from a stop until the reader is cancelled
ALONE_WITHIN = 20.0  # seconds that another reader has to leave: the requests of a killed reader live for 10 s
LOOK_EVERY = 2.0  # seconds between two looks for messages that a lost connection lost, while no message comes
LOOKS = 4  # after each reconnect
LOOK_TIMEOUT = 1.0  # seconds of a look: messages that come meanwhile wait for it
UNAVAILABLE = 503  # the status during an election of the server's leaders
BEATS = 3  # in an `ack_wait`; messages are kept alive from their second beat on: after two thirds of it at the latest


async def stream_info(
    natty: Natty, stream: str, *, created: str = "", least: int = 0, timeout: float | None = None
) -> dict[str, Any]:
    """Return what the stream's leader says about it; the options are those of `led_info`.

    Raises StreamNotFoundError, BadNameError, and JetStreamError if it has no leader.
    """
    name = check_name("stream", stream)
    try:
        return {**await led_info(natty.jetstream, name, created=created, least=least, timeout=timeout)}
    except StreamNotFoundError as error:
        raise StreamNotFoundError(
            f"there is no stream {stream!r} on this server: create it, or name another with --stream",
            code=error.code,
            err_code=error.err_code,
        ) from error


class Unsettled:
    """Messages that were read and not settled, by their replies. `beat` returns those that must be kept alive.

    There are two sets, so that a message that is settled before its second beat, as most are, costs no request.
    """

    def __init__(self) -> None:
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __repr__(self) -> str:
        return f"Unsettled({len(self._new)} new, {len(self._old)} old)"

    def add(self, replies: list[bytes]) -> None:
        """Add messages that were read."""
        self._new.update(replies)

    def remove(self, replies: list[bytes]) -> None:
        """Remove messages that are settled."""
        self._new.difference_update(replies)
        if self._old:
            self._old.difference_update(replies)

    def select(self, messages: Delivered) -> Part:
        """Return those of these messages that are here; others were read before the consumer was reset."""
        both = zip(messages.sequences, messages.replies, strict=True)
        found = [(sequence, reply) for sequence, reply in both if reply in self._new or reply in self._old]
        return Part([sequence for sequence, _ in found], [reply for _, reply in found])

    def beat(self) -> list[bytes]:
        """Return the messages that were already here at the last beat: their `ack_wait` must be restarted."""
        due = list(self._old)
        self._old |= self._new
        self._new = set()
        return due

    def take(self) -> list[bytes]:
        """Remove all messages and return them."""
        everything = [*self._old, *self._new]
        self._old, self._new = set(), set()
        return everything


class Source:
    """Yields the messages of a durable consumer, batch by batch, and settles them. Use it with `async with`.

    While it is open, it reads ahead and keeps unsettled messages alive, so the server does not deliver them again after
    `ack_wait`, however slow the store is. It yields an empty batch at least every `TICK` seconds. A lost connection
    loses no message: acks that are due meanwhile are sent when it is back. Messages that the server delivers again are
    identified by their sequences.

    With `together` an acknowledgement counts for all messages before it (`ack_policy: all`), and a message is
    acknowledged only when everything up to it is stored. Then no other reader may use the consumer: raises
    NotAloneError if one does, before any of its messages is acknowledged.
    """

    def __init__(self, natty: Natty, stream: str, durable: str, *, ack_wait: float, together: bool = False) -> None:
        self.read = 0
        self._natty, self._stream, self._durable = natty, stream, durable
        self._floor = Floor() if together else None
        self._pull = self._new_pull()
        self._sent = 0  # messages that the server had delivered at the last look
        self._renewals = self._looks = 0  # of the pull when it was last looked for, and how many looks are left
        self._stopping = False
        self._beat = ack_wait / BEATS
        self._unsettled = Unsettled()
        self._arrived: list[Batch] = []
        self._waiting = 0  # messages of these
        self._repeated = Repeated(log)
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Source({self._pull!r}, {self.read} read, {self._unsettled!r})"

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._read_ahead(), name="capture source"),
            asyncio.create_task(keep_up(f"keeping messages of {self!r}", self._keep_alive), name="capture keep-alive"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand back the messages that are not settled: the server delivers them again at once."""
        self.stop()
        await asyncio.wait(self._tasks[:1], timeout=END_TIMEOUT)
        await cancel_all(self._tasks)
        self._hand_back(self._unsettled.take())

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches until `stop`. Raises ConsumerNotFoundError if the consumer is deleted."""
        reader = self._tasks[0]
        while not reader.done():
            if not self._arrived:
                self._wake.clear()
                await wait_until_set(self._wake, TICK)
            if 0 < self._waiting < ENOUGH:
                await asyncio.sleep(GATHER)  # a batch costs about as much as 100 messages: wait a moment for more
            batch = self._take_arrived()
            new = batch if self._floor is None else self._take_new(self._floor, batch)
            self.read += len(new)
            yield new
            self._pull.finish(len(batch))  # its messages are in blocks, which have their own limits
        await reader  # raises the error that ended it

    async def _read_ahead(self) -> None:
        """Read as far ahead as the credit allows, even while the pipeline waits; then hand back untaken messages.

        Messages that wait here are kept alive, too.
        """
        try:
            if self._floor is not None:
                await self._read_alone(self._floor)
                return
            async for batch in self._pull:
                self._take(batch)
        finally:
            self.nak(self._take_arrived())
            self._wake.set()

    async def _read_alone(self, floor: Floor) -> None:
        """Read every message of the consumer. Begin again after the last ack if a lost connection lost messages."""
        while await self._begin(floor):
            try:
                async with aclosing(self._pull.__aiter__()) as batches:
                    async for batch in batches:
                        if len(batch):
                            floor.note_delivery(batch.replies)
                            self._take(batch)
                        else:
                            await self._look_for_lost(floor)
                return
            except DeliveryGap as gap:
                if not self._pull.counts.renewals:
                    raise NotAloneError(f"{self._others()}: {gap}. Nothing from there on was acknowledged") from gap
                log.warning("messages were delivered while the connection was lost, they are read again: %s", gap)
            self._pull = self._new_pull()

    async def _look_for_lost(self, floor: Floor) -> None:
        """Raise DeliveryGap if messages that the server had delivered before the last look have not arrived.

        The next message would show that, too, but it may come much later.
        """
        if floor.arrived < self._sent:
            raise DeliveryGap(f"the server delivered {self._sent}, and {floor.arrived} arrived")
        if self._renewals != (renewals := self._pull.counts.renewals):
            self._renewals, self._looks = renewals, LOOKS
        if self._looks:
            with suppress(NattyError):
                subject = f"CONSUMER.INFO.{self._stream}.{self._durable}"
                info = await self._natty.jetstream.request(subject, timeout=LOOK_TIMEOUT)
                self._sent = info["delivered"]["consumer_seq"]
                self._looks -= 1

    async def _begin(self, floor: Floor) -> bool:
        """Have the server deliver all unacknowledged messages only to us, in order; False if stopped. NotAloneError."""
        deadline = asyncio.get_running_loop().time() + ALONE_WITHIN
        where = f"{self._stream}.{self._durable}"
        while not self._stopping:
            try:
                waiting = (await self._natty.jetstream.request(f"CONSUMER.INFO.{where}"))["num_waiting"]
                if not waiting:
                    await self._natty.jetstream.request(f"CONSUMER.RESET.{where}")
                    self._unsettled.take()
                    self._take_arrived()
                    floor.begin()
                    self._sent = self._renewals = self._looks = 0
                    return True
                if asyncio.get_running_loop().time() > deadline:
                    raise NotAloneError(f"{self._others()}: it requests messages right now, {waiting} times")
            except ConnectionClosedError:
                raise
            except (RequestTimeoutError, NotConnectedError, JetStreamError) as error:
                if isinstance(error, JetStreamError) and error.code != UNAVAILABLE:
                    raise
                state = f"can't start reading consumer {self._durable} of stream {self._stream} yet"
                self._repeated.warning(state, f"{state}: {error}")
            await asyncio.sleep(TICK)
        return False

    def _others(self) -> str:
        return (
            f"consumer {self._durable} of stream {self._stream} has another reader, and with"
            f' ack = "all" an acknowledgement here would also cover messages of that reader. Stop the other reader, or'
            f' use another durable, with ack = "explicit" for several nodes'
        )

    def _new_pull(self) -> Pull:
        tick = None if self._floor is None else LOOK_EVERY
        return self._natty.pull(self._stream, self._durable, max_messages=READ_AHEAD, read_pause=READ_PAUSE, tick=tick)

    def _take(self, batch: Batch) -> None:
        self._unsettled.add(batch.replies)
        self._arrived.append(batch)
        self._waiting += len(batch)
        self._wake.set()

    def _take_arrived(self) -> Batch:
        batches, self._arrived, self._waiting = self._arrived, [], 0
        return Batch.join(batches)

    def _take_new(self, floor: Floor, batch: Batch) -> Batch:
        new = floor.note_batch(batch)
        if len(new) < len(batch):
            self._unsettled.remove(list({*batch.replies} - {*new.replies}))  # their first replies keep them alive
            self.ack(Part([], []))  # the last acknowledgement may be lost
        return new

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._send(self._pull.in_progress, self._unsettled.beat(), "unsettled messages were not kept alive")

    def stop(self) -> None:
        """End after the current batch."""
        self._stopping = True
        self._pull.stop()

    def ack(self, messages: Delivered) -> None:
        """Acknowledge these messages. Only `commit.py` calls this."""
        settled = messages.replies if self._floor is None else self._floor.note_stored(messages)
        self._unsettled.remove(settled)
        if settled:
            self._pull.ack(settled if self._floor is None else settled[-1:])

    def nak(self, messages: Delivered, delay: float = 0.0) -> None:
        """Request these messages again; with `together` only those read since the last reset: it brings the others."""
        if self._floor is not None:
            messages = self._unsettled.select(messages)
            self._floor.note_handed_back(messages)
        self._unsettled.remove(messages.replies)
        self._hand_back(messages.replies, delay)

    def _hand_back(self, replies: list[bytes], delay: float = 0.0) -> None:
        self._send(lambda given: self._pull.nak(given, delay), replies, "messages were not handed back")

    def _send(self, say: Callable[[list[bytes]], None], replies: list[bytes], otherwise: str) -> None:
        try:
            if replies:
                say(replies)
        except NotConnectedError:
            text = f"{len(replies)} {otherwise}: no connection; the server delivers them again after ack_wait"
            self._repeated.warning(f"{otherwise}, no connection", text, messages=len(replies))
