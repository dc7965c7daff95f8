from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from natty.errors import NotConnectedError
from natty.jetstream import JetStream
from natty.message import Batch, Message
from natty.pull import Pull, PullOptions
from natty.stream import NANOSECONDS, ensure_consumer

logger = logging.getLogger("natty.consume")

Handler = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """How a handler is run."""

    concurrency: int = 1
    retries: tuple[float, ...] = (1.0, 5.0, 30.0, 300.0)  # seconds before each redelivery; the last one repeats
    shutdown_timeout: float = 10.0  # seconds that running handlers have to finish when asked to stop
    max_messages: int = 500  # asked for or being handled at one time
    keep_alive: bool = True  # restart ack_wait of what runs and of what waits for its turn

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; at least one handler must run")
        if not self.retries:
            raise ValueError("retries is empty; name at least one delay in seconds")


class Consumption:
    """Messages of a durable consumer: `await` it with a handler, or iterate over it and settle each message yourself.

    The handler returns: the message is acked. It raises: the message comes again after the next delay of `retries`.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        durable: str,
        handler: Handler | None = None,
        options: ConsumeOptions | None = None,
        consumer: dict[str, Any] | None = None,
    ) -> None:
        self.options = options or ConsumeOptions()
        self._jetstream = jetstream
        self._stream, self._durable = stream, durable
        self._handler = handler
        self._consumer = consumer
        self._slots = asyncio.Semaphore(self.options.concurrency)
        self._open: set[Message] = set()  # handed to us and not done with
        self._pull = Pull(
            jetstream,
            stream,
            durable,
            PullOptions(max_messages=self.options.max_messages),
            recreate=self._ensure,
            on_stop=self._slots.release,  # wakes the loop that waits for a slot
        )

    def __repr__(self) -> str:
        return f"Consumption({self._pull!r})"

    def __await__(self) -> Generator[Any, None, None]:
        return self.run().__await__()

    def stop(self) -> None:
        """Stop gracefully: no more messages are taken; the ones being handled finish."""
        self._pull.stop()

    async def _ensure(self) -> dict[str, Any]:
        return await ensure_consumer(self._jetstream, self._stream, self._durable, self._consumer)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages one by one; a message's memory counts until the next one is asked for."""
        async with self._kept_alive(await self._ensure()), aclosing(self._pull.__aiter__()) as batches:
            async for batch in batches:
                messages = self._taken(batch)
                try:
                    while messages and not self._pull.stopping:
                        yield (message := messages.popleft())
                        self._open.discard(message)
                        self._pull.finished(1)
                finally:
                    self._hand_back(messages)

    async def run(self) -> None:
        """Run the handler on every message until `stop` or cancellation.

        Either way running handlers get `shutdown_timeout` seconds to finish; the others are handed back.
        """
        if self._handler is None:
            raise TypeError("consume() was given no handler: iterate over it with `async for`, or pass one")
        running: set[asyncio.Task[None]] = set()
        async with self._kept_alive(await self._ensure()):
            try:
                async with aclosing(self._pull.__aiter__()) as batches:
                    async for batch in batches:
                        await self._start(self._taken(batch), running)
            finally:
                await self._finish(running)

    @asynccontextmanager
    async def _kept_alive(self, consumer: dict[str, Any]) -> AsyncIterator[None]:
        """Meanwhile, restart `ack_wait` of all that is open, three times in it."""
        task = asyncio.create_task(self._keep_alive(consumer["ack_wait"] / NANOSECONDS / 3))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_alive(self, every: float) -> None:
        while self.options.keep_alive:
            await asyncio.sleep(every)
            with suppress(NotConnectedError):
                self._pull.keep_waiting()
                for message in self._open:
                    if not message.settled:
                        message.in_progress()

    def _taken(self, batch: Batch) -> deque[Message]:
        messages = deque(batch)
        self._open.update(messages)
        return messages

    async def _start(self, messages: deque[Message], running: set[asyncio.Task[None]]) -> None:
        """Start a handler for each message as slots come free; when stopped or cancelled, hand back the rest."""
        try:
            while messages:
                await self._slots.acquire()
                if self._pull.stopping:
                    return
                task = asyncio.create_task(self._handle(messages.popleft()))
                running.add(task)
                task.add_done_callback(running.discard)
        finally:
            self._hand_back(messages)

    async def _handle(self, message: Message) -> None:
        assert self._handler is not None
        try:
            await self._handler(message)
            self._settle(message.ack)
        except asyncio.CancelledError:
            self._settle(message.nak)
            raise
        except Exception as error:
            retries = self.options.retries
            delay = retries[min(message.deliveries, len(retries)) - 1]
            logger.warning("%r failed, again in %g s: %r", message, delay, error, extra={"action": "retry"})
            self._settle(lambda: message.nak(delay))
        finally:
            self._open.discard(message)
            self._slots.release()
            self._pull.finished(1)

    async def _finish(self, running: set[asyncio.Task[None]]) -> None:
        self._pull.stop()
        if not running:
            return
        try:
            await asyncio.wait(running, timeout=self.options.shutdown_timeout)
        finally:
            late = [task for task in running if not task.done()]
            for task in late:
                logger.warning("a handler did not finish within %g s: cancelled", self.options.shutdown_timeout)
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _hand_back(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._open.discard(message)
            self._settle(message.nak)

    def _settle(self, settle: Callable[[], None]) -> None:
        try:
            settle()
        except NotConnectedError:
            logger.warning("a message could not be settled: no connection; it comes again after ack_wait")
