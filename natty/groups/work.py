from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from natty.config.units import check_timings
from natty.consuming.bodies import BodyError
from natty.consuming.dead_letters import BURIED, DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.box import RETRY_FOR
from natty.consuming.dead_letters.letter import reason_of
from natty.consuming.handler import FromThreads, Handler, caller, is_async
from natty.consuming.lanes import Lanes, Turn
from natty.consuming.options import OrderedBy, key_by
from natty.consuming.workers import Workers
from natty.errors import NattyError
from natty.groups.stint import Stint
from natty.jetstream import JetStream
from natty.names import decode
from natty.wire import tracing
from natty.wire.ack import identity_of
from natty.wire.connection import Connection
from natty.wire.message import Message, RawMessage

logger = logging.getLogger("natty.groups")

PARTITION = "partition"
MAX_DELIVERIES = 30
_RETRY_FOR = RETRY_FOR.encode()


class TooManyDeliveriesError(NattyError):
    """A message was delivered very often and never finished: it may end the process that handles it."""


class PartitionedMessage(Message):
    """A message of a group: its subject is the one that it was published on, its `partition` the token before that."""

    __slots__ = ()

    @property
    def subject(self) -> str:
        """The subject without the partition token."""
        return decode(self._raw[0].partition(b".")[2] or self._raw[0])

    @property
    def partition(self) -> str:
        """The partition that it is in."""
        return decode(self._raw[0].partition(b".")[0])


class _Turn(Turn):
    """A message, the stint in which it came, and what names it in every incarnation of its consumer."""

    __slots__ = ("cut", "identity", "stint", "task")

    def __init__(self, message: Message, key: Hashable, stint: Stint, identity: bytes) -> None:
        super().__init__(message, key)
        self.stint, self.identity = stint, identity
        self.task: asyncio.Task[Any] | None = None  # while its handler runs
        self.cut = False  # its handler was stopped, because our lease was ending


@dataclass(frozen=True, kw_only=True)
class WorkOptions:
    """How a member's handler is run. Of one key, one message at a time, in stream order."""

    ordered_by: OrderedBy = PARTITION  # or a finer key: "subject", "header:NAME", a function of the message
    concurrency: int = 100  # handlers at one time
    retries: Sequence[float] = (1.0, 5.0, 30.0)  # seconds before each try after a failure; its key waits meanwhile
    dead_letters: bool | DeadLetterOptions = True  # where messages go after the last retry; False: the last one repeats
    max_deliveries: int = MAX_DELIVERIES  # after so many that did not finish it, a message is a dead letter: counted
    # by the consumer, which an elastic member loses with its last instance, and without its `max_deliver` (Go has none)

    def __post_init__(self) -> None:
        check_timings(self, "retries")
        if self.max_deliveries < 1:
            raise ValueError(f"max_deliveries is {self.max_deliveries}; a message must be delivered once to be handled")
        if self.ordered_by is None:
            raise ValueError('a group is there for order: ordered_by is "partition", or a key within the partition')
        if self.concurrency < 1:
            raise ValueError(f"concurrency is {self.concurrency}; at least one handler must run")
        if not self.retries:
            raise ValueError("retries is empty; name at least one delay in seconds")


