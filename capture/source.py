from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

from natty import Batch, Natty, NotConnectedError, Pull, StreamNotFoundError
from natty.message import RawMessage
from natty.stream import check_name

log = logging.getLogger(__name__)

TICK = 0.25  # seconds: how often a quiet stream is looked at, so that blocks come of age
READ_AHEAD = 8192  # messages asked for and not yet in a block
END_TIMEOUT = 2.0  # seconds that the reading has to end by itself
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
    """

    def __init__(self, natty: Natty, stream: str, durable: str, *, ack_wait: float) -> None:
        self.read = 0
        self._pull: Pull = natty.pull(stream, durable, max_messages=READ_AHEAD)
        self._beat = ack_wait / BEATS
        self._unsettled = Unsettled()
        self._arrived: list[RawMessage] = []
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"Source({self._pull!r}, {self.read} read, {self._unsettled!r})"

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._read_ahead(), name="capture source"),
            asyncio.create_task(self._keep_alive(), name="capture keep-alive"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand back, to be delivered again at once, what was not settled."""
        self._pull.stop()
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
            batch, self._arrived = Batch(self._arrived), []
            self.read += len(batch)
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
            async for batch in self._pull:
                self._unsettled.add(batch.replies)
                self._arrived += batch.raw
                self._wake.set()
        finally:
            self.nak([raw[1] for raw in self._arrived])
            self._arrived = []
            self._wake.set()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._send(self._pull.in_progress, self._unsettled.beat(), "unsettled messages were not kept alive")

    def stop(self) -> None:
        """End after the current batch."""
        self._pull.stop()

    def ack(self, replies: list[bytes]) -> None:
        """Tell the server that these messages are done. Called by `commit.py` alone."""
        self._unsettled.remove(replies)
        self._send(self._pull.ack, replies, "stored messages were not acked")

    def nak(self, replies: list[bytes], delay: float = 0.0) -> None:
        """Ask for these messages again."""
        self._unsettled.remove(replies)
        self._send(lambda given: self._pull.nak(given, delay), replies, "messages were not handed back")

    def _send(self, say: Callable[[list[bytes]], None], replies: list[bytes], otherwise: str) -> None:
        try:
            if replies:
                say(replies)
        except NotConnectedError:
            log.warning("%d %s: no connection; they come again after ack_wait", len(replies), otherwise)
