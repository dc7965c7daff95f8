from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from capture.errors import NotAlone
from capture.ingest.ack_floor import DeliveryGap, Floor
from natty import Batch, JetStreamError, Natty, NotConnectedError, Pull, RequestTimeoutError, StreamNotFoundError
from natty.errors import ConnectionClosedError
from natty.names import check_name
from natty.wire.background import keep_up
from natty.wire.message import RawMessage
from natty.wire.repeated import Repeated

log = logging.getLogger("capture.source")

TICK = 0.25  # seconds: how often a quiet stream is looked at, so that blocks come of age
ENOUGH = 1000  # messages that are worth a batch of their own
GATHER = 0.01  # seconds that fewer of them wait for more
READ_AHEAD = 32_768  # messages asked for and not yet in a block; a quarter of that makes the node wait for the server
END_TIMEOUT = 2.0  # seconds that the reading has to end by itself
ALONE_WITHIN = 20.0  # seconds that another reader has to leave: its requests live for 10 s when it was killed
UNAVAILABLE = 503  # the server's leaders are being elected
BEATS = 3  # in an `ack_wait`; a message is told of from its second beat on, so at two thirds of it at the latest


async def stream_info(natty: Natty, stream: str) -> dict[str, Any]:
    """Return what the server says of the stream. StreamNotFoundError, BadNameError."""
    try:
        return await natty.jetstream.request(f"STREAM.INFO.{check_name('stream', stream)}")
    except StreamNotFoundError as error:
        raise StreamNotFoundError(
            f"there is no stream {stream!r} on this server: create it, or name another with --stream",
            code=error.code,
            err_code=error.err_code,
        ) from error


class Unsettled:
    """Messages that were read and not settled, by their replies. It tells which of them the server must hear of.

    Two sets, so that in the usual flow, where a message is settled before its second beat, nothing is told at all.
    """

    def __init__(self) -> None:
        self._new: set[bytes] = set()
        self._old: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def __repr__(self) -> str:
        return f"Unsettled({len(self._new)} new, {len(self._old)} old)"

    def add(self, replies: list[bytes]) -> None:
        """Take note of messages that came."""
        self._new.update(replies)

    def remove(self, replies: list[bytes]) -> None:
        """Forget messages that are settled."""
        self._new.difference_update(replies)
        if self._old:
            self._old.difference_update(replies)

    def beat(self) -> list[bytes]:
        """Return the messages that were there at the last beat already: their `ack_wait` has to be restarted."""
        due = list(self._old)
        self._old |= self._new
        self._new = set()
        return due

    def take(self) -> list[bytes]:
        """Return all of them, and forget them."""
        everything = [*self._old, *self._new]
        self._old, self._new = set(), set()
        return everything


