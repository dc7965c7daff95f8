"""Core NATS: subscriptions, and handlers that answer requests. There is no stream, and no message is sent again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Self

from natty.config.units import check_seconds
from natty.consuming.handler import is_async
from natty.names import decode
from natty.wire.background import is_cancellation
from natty.wire.connection import Connection
from natty.wire.lifetime import Running, RunsAsTask
from natty.wire.message import Headers, RawMessage, Received, encode_headers
from natty.wire.session import Subscription

logger = logging.getLogger("natty.messaging")

MAX_MESSAGES = 65536  # messages that may wait to be read
MAX_BYTES = 64 * 1024 * 1024  # bytes of payloads and headers that may wait to be read
FAILED = {"Nats-Service-Error": "the handler failed", "Nats-Service-Error-Code": "500"}  # ADR-32


class CoreMessage(Received):
    """A message of core NATS, from a subscription or as the answer to a request."""

    __slots__ = ("_connection",)

    def __init__(self, raw: RawMessage, connection: Connection) -> None:
        self._raw = raw
        self._connection = connection

    def __repr__(self) -> str:
        return f"CoreMessage({self.subject!r}, {len(self.data)} bytes)"

    @property
    def reply(self) -> str:
        """The subject on which an answer is expected; "" if none is expected."""
        return decode(self._raw[1])

    def respond(self, data: bytes = b"", *, headers: Headers | None = None) -> None:
        """Answer the request with the next write. Does nothing if no answer is expected.

        Raises as `Connection.send` does.
        """
        if self._raw[1]:
            self._connection.send(self._raw[1], data, headers=encode_headers(headers) if headers else b"")


class CoreSubscription:
    """The messages of a subject as they are published: `async with` it, then `async for message in` it.

    The server has the subscription when the block is entered. The subscription survives reconnects, but messages that
    are published while disconnected are not delivered. A reader that is too slow loses messages: while `max_messages`,
    or `max_bytes` of payloads and headers, wait to be read, it drops new messages and counts them in `dropped`. Ends
    with the block, with `stop`, or when the client is closed. With `queue`, the server delivers each message to one of
    the subscriptions of that queue group.
    """

    def __init__(
        self,
        connection: Connection,
        subject: str,
        *,
        queue: str = "",
        max_messages: int = MAX_MESSAGES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if max_messages < 1 or max_bytes < 1:
            raise ValueError(f"max_messages is {max_messages} and max_bytes {max_bytes}: name at least 1")
        self.subject, self.queue = subject, queue
        self.max_messages, self.max_bytes = max_messages, max_bytes
        self.dropped = 0  # messages that came while too many were waiting
        self._connection = connection
        self._waiting: deque[RawMessage] = deque()
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._slow = self._over = False
        self._subscription: Subscription | None = None

    def __repr__(self) -> str:
        return f"CoreSubscription({self.subject!r}, {len(self._waiting)} waiting, {self.dropped} dropped)"

    async def __aenter__(self) -> Self:
        """Subscribe, and return when the server has the subscription. Raises as `Connection.flush` does."""
        self._subscribe()
        try:
            await self._connection.flush()
        except BaseException:
            self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    async def __aiter__(self) -> AsyncGenerator[CoreMessage, None]:
        """Yield the messages. Outside of a block, it subscribes first, and ends the subscription with the loop."""
        alone = self._subscription is None
        if alone:
            self._subscribe()
        try:
            while (message := await self.next()) is not None:
                yield message
        finally:
            if alone:
                self.stop()

    async def next(self) -> CoreMessage | None:
        """Return the next message; None when the subscription has ended. Several tasks may wait at the same time."""
        while not self._waiting:
            self._connection.check_loop()
            if self._over:
                return None
            self._wake.clear()
            await self._wake.wait()
        raw = self._waiting.popleft()
        self._waiting_bytes -= len(raw[2]) + len(raw[3])
        self._slow = self._slow and bool(self._waiting)
        return CoreMessage(raw, self._connection)

    def stop(self) -> None:
        """End the subscription; waiting messages are still yielded. Safe to call from any thread. Idempotent."""
        self._connection.call_on_loop(self._stop)

    def _stop(self) -> None:
        if self._subscription is not None and not self._over:
            self._subscription.close()
            self._connection.listeners.remove(self._on_event)
        self._over = True
        self._wake.set()

    def _subscribe(self) -> None:
        if self._over or self._subscription is not None:
            raise RuntimeError(f"{self!r} was used already: create another one")
        if not self._connection.supervised:
            raise self._connection.no_session()
        self._subscription = self._connection.subscribe(self.subject, self._receive, queue=self.queue)
        self._connection.listeners.append(self._on_event)

    def _receive(self, messages: list[RawMessage]) -> None:
        for raw in messages:
            size = len(raw[2]) + len(raw[3])
            full = len(self._waiting) >= self.max_messages or self._waiting_bytes + size > self.max_bytes
            if full and self._waiting:
                self._drop()
            else:
                self._waiting.append(raw)
                self._waiting_bytes += size
        self._wake.set()

    def _drop(self) -> None:
        self.dropped += 1
        if not self._slow:
            self._slow = True
            text = "%r is read too slowly: messages are dropped until the waiting ones are read"
            logger.warning(text, self, extra={"action": "slow_consumer"})

    def _on_event(self, event: str) -> None:
        if event == "closed":
            self.stop()


Respond = Callable[[CoreMessage], Awaitable[bytes | None] | bytes | None]
"""Handles a request and returns the answer, or None to send none; `async def` on the event loop, `def` in a thread."""


class Responder(RunsAsTask):
    """Answers the requests on a subject with a handler: `await` it, run it as a task, or `async with` it.

    It ends with `stop`, with the block, or when the client is closed; running handlers then have `shutdown_timeout`
    seconds to finish. If a handler raises, the error is logged, and the caller gets an empty answer with the headers
    `Nats-Service-Error` and `Nats-Service-Error-Code`. `handled` and `failed` count requests.
    """

    def __init__(
        self,
        subscription: CoreSubscription,
        connection: Connection,
        handler: Respond,
        *,
        concurrency: int,
        shutdown_timeout: float,
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; at least one handler must run")
        check_seconds(shutdown_timeout=shutdown_timeout)
        self.handled = self.failed = 0
        self.subscription = subscription
        self._connection = connection
        self._handler = handler
        self._concurrency, self._shutdown_timeout = concurrency, shutdown_timeout
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Responder({self.subscription!r}, {self.handled} handled, {self.failed} failed)"

    async def run(self) -> None:
        """Answer requests until `stop`, close of the client, or cancellation. Raises as `CoreSubscription` does."""
        with Running(self._connection.lifetime, self.stop, self._shutdown_timeout) as running:
            async with self.subscription:
                self._ready.set()
                workers = running.around(lambda: [asyncio.create_task(self._work()) for _ in range(self._concurrency)])
                try:
                    await asyncio.gather(*workers)
                finally:
                    await self._finish(workers)

    async def _finish(self, workers: list[asyncio.Task[None]]) -> None:
        """Cancel the handlers that still run, and wait until they end."""
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    def stop(self) -> None:
        """Take no more requests; those that arrived are still answered. Safe to call from any thread. Idempotent."""
        self.subscription.stop()

    async def __aenter__(self) -> Self:
        """Start, and return when the server has the subscription."""
        self._task = asyncio.create_task(self.run())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task  # raises the error that prevented the start
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._task is not None, "__aenter__ has made it"
        self.stop()
        _, late = await asyncio.wait([self._task], timeout=self._shutdown_timeout)
        for one in late:
            one.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while (message := await self.subscription.next()) is not None:
            try:
                answer = await self._call(message)
                if answer is not None:
                    message.respond(answer)
                self.handled += 1
            except (Exception, asyncio.CancelledError) as error:
                if is_cancellation(error):
                    raise
                self.failed += 1
                logger.exception("the handler of %r failed", message, extra={"action": "respond"})
                self._say_failed(message)

    def _say_failed(self, message: CoreMessage) -> None:
        try:
            message.respond(headers=FAILED)
        except Exception as error:  # no connection: the caller's request ends by its timeout
            logger.info("the failure of %r could not be reported: %s", message, error)

    async def _call(self, message: CoreMessage) -> bytes | None:
        if is_async(self._handler):
            answer = self._handler(message)
        else:
            answer = await asyncio.to_thread(self._handler, message)
        return await answer if isinstance(answer, Awaitable) else answer