class Work:
    """A member's handlers, through all consumers and pins that the member has: a key is never in two of them.

    A message that comes again while its handler runs waits behind it, and is only acknowledged if that succeeded.
    Until a handler has succeeded its message is not acknowledged, and no later one of its key is begun.
    """

    def __init__(self, jetstream: JetStream, group: str, name: str, handler: Handler, options: WorkOptions) -> None:
        self.handled = self.failed = self.retried = self.buried = 0
        self.cut_short = 0  # handlers that were stopped in time, because our lease was ending
        self.overran = 0  # handlers that still ran when it had ended: they may have run beside somebody else's
        self.repeated = 0  # messages that came again after their handler had succeeded: acknowledged, and not handled
        self.options = options
        self.group = group
        self._threads = None if is_async(handler) else ThreadPoolExecutor(options.concurrency, f"natty {name}")
        threads = cast("ThreadPoolExecutor", self._threads)
        self._call = tracing.processing(caller(handler, batch=False, threads=threads), group, name)
        connection = jetstream.connection
        self._settled_by = connection if self._threads is None else cast("Connection", FromThreads(connection))
        named = options.dead_letters if isinstance(options.dead_letters, DeadLetterOptions) else None
        self.letters = DeadLetters(jetstream, named) if options.dead_letters else None
        self._key = (
            (lambda message: message.partition) if options.ordered_by == PARTITION else key_by(options.ordered_by)
        )
        self._lanes = Lanes()
        self._workers = Workers(self._lanes, self._handle, options.concurrency, self._broken)
        self._in_hand: dict[bytes, _Turn] = {}
        self._running: set[_Turn] = set()
        self._later: dict[_Turn, asyncio.TimerHandle] = {}
        self._suspects: dict[Hashable, tuple[bytes, int]] = {}  # by key: what came too often, and how often
        self._watching = AsyncExitStack()
        self._succeeded: set[bytes] = set()
        self._succeeded_before: set[bytes] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self.fault: BaseException | None = None

    def __repr__(self) -> str:
        counts = f"{len(self._running)} running, {len(self._in_hand)} in hand"
        return f"Work({counts}, {self.handled} handled, {self.failed} failed)"

    @property
    def running(self) -> int:
        """How many handlers run."""
        return len(self._running)

    def in_hand(self, reads: object) -> list[bytes]:
        """Return the ack subjects of what this reading brought and we did not settle."""
        held = (turn for turn in chain(self._in_hand.values(), self._running) if turn.stint.reads is reads)
        return list({turn.message.raw[1] for turn in held if not turn.message.settled})

    def held_in(self, stint: Stint) -> list[bytes]:
        """Return the ack subjects of what came in this stint and is not settled."""
        held = chain(self._in_hand.values(), self._running)
        return [turn.message.raw[1] for turn in held if turn.stint is stint and not turn.message.settled]

    def add(self, stint: Stint, raws: Iterable[RawMessage]) -> None:
        """Take in what arrived, in order."""
        turns: list[Turn] = []
        for raw in raws:
            message = PartitionedMessage(raw, self._settled_by)
            identity = identity_of(raw[1])
            held = self._in_hand.get(identity)
            if held is not None and held.stint is stint:
                stint.receipts.done(message)  # we still have it
                continue
            turn = self._in_hand[identity] = _Turn(message, None, stint, identity)
            self._give_key(turn)
            turns.append(turn)
        self._lanes.add(turns)
        self._workers.wake()

    def _give_key(self, turn: _Turn) -> None:
        message = cast("PartitionedMessage", turn.message)
        try:
            turn.key = self._key(message)
            hash(turn.key)
        except Exception as error:  # the user's function: its message has failed, in its turn
            turn.key, turn.fault = None, error
        if turn.key is None:
            turn.key = message.partition

    def release(self, stint: Stint, *, hand_back: bool) -> None:
        """Let go of what has not begun: we are no longer pinned, or about to leave. Handlers that run go on."""
        stint.end()
        for timer in self._later.values():
            timer.cancel()
        turns = cast("list[_Turn]", [*self._later, *self._lanes.clear()])
        self._later.clear()
        busy = {turn.key for turn in self._workers}
        for key in {turn.key: turn for turn in turns if turn.key not in busy}.values():
            self._lanes.done(key)
        for turn in turns:
            self._forget(turn)
        if hand_back:
            stint.receipts.hand_back(turn.message for turn in turns)

    def fence(self, stint: Stint) -> int:
        """Stop the handlers of a stint whose lease is ending: somebody else may have their messages then.

        Return how many there were. A thread can't be stopped: its handler is only counted.
        """
        late = not stint.lasts()
        turns = [turn for turn in self._running if turn.stint is stint and not turn.cut]
        for turn in turns:
            if late or self._threads is not None:
                self._overran(turn)
            if self._threads is None and turn.task is not None:
                self.cut_short += 1
                turn.cut = True
                turn.task.cancel()
        return len(turns)

    def _overran(self, turn: _Turn) -> None:
        self.overran += 1
        text = "%r was being handled when our lease ended: somebody else may have it"
        logger.error(text, turn.message, extra={"action": "overran"})

    async def finish(self, timeout: float) -> None:
        """Return when no handler runs; those that still do after so many seconds are cancelled."""
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            logger.warning("%d handlers did not finish within %g s: cancelled", len(self._running), timeout)
            for turn in list(self._running):
                if turn.task is not None:
                    turn.cut = True
                    turn.task.cancel()
            await self._quiet.wait()

    async def watch_letters(self, stream: str, advised: str) -> None:
        """Until `close`, make letters of what a handler terminates and of what the server gives up on.

        `advised` is the consumer, or `*` for all of the stream's. Errors as of `DeadLetters.watch`.
        """
        if self.letters is not None:
            watch = self.letters.watch(stream, self.group, advised=advised, strip=1)  # the partition
            await self._watching.enter_async_context(watch)

    async def close(self, timeout: float) -> None:
        """As `finish`, and take nothing any more."""
        await self.finish(timeout)
        await self._workers.finish(timeout)
        await self._watching.aclose()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def age(self) -> None:
        """Forget what succeeded before the last time that this was called, and suspects with nothing behind them."""
        self._succeeded_before, self._succeeded = self._succeeded, set()
        busy = {turn.key for turn in chain(self._in_hand.values(), self._running)}
        self._suspects = {key: suspect for key, suspect in self._suspects.items() if key in busy}

    async def _handle(self, turns: list[Turn]) -> None:
        turn = cast("_Turn", turns[0])
        stint = turn.stint
        while not stint.may_start():
            if stint.over:
                self._let_go(turn)
                return
            await stint.changed()
        if turn.identity in self._succeeded or turn.identity in self._succeeded_before:
            self.repeated += 1
            self._succeed(turn)
            return
        await self._attempt(turn)

    async def _attempt(self, turn: _Turn) -> None:
        turn.task = asyncio.current_task()
        self._running.add(turn)
        self._quiet.clear()
        try:
            if turn.fault is not None:
                raise turn.fault
            await self._check_deliveries(turn)
            if self._is_ours(turn.message):
                await self._call([turn.message])
        except asyncio.CancelledError as error:
            assert turn.task is not None
            if turn.cut:
                turn.task.uncancel()
                self._cut(turn)
            elif turn.task.cancelling():
                self._let_go(turn)
                raise
            else:  # the handler awaited something that was cancelled
                await self._failed(turn, error)
        except Exception as error:
            await self._failed(turn, error)
        else:
            self.handled += 1
            if not turn.stint.lasts() and not turn.cut:
                self._overran(turn)
            self._succeed(turn)
        finally:
            turn.task = None
            self._running.discard(turn)
            if not self._running:
                self._quiet.set()

    async def _check_deliveries(self, turn: _Turn) -> None:
        """TooManyDeliveriesError for what came too often, the first one of its key: those behind it came as often.

        One of these is the next to be refused if it comes more often than that.
        """
        deliveries, most = turn.message.deliveries, self.options.max_deliveries
        if deliveries > 1:  # it may end this process: let the acks of those before it be written
            await asyncio.sleep(0)
        suspect, times = self._suspects.get(turn.key, (turn.identity, 0))
        if deliveries <= most or (suspect != turn.identity and deliveries <= times):
            return
        self._suspects[turn.key] = turn.identity, deliveries
        text = f"it was delivered {deliveries} times (max_deliveries {most}) and never finished"
        if self.letters is not None:
            raise TooManyDeliveriesError(f"{text}: does its handler end the process?")
        logger.error("%r: %s; it is handled again, as there are no dead letters", turn.message, text)

    def _is_ours(self, message: Message) -> bool:
        """Return whether it is no dead letter of another consumer that was published again."""
        return _RETRY_FOR not in message.raw[2] or message.headers[RETRY_FOR] == [self.group]

    def _succeed(self, turn: _Turn) -> None:
        if not turn.message.settled:  # by its handler, which may want it again
            self._succeeded.add(turn.identity)
        if turn.stint.lasts():  # else the ack could be taken for that of somebody who has it now
            turn.stint.receipts.ack(turn.message)
        self._let_go(turn)

    def _cut(self, turn: _Turn) -> None:
        """Its handler was stopped: it has its turn again if we stay pinned, and goes to somebody else if not."""
        turn.cut = False
        if turn.stint.over:
            self._let_go(turn)
        else:
            self._lanes.again(turn)

    def _let_go(self, turn: _Turn) -> None:
        self._lanes.done(turn)
        self._forget(turn)

    def _forget(self, turn: _Turn) -> None:
        if self._in_hand.get(turn.identity) is turn:
            del self._in_hand[turn.identity]
        turn.stint.receipts.done(turn.message)

    async def _failed(self, turn: _Turn, error: BaseException) -> None:
        """Try it again after its next delay, or make a dead letter of it."""
        self.failed += 1
        turn.retries += 1
        hopeless = isinstance(error, BodyError | TooManyDeliveriesError) or turn.retries > len(self.options.retries)
        if turn.message.settled or turn.stint.over or (hopeless and await self._bury(turn.message, error)):
            self._let_go(turn)
            return
        delay = self.options.retries[min(turn.retries, len(self.options.retries)) - 1]
        logger.warning("%r failed, again in %g s: %r", turn.message, delay, error, extra={"action": "retry"})
        self.retried += 1
        self._later[turn] = asyncio.get_running_loop().call_later(delay, self._again, turn)

    def _again(self, turn: _Turn) -> None:
        del self._later[turn]
        self._lanes.again(turn)
        self._workers.wake()

    async def _bury(self, message: Message, error: BaseException) -> bool:
        """Make a dead letter of the message and terminate it; return whether that is done."""
        if self.letters is None:
            return False
        reason = reason_of(error)
        try:
            await self.letters.ensure()
            await self.letters.bury(message, consumer=self.group, reason=reason, error=error)
            message.term(BURIED)
        except Exception as refused:  # one that nobody thought of must not end all the others' handling
            text, unknown = "%r could not be buried, it is tried again: %s", not isinstance(refused, NattyError)
            logger.error(text, message, refused, exc_info=unknown, extra={"action": "bury"})
            return False
        logger.error("%r is a dead letter: %s", message, reason, extra={"action": "dead letter"})
        self.buried += 1
        return True

    def _broken(self, fault: BaseException) -> None:
        self.fault = fault
        logger.error("the handler of %s was ended by %r", self.group, fault, extra={"action": "broken"})


def by_sequence(raws: Iterable[RawMessage]) -> list[RawMessage]:
    """Return messages in stream order, each once."""
    once: dict[bytes, RawMessage] = {identity_of(raw[1]): raw for raw in raws}
    return [once[one] for one in sorted(once, key=lambda one: int(one.partition(b".")[0]))]
