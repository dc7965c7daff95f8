"""Handlers for the messages of a durable consumer: creates the consumer, pulls, and runs the handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, cast

from natty.config.units import NANOSECONDS
from natty.consuming.handler import Handler
from natty.consuming.options import ConsumeOptions
from natty.consuming.shutdown import stop_on_signals
from natty.consuming.work import Stint, Work
from natty.errors import ConsumerNotFoundError, NattyError, NotConnectedError, UnsupportedError
from natty.jetstream import JetStream
from natty.pulling.pull import Pull
from natty.pulling.requests import PullOptions
from natty.streams import ConsumerConfig, ServerConsumerConfig, create_consumer
from natty.streams.stranded import QueueMender
from natty.wire.ack import first_delivery
from natty.wire.background import cancel_all, keep_up
from natty.wire.counters import HANDLER
from natty.wire.lifetime import Running, RunsAsTask
from natty.wire.message import Message

logger = logging.getLogger("natty.consume")

SPARE_DELIVERIES = 10  # beyond `retries`: a restart hands messages back without a try, which counts as a delivery
FLUSH_TIMEOUT = 2.0  # seconds to wait for the server to have the last acks


class Consumption(RunsAsTask):
    """Messages of a durable consumer: `await` it with a handler, or iterate over it and settle each message yourself.

    If the handler returns, the message is acked, unless the handler settled it. If the handler raises, the message is
    delivered again after the next delay of `retries`; after the last one, or at once if its body does not fit the
    handler's annotation, it becomes a dead letter and is terminated. Each error is reported to `options.on_error`.
    `counts` counts messages; a batch that fails counts each of its messages, and each is then tried alone.
    With `ordered_by` a message that failed keeps its place: this process tries it again, later messages of its key
    wait, and all of them count against `max_messages`. `message.deliveries` does not count these retries. The order
    holds within one process: use groups to spread keys over several.
    """

    def __init__(
        self,
        jetstream: JetStream,
        stream: str,
        durable: str,
        handler: Handler | None = None,
        options: ConsumeOptions | None = None,
        consumer: ConsumerConfig | None = None,
    ) -> None:
        options = self.options = options or ConsumeOptions()
        self._jetstream, self._stream, self._durable = jetstream, stream, durable
        self._consumer: ConsumerConfig = consumer or {}
        self._has_handler = handler is not None
        if options.on_error is not None and handler is None:
            raise TypeError("on_error reports errors of a handler: pass a handler, or catch errors in your own loop")
        self.ready = asyncio.Event()  # `run` is connected, and has the consumer
        self._pull = Pull(
            jetstream,
            stream,
            durable,
            PullOptions(max_messages=options.max_messages, max_bytes=options.max_bytes, read_pause=options.read_pause),
            recreate=self._ensure,
            on_stop=lambda: self._work.release(self._stint),
        )
        self._stint = Stint(self._pull, first_delivery(stream, durable))
        self._work = Work(
            jetstream, (stream, durable), durable, handler, options, on_fault=lambda fault: self._pull.stop()
        )
        if handler is not None:
            self._pull.deliver = partial(self._work.add, self._stint)

    def __repr__(self) -> str:
        work = self._work
        counts = f"{work.waiting} waiting, {work.handled} handled, {self.failed} failed, {self.buried} buried"
        return f"Consumption({self._pull!r}, {counts})"

    @property
    def handled(self) -> int:
        """Number of messages that the handler succeeded with."""
        return self._work.handled

    @property
    def failed(self) -> int:
        """Number of failures: a message counts each time that the handler fails with it."""
        return self._work.failures.failed

    @property
    def retried(self) -> int:
        """Number of retries, including those that are still due."""
        return self._work.failures.retried

    @property
    def buried(self) -> int:
        """Number of failed messages that became dead letters."""
        return self._work.failures.buried

    @property
    def counts(self) -> dict[str, int]:
        """All counts of messages by name; those that have no property of their own are described here.

        `timed_out`, `undecodable`: failures by the handler's time limit, and by a body that does not fit its
        annotation. `given_up`: dead letters of messages that a handler terminated, or that the server gave up on
        (`max_deliver`). `handed_back`: failed or stopped messages that the server delivers again at a time that it
        decides. `unreported`: errors that `on_error` failed to take.
        """
        return self._work.counts

    @property
    def redelivered(self) -> int:
        """Number of messages that had been delivered before, to this process or another."""
        return self._pull.counts.redelivered

    @property
    def stalled(self) -> bool:
        """Whether no messages can arrive: the server or its consumer does not answer."""
        return self._pull.stalled

    def stop(self) -> None:
        """Take no more messages, and let running handlers finish. Safe to call from any thread. Idempotent."""
        self._pull.stop()

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """Yield messages one by one, in order. A message counts as unfinished until you request the next one. Once."""
        self._pull.check_unused()
        work = self._work
        async with AsyncExitStack() as stack:
            stack.enter_context(self._running(reader=asyncio.current_task()))
            await stack.enter_async_context(self._attend())
            async for batch in await stack.enter_async_context(aclosing(self._pull.__aiter__())):
                work.add(self._stint, batch.raw)
                while not self._pull.stopping and (message := work.hand_out()) is not None:
                    yield message
                    work.finish_one()

    async def run(self) -> None:
        """Run the handler on every message until `stop`, a signal, or cancellation.

        Running handlers then get `shutdown_timeout` seconds to finish; the other messages are handed back. A thread
        can't be cancelled: the process does not end before a handler in a thread returns.
        A consumption runs once: RuntimeError the second time. If it was stopped before it ran, it returns at once.
        """
        if not self._has_handler:
            raise TypeError("consume() was given no handler: iterate over it with `async for`, or pass one")
        self._pull.check_unused()
        work = self._work
        async with AsyncExitStack() as stack:
            running = stack.enter_context(self._running())
            running.around(work.start)
            stack.push_async_callback(self._flush)
            await stack.enter_async_context(self._attend())
            stack.push_async_callback(work.close, self.options.shutdown_timeout)
            await work.watch_letters(self._stream, self._durable)
            self.ready.set()
            await self._pull.run()
        if work.fault is not None:
            raise work.fault

    def _running(self, *, reader: asyncio.Task[Any] | None = None) -> Running:
        lifetime = self._jetstream.connection.lifetime
        return Running(lifetime, self.stop, self.options.shutdown_timeout, reader=reader)

    async def _ensure(self) -> ServerConsumerConfig:
        """Create the consumer if it is missing. The `max_deliver` of an existing one may be too low for `retries`."""
        settings = self._consumer
        if self._work.letters is not None:
            try:
                await self._jetstream.request(f"CONSUMER.INFO.{self._stream}.{self._durable}")
            except ConsumerNotFoundError:
                settings = {"max_deliver": len(self.options.retries) + 1 + SPARE_DELIVERIES, **settings}
        consumer = await create_consumer(self._jetstream, self._stream, self._durable, settings)
        if self._work.letters is not None and 0 < consumer.get("max_deliver", -1) <= len(self.options.retries):
            text = "consumer %s of %s delivers %d times: its messages are dead letters before the %d retries are over"
            facts = (self._durable, self._stream, consumer["max_deliver"], len(self.options.retries))
            logger.warning(text, *facts, extra={"action": "short_ladder"})
        if consumer["ack_policy"] != "explicit":
            raise UnsupportedError(
                f"consumer {self._durable} has ack_policy {consumer['ack_policy']}: consume settles every message by"
                " itself and needs explicit; use pull for the others"
            )
        self._pull.respect(cast("dict[str, Any]", consumer))
        return consumer

    @asynccontextmanager
    async def _attend(self) -> AsyncIterator[None]:
        """Within the block, restart `ack_wait` of held messages, look for forgotten ones, and stop at signals."""
        consumer = await self._ensure()
        every = consumer["ack_wait"] / NANOSECONDS / 3
        letters = self._work.letters
        buried = letters.find_letter if letters is not None else None
        mender = QueueMender(self._jetstream, self._stream, self._durable, buried)
        tasks = [
            asyncio.create_task(keep_up(f"keeping messages of {self!r}", lambda: self._keep_alive(every))),
            asyncio.create_task(keep_up(f"looking for forgotten messages of {self!r}", mender.run)),
        ]
        observed = self._jetstream.connection.observed
        observed.add(self._work, HANDLER, self._stream, self._durable)
        try:
            with stop_on_signals(self.stop) if self.options.signals else nullcontext():
                yield
        finally:
            observed.retire(self._work)
            await cancel_all(tasks)

    async def _keep_alive(self, every: float) -> None:
        while self.options.keep_alive:
            await asyncio.sleep(every)
            with suppress(NotConnectedError):
                self._pull.keep_waiting()
                self._pull.in_progress([turn.message.raw[1] for turn in self._work.iterate_held()])

    async def _flush(self) -> None:
        """Wait until the server has the last acks."""
        with suppress(NattyError):
            await self._jetstream.connection.flush(FLUSH_TIMEOUT)
