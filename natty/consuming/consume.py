from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from itertools import chain
from typing import Any, cast

from natty.config.units import NANOSECONDS
from natty.consuming.bodies import BodyError
from natty.consuming.dead_letters import BURIED, DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.box import RETRY_FOR
from natty.consuming.dead_letters.letter import reason_of
from natty.consuming.handler import Call, FromThreads, Handler, caller, is_async, within
from natty.consuming.lanes import Lanes, Turn
from natty.consuming.options import ConsumeOptions, key_by
from natty.consuming.receipts import Receipts
from natty.consuming.shutdown import stopped_by_signals
from natty.consuming.workers import Workers
from natty.errors import ConsumerNotFoundError, NattyError, NotConnectedError, UnsupportedError
from natty.jetstream import JetStream
from natty.pulling.pull import Pull, size_of
from natty.pulling.requests import PullOptions
from natty.streams import ConsumerConfig, ServerConsumerConfig, create_consumer
from natty.streams.stranded import QueueMender
from natty.wire import tracing
from natty.wire.ack import first_delivery
from natty.wire.background import keep_up
from natty.wire.connection import Connection
from natty.wire.counters import HANDLER
from natty.wire.lifetime import Running, RunsAsTask
from natty.wire.message import Batch, Message

logger = logging.getLogger("natty.consume")

SPARE_DELIVERIES = 10  # beyond the ladder: restarts hand messages back untried, and that counts as a delivery
BURY_AGAIN_DELAY = 5.0  # seconds before a message that could not be buried is tried again, if there is no ladder
FLUSH_TIMEOUT = 2.0  # seconds to wait for the server to have the last acks
_RETRY_FOR = RETRY_FOR.encode()


