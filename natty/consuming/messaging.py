"""Core NATS: subscriptions, and handlers that answer requests. There is no stream, and no message is sent again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from natty.config.units import check_seconds
from natty.consuming.handler import is_async, run_in_thread
from natty.errors import AuthorizationError, ThreadsEndedError
from natty.names import decode
from natty.wire.background import is_cancellation
from natty.wire.connection import Connection
from natty.wire.lifetime import Running, RunsAsTask, start
from natty.wire.message import Batch, Headers, RawMessage, Received, Sink, encode_headers
from natty.wire.repeated import REFUSALS_EVERY, Repeated
from natty.wire.session import Subscription

logger = logging.getLogger("natty.messaging")
_repeated = Repeated(logger, every=REFUSALS_EVERY)

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

        The caller names the subject of the answer. Below `$` are the APIs of servers and streams, never a caller: such
        an answer is not sent, and is logged. Raises as `Connection.send` does.
        """
        reply = self._raw[1]
        if reply.startswith(b"$"):
            text = f"an answer to {self.reply!r} is not sent: a request on {self.subject!r} names an API of the server"
            _repeated.error("an answer to an API of the server", text, extra={"action": "forged_reply"})
        elif reply:
            self._connection.send(reply, data, headers=encode_headers(headers) if headers else b"")


async def subscribe(connection: Connection, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
    """Subscribe as `Connection.subscribe`, and return when the server has the subscription.

    AuthorizationError if the server does not permit it; otherwise as `Connection.subscribe` and `Connection.flush`.
    """
    if not connection.supervised:
        raise connection.no_session()
    subscription = connection.subscribe(subject, sink, queue=queue)
    try:
        await connection.flush()
        if connection.is_refused(subscription):
            of = f" in the queue group {queue!r}" if queue else ""
            raise AuthorizationError(f"not permitted: this user may not subscribe to {subject!r}{of}")
    except BaseException:
        subscription.close()
        raise
    return subscription


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
        self._slow = self._used = False
        self.ended = asyncio.Event()  # no more messages are received
        self._subscription: Subscription | None = None

    def __repr__(self) -> str:
        return f"CoreSubscription({self.subject!r}, {len(self._waiting)} waiting, {self.dropped} dropped)"

    async def __aenter__(self) -> Self:
        """Subscribe, and return when the server has the subscription. Raises as `subscribe` does."""
        await self._subscribe()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()

    async def __aiter__(self) -> AsyncGenerator[CoreMessage, None]:
        """Yield the messages. Outside of a block, it subscribes first, and ends the subscription with the loop."""
        alone = self._subscription is None
        if alone:
            await self._subscribe()
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
            if self.ended.is_set():
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
        if self._subscription is not None and not self.ended.is_set():
            self._subscription.close()
            self._connection.listeners.remove(self._on_event)
        self.ended.set()
        self._wake.set()

    async def _subscribe(self) -> None:
        if self._used or self.ended.is_set():
            raise RuntimeError(f"{self!r} was used already: create another one")
        self._used = True
        try:
            subscription = await subscribe(self._connection, self.subject, self._receive, queue=self.queue)
        except BaseException:
            self.stop()
            raise
        if self.ended.is_set():  # stopped meanwhile
            subscription.close()
            return
        self._subscription = subscription
        self._connection.listeners.append(self._on_event)

    def _receive(self, batch: Batch) -> None:
        for raw in batch.raw:
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
    `Nats-Service-Error` and `Nats-Service-Error-Code`. `handled` and `failed` count requests. `ready` is set when the
    server has the subscription.
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
        if not callable(handler):
            raise TypeError(f"{handler!r} is not a callable object")
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; at least one handler must run")
        check_seconds(shutdown_timeout=shutdown_timeout)
        self.handled = self.failed = 0
        self.subscription = subscription
        self._connection = connection
        self._handler = handler
        self._concurrency, self._shutdown_timeout = concurrency, shutdown_timeout
        self.ready = asyncio.Event()
        self._threads: ThreadPoolExecutor | None = None
        if not is_async(handler):
            self._threads = ThreadPoolExecutor(concurrency, f"natty {subscription.subject}")
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Responder({self.subscription!r}, {self.handled} handled, {self.failed} failed)"

    @property
    def counts(self) -> dict[str, int]:
        """Counts of requests: `handled` and `failed`."""
        return {"handled": self.handled, "failed": self.failed}

    async def run(self) -> None:
        """Answer requests until `stop`, close of the client, or cancellation. Raises as `CoreSubscription` does."""
        with Running(self._connection.lifetime, self.stop, self._shutdown_timeout) as running:
            try:
                async with self.subscription:
                    self.ready.set()
                    await self._finish(
                        running.around(lambda: [asyncio.create_task(self._work()) for _ in range(self._concurrency)])
                    )
            finally:
                if self._threads is not None:
                    self._threads.shutdown(wait=False)

    async def _finish(self, workers: list[asyncio.Task[None]]) -> None:
        """Wait for the end of the subscription, then for the handlers, which are cancelled after `shutdown_timeout`."""
        ended = asyncio.create_task(self.subscription.ended.wait())
        try:
            await asyncio.wait([ended, *workers], return_when=asyncio.FIRST_COMPLETED)
            self.stop()  # a worker ends before the subscription only by a fault
            _, late = await asyncio.wait(workers, timeout=self._shutdown_timeout)
            if late:
                text = "%d handlers of %r did not finish within %g s: cancelled"
                logger.warning(text, len(late), self, self._shutdown_timeout)
        finally:
            for task in (ended, *workers):
                task.cancel()
            results = await asyncio.gather(*workers, return_exceptions=True)
        for fault in results:
            if isinstance(fault, BaseException) and not isinstance(fault, asyncio.CancelledError):
                raise fault

    def stop(self) -> None:
        """Take no more requests; those that arrived are still answered. Safe to call from any thread. Idempotent."""
        self.subscription.stop()

    async def __aenter__(self) -> Self:
        """Start, and return when the server has the subscription."""
        self._task = await start(self.run(), self.ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None, "__aenter__ has made it"
        self.stop()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while (message := await self.subscription.next()) is not None:
            try:
                answer = await self._call(message)
                if answer is not None:
                    message.respond(answer)
                self.handled += 1
            except ThreadsEndedError as error:
                logger.warning("%r is not answered: %s", message, error, extra={"action": "respond"})
                raise
            except (Exception, asyncio.CancelledError) as error:
                if is_cancellation(error):
                    raise
                self._fail(message)

    def _fail(self, message: CoreMessage) -> None:
        """Log the error that is being handled, and tell the caller that its request failed."""
        self.failed += 1
        logger.exception("the handler of %r failed", message, extra={"action": "respond"})
        try:
            message.respond(headers=FAILED)
        except Exception as error:  # no connection: the caller's request ends by its timeout
            logger.info("the failure of %r could not be reported: %s", message, error)

    async def _call(self, message: CoreMessage) -> bytes | None:
        if self._threads is None:
            answer = self._handler(message)
            return await answer if isinstance(answer, Awaitable) else answer
        result: bytes | None = await run_in_thread(self._threads, self._handler, message)
        return result