class Source:
    """The messages of a durable consumer, batch by batch, and where they are settled. Use it with `async with`.

    While it is open, messages are read ahead and the server is told that work on the unsettled ones goes on: however
    slow the store, nothing is delivered again after `ack_wait`. It yields an empty batch at least every `TICK` seconds.
    A lost connection loses no message: what could not be acknowledged comes again, and is told apart by its sequence.

    With `together` the consumer's acknowledgements count for all messages before them (`ack_policy: all`), and only
    those are acknowledged up to which everything is stored. Nobody else may read the consumer then: NotAlone if
    somebody does, before anything of theirs is acknowledged.
    """

    def __init__(self, natty: Natty, stream: str, durable: str, *, ack_wait: float, together: bool = False) -> None:
        self.read = 0
        self._natty, self._stream, self._durable = natty, stream, durable
        self._pull = self._new_pull()
        self._floor = Floor() if together else None
        self._stopping = False
        self._beat = ack_wait / BEATS
        self._unsettled = Unsettled()
        self._arrived: list[RawMessage] = []
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
        """Hand back, to be delivered again at once, what was not settled."""
        self.stop()
        await asyncio.wait(self._tasks[:1], timeout=END_TIMEOUT)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.nak(self._unsettled.take())

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Yield batches until `stop`. ConsumerNotFoundError if the consumer is deleted."""
        reader = self._tasks[0]
        while not reader.done():
            if not self._arrived:
                await self._arrival()
            if 0 < len(self._arrived) < ENOUGH:
                await asyncio.sleep(GATHER)  # a batch costs about as much as 100 messages: take what comes right behind
            batch, self._arrived = Batch(self._arrived), []
            self.read += len(batch)
            if self._floor is not None and batch.raw:
                self._floor.read(batch)
            yield batch
            self._pull.finished(len(batch))  # it is in its blocks, which are bounded on their own
        await reader  # raises what ended it

    async def _arrival(self) -> None:
        """Return when something came, at a tick, or when the reading has ended."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK):  # not wait_for: before Python 3.12 it may swallow a cancellation
                await self._wake.wait()

    async def _read_ahead(self) -> None:
        """Read as far ahead as the credit goes, whatever the pipeline waits for; then hand back what it did not take.

        What only waits here is kept alive like everything else.
        """
        try:
            if self._floor is not None:
                await self._read_alone(self._floor)
                return
            async for batch in self._pull:
                self._take(batch)
        finally:
            self.nak([raw[1] for raw in self._arrived])
            self._arrived = []
            self._wake.set()

    async def _read_alone(self, floor: Floor) -> None:
        """Read every message of the consumer. Where some got lost with a connection, begin again after the last ack."""
        while await self._begin(floor):
            try:
                async with aclosing(self._pull.__aiter__()) as batches:
                    async for batch in batches:
                        floor.arrived(batch.replies)
                        self._take(batch)
                return
            except DeliveryGap as gap:
                if not self._pull.counts.renewals:
                    raise NotAlone(f"{self._others()}: {gap}. Nothing from there on was acknowledged") from gap
                log.warning("what was delivered while the connection was lost is asked for again: %s", gap)
            self._pull = self._new_pull()

    async def _begin(self, floor: Floor) -> bool:
        """Have everything that is not acknowledged delivered to us alone, in order; False if stopped. NotAlone."""
        deadline = asyncio.get_running_loop().time() + ALONE_WITHIN
        where = f"{self._stream}.{self._durable}"
        while not self._stopping:
            try:
                waiting = (await self._natty.jetstream.request(f"CONSUMER.INFO.{where}"))["num_waiting"]
                if not waiting:
                    await self._natty.jetstream.request(f"CONSUMER.RESET.{where}")
                    self._unsettled.take()
                    self._arrived = []
                    floor.begin()
                    return True
                if asyncio.get_running_loop().time() > deadline:
                    raise NotAlone(f"{self._others()}: it asks for messages right now, {waiting} times")
            except ConnectionClosedError:
                raise
            except (RequestTimeoutError, NotConnectedError, JetStreamError) as error:
                if isinstance(error, JetStreamError) and error.code != UNAVAILABLE:
                    raise
                state = f"can't take up consumer {self._durable} of stream {self._stream} yet"
                self._repeated.warning(state, f"{state}: {error}")
            await asyncio.sleep(TICK)
        return False

    def _others(self) -> str:
        return (
            f"consumer {self._durable} of stream {self._stream} is read by somebody else too, and with"
            f' ack = "all" an acknowledgement here would count for messages there. Stop the other reader, or use'
            f' another durable, with ack = "explicit" for several nodes'
        )

    def _new_pull(self) -> Pull:
        return self._natty.pull(self._stream, self._durable, max_messages=READ_AHEAD)

    def _take(self, batch: Batch) -> None:
        self._unsettled.add(batch.replies)
        self._arrived += batch.raw
        self._wake.set()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._send(self._pull.in_progress, self._unsettled.beat(), "unsettled messages were not kept alive")

    def stop(self) -> None:
        """End after the current batch."""
        self._stopping = True
        self._pull.stop()

    def ack(self, replies: list[bytes]) -> None:
        """Tell the server that these messages are done. Called by `commit.py` alone."""
        self._unsettled.remove(replies)
        last = replies if self._floor is None else self._floor.stored(replies)
        self._send(self._pull.ack, last, "stored messages were not acked")

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        """Ask for these messages again."""
        self._unsettled.remove(replies)
        self._send(lambda given: self._pull.nak(given, delay), replies, "messages were not handed back")

    def _send(self, say: Callable[[list[bytes]], None], replies: list[bytes], otherwise: str) -> None:
        try:
            if replies:
                say(replies)
        except NotConnectedError:
            text = f"{len(replies)} {otherwise}: no connection; they come again after ack_wait"
            self._repeated.warning(f"{otherwise}, no connection", text, messages=len(replies))