class Consumption(RunsAsTask):
    """Messages of a durable consumer: `await` it with a handler, or iterate over it and settle each message yourself.

    The handler returns: the message is acked, unless the handler settled it. It raises: the message comes again after
    the next delay of `retries`; after the last one, or at once if its body does not fit the handler's annotation, it
    becomes a dead letter and is terminated. `handled`, `failed`, `retried`, `buried` and `redelivered` count messages;
    a batch that fails counts each of its own.
    With `ordered_by` a message that failed keeps its place: it is tried again here, the later ones of its key wait,
    and all of them count against `max_messages`. Its retries then don't show in `message.deliveries`. The order holds
    within one process: use groups to spread keys over several.
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
        self.handled = self.failed = self.retried = self.buried = 0
        self._jetstream, self._stream, self._durable = jetstream, stream, durable
        self._consumer: ConsumerConfig = consumer or {}
        self._key = key_by(options.ordered_by)
        self._lanes = Lanes(lot=max(1, options.batch if handler else 1), wait=options.batch_wait)
        self._in_hand: Iterable[Turn] = ()  # being handled
        self._workers: Workers | None = None
        self._later: dict[Turn, asyncio.TimerHandle] = {}  # failed, to be tried again here
        self._fault: BaseException | None = None
        self._first_delivery = first_delivery(stream, durable)
        self._settled_by = jetstream.connection
        self._pull = Pull(
            jetstream,
            stream,
            durable,
            PullOptions(max_messages=options.max_messages, max_bytes=options.max_bytes),
            recreate=self._ensure,
            on_stop=self._hand_back,
        )
        self._receipts = Receipts(self._pull)
        self._call: Call | None = None
        self._letters: DeadLetters | None = None
        if handler is not None:
            self._prepare(handler)

    def _prepare(self, handler: Handler) -> None:
        options = self.options
        self._in_threads = not is_async(handler)
        if options.timeout is not None and self._in_threads:
            raise ValueError("a thread can't be cancelled: timeout is for handlers that are `async def`")
        self._threads = ThreadPoolExecutor(options.concurrency, f"natty {self._stream}/{self._durable}")
        self._call = caller(handler, batch=bool(options.batch), threads=self._threads)
        if options.timeout is not None:
            self._call = within(options.timeout, self._call)
        self._call = tracing.processing(self._call, self._stream, self._durable)
        if options.dead_letters:
            named = options.dead_letters if isinstance(options.dead_letters, DeadLetterOptions) else None
            self._letters = DeadLetters(self._jetstream, named)

    def __repr__(self) -> str:
        counts = f"{len(self._lanes)} waiting, {self.handled} handled, {self.failed} failed, {self.buried} buried"
        return f"Consumption({self._pull!r}, {counts})"

    @property
    def redelivered(self) -> int:
        """How many messages came that had been delivered before, to this process or another."""
        return self._pull.counts.redelivered

    @property
    def stalled(self) -> bool:
        """Whether messages can't be had: the server or its consumer does not answer."""
        return self._pull.stalled

    def stop(self) -> None:
        """Stop gracefully: no more messages are taken; the ones being handled finish."""
        self._pull.stop()

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """Yield messages one by one, in order; a message's memory counts until the next one is asked for. Once."""
        self._pull.check_unused()
        async with AsyncExitStack() as stack:
            stack.enter_context(self._running(reader=asyncio.current_task()))
            await stack.enter_async_context(self._attended())
            async for batch in await stack.enter_async_context(aclosing(self._pull.__aiter__())):
                self._lanes.add(self._turns(batch))
                while not self._pull.stopping and (turns := self._lanes.take()):
                    self._in_hand = turns
                    yield turns[0].message
                    self._in_hand = ()
                    self._pull.finished(1, size_of([turns[0].message.raw]))

    async def run(self) -> None:
        """Run the handler on every message until `stop`, a signal, or cancellation.

        Running handlers then get `shutdown_timeout` seconds to finish; the others are handed back. A thread can't be
        cut short: the process does not end before a handler in a thread returns.
        A consumption runs once, RuntimeError the second time; one that was stopped before it ran returns at once.
        """
        if self._call is None:
            raise TypeError("consume() was given no handler: iterate over it with `async for`, or pass one")
        self._pull.check_unused()
        if self._in_threads:
            self._settled_by = cast("Connection", FromThreads(self._jetstream.connection))
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            running = stack.enter_context(self._running())
            workers = running.around(lambda: Workers(self._lanes, self._handle, self.options.concurrency, self._broken))
            self._in_hand = self._workers = workers
            stack.callback(self._threads.shutdown, wait=False)
            stack.push_async_callback(self._flush)
            await stack.enter_async_context(self._attended())
            if self._letters is not None:
                await stack.enter_async_context(self._letters.watch(self._stream, self._durable))
            stack.push_async_callback(workers.finish, self.options.shutdown_timeout)
            async with aclosing(self._pull.__aiter__()) as batches:
                async for batch in batches:
                    self._lanes.add(self._turns(batch), loop.time())
                    workers.wake()
        if self._fault is not None:
            raise self._fault

    def _running(self, *, reader: asyncio.Task[Any] | None = None) -> Running:
        lifetime = self._jetstream.connection.lifetime
        return Running(lifetime, self.stop, self.options.shutdown_timeout, reader=reader)

    def _broken(self, fault: BaseException) -> None:
        self._fault = fault
        self.stop()

    async def _ensure(self) -> ServerConsumerConfig:
        """Make the consumer if there is none. What exists may have another `max_deliver` than our ladder wants."""
        settings = self._consumer
        if self._letters is not None:
            try:
                await self._jetstream.request(f"CONSUMER.INFO.{self._stream}.{self._durable}")
            except ConsumerNotFoundError:
                settings = {"max_deliver": len(self.options.retries) + 1 + SPARE_DELIVERIES, **settings}
        consumer = await create_consumer(self._jetstream, self._stream, self._durable, settings)
        if self._letters is not None and 0 < consumer.get("max_deliver", -1) <= len(self.options.retries):
            text = "consumer %s of %s delivers %d times: its messages are dead before the %d retries are over"
            facts = (self._durable, self._stream, consumer["max_deliver"], len(self.options.retries))
            logger.warning(text, *facts, extra={"action": "short_ladder"})
        if consumer["ack_policy"] != "explicit":
            raise UnsupportedError(
                f"consumer {self._durable} has ack_policy {consumer['ack_policy']}: consume settles every message by"
                " itself and needs explicit; use pull for the others"
            )
        return consumer

    @asynccontextmanager
    async def _attended(self) -> AsyncIterator[None]:
        """Meanwhile, restart `ack_wait` of all that is held, look for what was forgotten, and stop at signals."""
        consumer = await self._ensure()
        every = consumer["ack_wait"] / NANOSECONDS / 3
        buried = self._letters.buried if self._letters is not None else None
        mender = QueueMender(self._jetstream, self._stream, self._durable, buried)
        tasks = [
            asyncio.create_task(keep_up(f"keeping messages of {self!r}", lambda: self._keep_alive(every))),
            asyncio.create_task(keep_up(f"looking for forgotten messages of {self!r}", mender.run)),
        ]
        observed = self._jetstream.connection.observed
        observed.add(self, HANDLER, self._stream, self._durable)
        try:
            with stopped_by_signals(self.stop) if self.options.signals else nullcontext():
                yield
        finally:
            observed.retire(self)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_alive(self, every: float) -> None:
        while self.options.keep_alive:
            await asyncio.sleep(every)
            with suppress(NotConnectedError):
                self._pull.keep_waiting()
                self._pull.in_progress([message.raw[1] for message in self._held()])

    def _held(self) -> list[Message]:
        """Return the messages that wait, are being handled, or are to be tried again here."""
        turns = chain(self._in_hand, self._later, self._lanes)
        return [turn.message for turn in turns if not turn.message.settled]

    def _turns(self, batch: Batch) -> list[Turn]:
        """Return the messages with their keys."""
        connection, first = self._settled_by, self._first_delivery
        turns = [Turn(Message(raw, connection), again=first not in raw[1]) for raw in batch.raw]
        if any(turn.again for turn in turns):
            turns = self._without_held(turns)
        if any(_RETRY_FOR in raw[2] for raw in batch.raw):
            turns = self._without_foreign(turns)
        if self.options.ordered_by is not None:
            for turn in turns:
                self._give_key(turn)
        return turns

    def _without_held(self, turns: list[Turn]) -> list[Turn]:
        """Drop redeliveries of what we still hold."""
        held = {message.sequence for message in self._held()}
        left = []
        for turn in turns:
            if turn.again and turn.message.sequence in held:
                self._receipts.done(turn.message)
            else:
                left.append(turn)
        return left

    def _without_foreign(self, turns: list[Turn]) -> list[Turn]:
        """Acknowledge dead letters of other consumers that were published again: ours was no failure."""
        left = []
        for turn in turns:
            if turn.message.headers.get(RETRY_FOR, [self._durable]) == [self._durable]:
                left.append(turn)
            else:
                self._receipts.ack(turn.message)
                self._receipts.done(turn.message)
        return left

    def _give_key(self, turn: Turn) -> None:
        try:
            turn.key = self._key(turn.message)
            hash(turn.key)
        except Exception as error:  # the user's function: its message has failed, and holds back nobody
            turn.key, turn.fault = None, error

    async def _handle(self, turns: list[Turn]) -> None:
        """Run the handler on a lot and settle it, or hand it back if that is cut short."""
        try:
            await self._attempt(turns)
        except BaseException:
            self._receipts.hand_back(turn.message for turn in turns)
            raise

    async def _attempt(self, turns: list[Turn]) -> None:
        assert self._call is not None
        try:
            if turns[0].fault is not None:
                raise turns[0].fault
            await self._call([turn.message for turn in turns])
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            await self._failed(turns, error)  # the handler awaited something that was cancelled
        except Exception as error:
            await self._failed(turns, error)
        else:
            self.handled += len(turns)
            for turn in turns:
                self._receipts.ack(turn.message)
                self._done(turn)

    def _done(self, turn: Turn) -> None:
        """Be done with a message: the next of its key may come, and its credit goes back."""
        self._lanes.done(turn, asyncio.get_running_loop().time())
        self._receipts.done(turn.message)

    async def _failed(self, turns: list[Turn], error: BaseException) -> None:
        """Try each again after its next delay; bury those that had their last one, and bodies that can't fit."""
        self.failed += len(turns)
        hopeless = isinstance(error, BodyError)
        for turn in turns:
            tries = turn.message.deliveries + turn.retries
            if turn.message.settled:
                text = "%r was settled by its handler, which failed then: %r"
                logger.warning(text, turn.message, error, extra={"action": "settled"})
                self._done(turn)
            elif (hopeless or tries > len(self.options.retries)) and await self._bury(turn.message, error):
                self._done(turn)
            else:
                self._retry(turn, tries, error)

    async def _bury(self, message: Message, error: BaseException) -> bool:
        """Make a dead letter of the message; return whether that is done: without dead letters, never."""
        if self._letters is None:
            return False
        reason = reason_of(error)
        try:
            await self._letters.bury(message, consumer=self._durable, reason=reason, error=error)
        except Exception as refused:  # one that nobody thought of must not end all the others' handling
            text, unknown = "%r could not be buried, it is tried again: %s", not isinstance(refused, NattyError)
            logger.error(text, message, refused, exc_info=unknown, extra={"action": "bury"})
            return False
        logger.error("%r is a dead letter: %s", message, reason, extra={"action": "dead letter"})
        self._receipts.settle(message, lambda message: message.term(BURIED))
        self.buried += 1
        return True

    def _retry(self, turn: Turn, tries: int, error: BaseException) -> None:
        """Have it again after the delay of its rung: from the server, or from here if its key waits for it."""
        retries = self.options.retries
        delay = retries[min(tries, len(retries)) - 1] if retries else BURY_AGAIN_DELAY
        logger.warning("%r failed, again in %g s: %r", turn.message, delay, error, extra={"action": "retry"})
        self.retried += 1
        if turn.key is None:
            self._receipts.settle(turn.message, lambda message: message.nak(delay))
            self._done(turn)
        elif self._pull.stopping:  # those behind it were handed back as well: whoever has them next needs it first
            self._receipts.hand_back([turn.message])
            self._done(turn)
        else:
            turn.retries += 1
            self._later[turn] = asyncio.get_running_loop().call_later(delay, self._again, turn)

    def _again(self, turn: Turn) -> None:
        del self._later[turn]
        self._lanes.again(turn)
        if self._workers is not None:
            self._workers.wake()

    def _hand_back(self) -> None:
        """Have everything that waits delivered to others."""
        for timer in self._later.values():
            timer.cancel()
        turns = (*self._later, *self._lanes.clear())
        self._later.clear()
        self._receipts.hand_back(turn.message for turn in turns)

    async def _flush(self) -> None:
        """Let the server have the last acks."""
        with suppress(NattyError):
            await self._jetstream.connection.flush(FLUSH_TIMEOUT)
