"""Reads one consumer of a group while the server has this node pinned to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

from capture.ingest.ack_floor import DeliveryGap, Floor
from capture.ingest.record import Delivered, Part
from capture.ingest.source import BEATS, READ_PAUSE, TICK, UNAVAILABLE, Unsettled
from natty import Batch, JetStreamError, Natty, NattyError, NotConnectedError, Pull
from natty.elections import clock
from natty.errors import ConnectionClosedError, RequestTimeoutError
from natty.groups.place import parse_info
from natty.groups.settings import PRIORITY_GROUP
from natty.groups.stint import FLUSH_TIMEOUT, keep_pin
from natty.names import decode
from natty.pulling.pin import Pin, is_cut
from natty.pulling.requests import PullOptions
from natty.wire.ack import ACK
from natty.wire.background import cancel_all, keep_up, map_concurrently, wait_until_set
from natty.wire.message import RawMessage
from natty.wire.repeated import Repeated

log = logging.getLogger("capture.pinned")

PIN_TTL = 5.0  # seconds after which another node replaces a node without a sign of life
KEEP_EVERY = 1.0  # seconds between two signs of life


class PinnedReader:
    """One consumer of a group. Of the nodes that wait for it, the one that the server has pinned reads it.

    An acknowledgement counts for all messages before it. So when the reader begins, the server delivers to it in order
    all messages that are not acknowledged, and the reader acknowledges only messages that are stored without a gap
    (`Floor`). A node that waits for the pin reads nothing. If the pin is lost, the next reader stores the same messages
    again, and this one acknowledges none of them: neither after it knows that another node is pinned, nor after the
    time for which the server has promised that no other node is.
    """

    def __init__(
        self, natty: Natty, stream: str, consumer: str, *, ack_wait: float, read_ahead: int, wake: Callable[[], None]
    ) -> None:
        self.consumer = consumer
        self.arrived: list[RawMessage] = []
        self._natty, self._stream = natty, stream
        self._ack_wait, self._read_ahead, self._wake = ack_wait, read_ahead, wake
        self._floor = Floor()
        self._repeated = Repeated(log)
        self._unsettled = Unsettled()
        self._pin = self._new_pin()
        self._config: dict[str, Any] = {}  # as last seen; a request beyond its limits ends a pull, and we look again
        self._pull: Pull | None = None
        self._until = 0.0  # until then no other node is pinned, by `leader.clock`
        self._sent = 0  # messages that the server had delivered at the last sign of life
        self._withheld: list[bytes] = []  # an acknowledgement that was due after that, or without a connection
        self._stopping = False
        self._settled = asyncio.Event()
        name = f"{stream}/{consumer}"
        jobs = (
            self._run(),
            keep_up(f"keeping the pin of {name}", self._keep_pinned),
            keep_up(f"keeping the messages of {name}", self._keep_alive),
        )
        self._tasks = [asyncio.create_task(job, name=f"capture {stream}/{consumer}") for job in jobs]
        self._tasks[0].add_done_callback(lambda _: wake())

    def __repr__(self) -> str:
        state = "stopping" if self._stopping else "reading" if self._pin.id else "standby"
        return f"PinnedReader({self._stream}/{self.consumer}, {state}, {self._unsettled!r})"

    @property
    def pinned(self) -> bool:
        """Whether the server has this node pinned, as far as we know."""
        return bool(self._pin.id)

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the reading, if one did."""
        reading = self._tasks[0]
        return reading.exception() if reading.done() and not reading.cancelled() else None

    def take(self) -> tuple[list[RawMessage], Callable[[], None]]:
        """Return the messages that have arrived, and a function to call when they are in their blocks."""
        taken, self.arrived = self.arrived, []
        pull = self._pull
        if not taken or pull is None:
            return [], lambda: None
        batch = Batch(taken)
        new = self._floor.note_batch(batch)
        if len(new) < len(taken):
            self._unsettled.remove(list({*batch.replies} - {*new.replies}))  # their first replies keep them alive
            self.ack(Part([], []))  # the last acknowledgement may be lost
        return new.raw, lambda: pull.finish(len(taken))

    def ack(self, messages: Delivered) -> None:
        """Acknowledge the last message up to which all are stored."""
        settled = self._floor.note_stored(messages)
        self._unsettled.remove(settled)
        self._acknowledge(settled[-1:])
        self._settled.set()

    def nak(self, messages: Delivered, delay: float) -> None:
        """Request messages again that could not be stored, if this node still has the pin.

        Those that were read before the last reset are delivered again in any case, and may be in a block already.
        """
        messages = self._unsettled.select(messages)
        self._unsettled.remove(messages.replies)
        self._floor.note_handed_back(messages)
        if messages.replies and self._pull is not None and self._pin.id and clock() < self._until:
            self._say(lambda pull: pull.nak(messages.replies, delay))
        self._settled.set()

    def stop(self) -> None:
        """Stop reading, and drop messages that were not taken; keep the pin. Idempotent."""
        self._stopping = True
        if self._pull is not None:
            self._pull.stop()
        self._unsettled.remove([raw[1] for raw in self.arrived])
        self.arrived = []

    async def release(self, within: float, seal: Callable[[], None]) -> None:
        """Stop, wait up to `within` seconds until all read messages are stored or handed back, then give up the pin.

        `seal` seals the open blocks, so that they are stored: once, for after the stop all read messages are in blocks.
        """
        self.stop()
        seal()
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._floor.is_waiting:
                    self._settled.clear()
                    await wait_until_set(self._settled, TICK)
        await self.close()

    async def close(self) -> None:
        """Stop, acknowledge nothing more, give up the pin: the next reader gets the unacknowledged messages."""
        self.stop()
        self._floor.begin()
        await asyncio.wait(self._tasks[:1], timeout=FLUSH_TIMEOUT)
        await cancel_all(self._tasks)
        with suppress(NattyError):
            await self._natty.connection.flush(FLUSH_TIMEOUT)
            if self._pin.id and await self._keep_pin():
                await self._natty.jetstream.request(self._api("UNPIN"), {"group": PRIORITY_GROUP})

    async def _run(self) -> None:
        """Read when pinned. Raises ConsumerNotFoundError, StreamNotFoundError if the consumer was deleted."""
        while not self._stopping:
            self._pin = self._new_pin()
            await self._pull_until(1, self._await_pin)
            while self._pin.id and not self._stopping:
                if await self._begin():
                    await self._pull_until(self._read_ahead, self._read)
            if not self._stopping:
                await self._look()

    def _new_pin(self) -> Pin:
        # In the next session it reads on: `note_delivery` and `_keep_pin` find what was lost with the last one.
        return Pin(PRIORITY_GROUP, self._note_pin, self._begin_anew, lambda: None)

    async def _pull_until(self, credit: int, read: Callable[[Batch], Awaitable[bool]]) -> None:
        """Pull until `read` returns False, or the consumer, the pin or the connection changes."""
        options = PullOptions(max_messages=credit, expires=PIN_TTL / 2, heartbeat=PIN_TTL / 4, read_pause=READ_PAUSE)
        pull = self._pull = Pull(self._natty.jetstream, self._stream, self.consumer, options, pin=self._pin)
        pull.respect(self._config)
        if self._stopping:
            return
        try:
            async with aclosing(pull.__aiter__()) as batches:
                async for batch in batches:
                    if not await read(batch):
                        return
        except DeliveryGap as gap:
            log.warning("%s: messages were lost in transit, requesting them again: %s", self.consumer, gap)
            await asyncio.sleep(TICK)

    async def _await_pin(self, batch: Batch) -> bool:
        """Return False: the server delivers the message that came with the pin again when we begin."""
        return False

    async def _read(self, batch: Batch) -> bool:
        pin = self._pin.id
        messages = self._pin.strip_marks(batch.raw)
        if messages is not None and any(map(is_cut, messages)):
            messages = await map_concurrently(messages, self._complete)
        if messages is None or self._pin.id != pin:
            raise DeliveryGap("messages were delivered under another pin")
        if self._stopping:
            return False
        self._floor.note_delivery(batch.replies)
        self._unsettled.add(batch.replies)
        self.arrived += messages
        self._wake()
        return True

    async def _complete(self, raw: RawMessage) -> RawMessage:
        """Return a message with its header block as the stream holds it, which did not end as it should.

        DeliveryGap if no server answers.
        """
        if not is_cut(raw):
            return raw
        [sequence] = Batch([raw]).sequences
        try:
            found = await self._natty.jetstream.read(self._stream, sequence=sequence)
        except (NotConnectedError, RequestTimeoutError) as error:
            raise DeliveryGap(f"the headers of message {sequence} can't be read: {error}") from error
        except NattyError as error:
            state = f"{self.consumer}: the last two bytes of a malformed header block are not known"
            self._repeated.warning(state, f"{state}, message {sequence} is stored without them: {error}")
            found = None
        return raw[0], raw[1], found.header_block if found else raw[2], raw[3]

    async def _begin(self) -> bool:
        """Have the server deliver everything unacknowledged to us, in order; return False if that is not certain."""
        try:
            if not await self._keep_pin():
                return False
            await self._natty.jetstream.request(self._api("RESET"))
        except ConnectionClosedError:
            raise
        except NattyError as error:
            state = f"consumer {self.consumer} of stream {self._stream} can't be started yet"
            self._repeated.warning(state, f"{state}: {error}")
            await self._look()
            return False
        self._forget()
        return self.pinned

    async def _look(self) -> None:
        """Check that the consumer still exists, and with which limits of a request; then wait a moment."""
        try:
            self._config = (await self._natty.jetstream.request(self._api("INFO")))["config"]
        except ConnectionClosedError:
            raise
        except NattyError as error:
            if isinstance(error, JetStreamError) and error.code != UNAVAILABLE:
                raise
            state = f"consumer {self.consumer} of stream {self._stream} can't be inspected"
            self._repeated.warning(state, f"{state}: {error}")
        await asyncio.sleep(TICK)

    def _api(self, verb: str) -> str:
        return f"CONSUMER.{verb}.{self._stream}.{self.consumer}"

    def _note_pin(self) -> None:
        if not self._pin.id:
            log.warning("%s: another node is pinned", self.consumer, extra={"action": "pin_lost"})
            self._forget()
            self._begin_anew()

    def _begin_anew(self) -> None:
        if self._pull is not None:
            self._pull.stop()

    def _forget(self) -> None:
        """Forget the messages that were read until now: this node may not acknowledge them."""
        self._floor.begin()
        self._sent = 0
        self._withheld = []
        self.arrived = []
        self._unsettled.take()
        self._settled.set()

    async def _keep_pinned(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY)
            with suppress(NattyError):
                await (self._keep_pin() if self._pin.id else self._rouse())

    async def _rouse(self) -> None:
        """If no node is pinned, have the server redeliver unacknowledged messages now, not only after `ack_wait`."""
        state = await self._natty.jetstream.request(self._api("INFO"))
        if state["num_ack_pending"] and not parse_info(state).pinned and not self._stopping:
            await self._natty.jetstream.request(self._api("RESET"))

    async def _keep_pin(self) -> bool:
        """Send a sign of life; return whether the server still has this node pinned."""
        pin = self._pin
        kept = await keep_pin(self._natty.jetstream, self._stream, self.consumer, pin, PIN_TTL)
        if pin is not self._pin or not pin.id:
            return False
        if not kept.ours:
            pin.forget()
            return False
        self._until = max(self._until, kept.until)
        self._config = kept.info.get("config", self._config)
        if not self._stopping and self._floor.arrived < self._sent:
            log.warning("%s: messages were lost in transit, requesting them again", self.consumer)
            self._begin_anew()
        self._sent = kept.info.get("delivered", {}).get("consumer_seq", 0)
        if (withheld := self._withheld) and clock() < self._until:  # answered: a RESET may overtake an ack
            with suppress(RequestTimeoutError):  # it is none of a message that was delivered since the last RESET
                await self._natty.connection.request(decode(withheld[0]), ACK, timeout=FLUSH_TIMEOUT)
            self._withheld = [] if self._withheld is withheld else self._withheld
        return True

    def _acknowledge(self, last: list[bytes]) -> None:
        """Acknowledge if no other node can be pinned and there is a connection; otherwise after the next sign of life.

        The server must then still have this node pinned; see `_keep_pin`.
        """
        if last and clock() < self._until and self._natty.connection.connected:
            self._say(lambda pull: pull.ack(last))
        else:
            self._withheld = last

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._ack_wait / BEATS)
            if self._pin.id and (due := self._unsettled.beat()):
                self._say(lambda pull, due=due: pull.in_progress(due))  # type: ignore[misc]

    def _say(self, say: Callable[[Pull], None]) -> None:
        try:
            if self._pull is not None:
                say(self._pull)
        except NotConnectedError:
            state = f"{self.consumer}: the messages read were not kept alive or handed back: no connection"
            self._repeated.warning(state, state)
