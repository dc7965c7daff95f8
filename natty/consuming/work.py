"""The engine under `consume` and groups: it runs the handler on messages and settles them.

A message is added within a stint, waits in its lane, and is taken by a worker. When the handler returns, the message is
acknowledged. When the handler raises, it is tried again after the next delay of `retries`; after the last one, it is
stored as a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from dataclasses import replace
from itertools import chain
from typing import cast

from natty.consuming.dead_letters import DeadLetterOptions, DeadLetters
from natty.consuming.dead_letters.box import RETRY_FOR
from natty.consuming.failures import Failures
from natty.consuming.handler import FromThreads, Handler, caller, is_async, takes_message, within
from natty.consuming.lanes import Lanes, Turn
from natty.consuming.options import WorkOptions, key_by
from natty.consuming.reports import NextStep, Reports
from natty.errors import ThreadsEndedError
from natty.jetstream import JetStream
from natty.pulling.pull import Pull, size_of
from natty.wire import tracing
from natty.wire.background import cancel_all
from natty.wire.message import Message, RawMessage, Sender

logger = logging.getLogger("natty.consume")

SLICE = 0.005  # seconds that a worker runs before it yields to the event loop
_RETRY_FOR = RETRY_FOR.encode()


class Receipts:
    """Acks and credit of finished messages, joined into one write in the next iteration of the event loop.

    Acks that are due without a connection are sent when it is back: `Pull.ack` has `valid`.
    """

    def __init__(self, pull: Pull, valid: Callable[[], bool] | None) -> None:
        self._pull, self._valid = pull, valid
        self._acks: list[bytes] = []
        self._done: list[RawMessage] = []

    def __repr__(self) -> str:
        return f"Receipts({len(self._acks)} acks, {len(self._done)} done)"

    def finish(self, message: Message, *, ack: bool = False) -> None:
        """Give a message's credit back; with `ack`, acknowledge it, unless its handler has settled it."""
        raw = message.raw
        if not self._done:
            asyncio.get_running_loop().call_soon(self.send)
        self._done.append(raw)
        if ack and not message.settled:
            message.settled = True
            self._acks.append(raw[1])

    def send(self) -> None:
        """Send the joined acks; see `Pull.ack`."""
        acks, done = self._acks, self._done
        self._acks, self._done = [], []
        if acks:
            self._pull.ack(acks, self._valid)
        if done:
            self._pull.finish(len(done), size_of(done))

    def hand_back(self, messages: Iterable[Message]) -> None:
        """Request another delivery of messages that are no longer handled here."""
        self._pull.hand_back([message.raw[1] for message in messages if not message.settled])


class Stint:
    """The period in which the messages of one pull may be handled: until `end`. `groups.stint` has one with a lease.

    Ack subjects of first deliveries contain `first`. If `leased` is True, the engine checks before each call whether it
    may start, and after the call whether it may still acknowledge.
    """

    leased = False

    def __init__(self, pull: Pull, first: bytes) -> None:
        valid = self.lasts if self.leased else None
        self.receipts, self.sender, self.first = Receipts(pull, valid), pull.kept_acks.sender(valid), first
        self.over = False

    def __repr__(self) -> str:
        return f"Stint({'over' if self.over else 'open'})"

    def end(self) -> None:
        """Let no handler start any more."""
        self.over = True

    def may_start(self) -> bool:
        """Return whether a handler may start now."""
        return not self.over

    async def wait_for_change(self) -> None:
        """Wait until `may_start` may have changed."""

    def lasts(self) -> bool:
        """Return whether no other client has the messages yet: they may be settled."""
        return True

    def was_handled(self, turn: Delivery) -> bool:
        """Return whether a handler has succeeded with this message before."""
        return False

    def note_success(self, turn: Delivery) -> None:
        """Remember that a handler has succeeded with this message."""

    async def admit(self, turn: Delivery) -> None:
        """Check a message that was delivered before. TooManyDeliveriesError."""


class Delivery(Turn):
    """A message and the stint in which it was delivered."""

    __slots__ = ("stint",)

    def __init__(self, message: Message, stint: Stint) -> None:
        self.message, self.stint, self.key, self.again, self.retries = message, stint, None, False, 0
        self.fault = None


class Work:
    """Runs the handlers of one consumer, or of one member of a group across all of its stints.

    It handles one lot of a key at a time, in stream order; a lot is one message, or up to `options.batch` of them.
    Workers are tasks that live while there are messages to take, so a handler that never waits needs no separate task.
    If a handler sets context variables, its worker is replaced, so that the next handler does not see them.
    `handled` counts messages, and `failures` counts and reports errors. Spans and threads are named after `name`, and
    dead letters name `consumer`. `key` replaces `options.ordered_by`; `default_key` is for messages without a key. With
    `counts_deliveries`, deliveries before this one count as tries.
    """

    def __init__(
        self,
        jetstream: JetStream,
        name: tuple[str, str],
        consumer: str,
        handler: Handler | None,
        options: WorkOptions,
        *,
        make: Callable[[RawMessage, Sender | None], Message] = Message,
        key: Callable[[Message], Hashable] | None = None,
        default_key: Callable[[Message], Hashable] | None = None,
        counts_deliveries: bool = True,
        on_fault: Callable[[BaseException], None] = lambda fault: None,
        log: logging.Logger = logger,
    ) -> None:
        self.handled = 0
        self.cut_short = 0  # messages whose handler was stopped in time, because our lease was ending
        self.overran = 0  # messages whose handler ran after our lease had ended: another client may have run it, too
        self.repeated = 0  # messages delivered again after their handler had succeeded: acknowledged, not handled
        self.fault: BaseException | None = None  # the exception that ended a worker: KeyboardInterrupt, SystemExit, …
        self.options, self.consumer = options, consumer
        self._make, self._default_key = make, default_key
        self._key = key or (key_by(options.ordered_by) if options.ordered_by is not None else None)
        self._on_fault, self._log = on_fault, log
        self._batching = bool(options.batch and handler)
        self._lanes: Lanes[Delivery] = Lanes(lot=max(1, options.batch if handler else 1), wait=options.batch_wait)
        self._running: dict[object, list[Delivery]] = {}  # messages that are being handled, by task
        self._waiting: set[object] = set()  # tasks of `_running` that may not start yet: their stint does not allow it
        self._cut: set[object] = set()  # tasks of `_running` whose handler was stopped because our lease was ending
        self._later: dict[Delivery, asyncio.TimerHandle] = {}  # failed, to be tried again here
        self._tasks: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None  # the next call of `wake`
        self._due: asyncio.TimerHandle | None = None  # the call of `wake` when a lot that is not full is due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._watching = AsyncExitStack()
        letters: DeadLetters | None = None
        if options.dead_letters and handler is not None:
            named = options.dead_letters if isinstance(options.dead_letters, DeadLetterOptions) else None
            letters = DeadLetters(jetstream, named)
        reports = Reports(options.on_error, "/".join(name), options.concurrency, log)
        connection = jetstream.connection
        self.failures = Failures(
            connection, consumer, options, letters, reports, counts_deliveries=counts_deliveries, log=log
        )
        self._threads: ThreadPoolExecutor | None = None
        if handler is not None:
            self._prepare(name, handler)

    def _prepare(self, name: tuple[str, str], handler: Handler) -> None:
        options, in_threads = self.options, not is_async(handler)
        if options.timeout is not None and in_threads:
            raise ValueError("a thread can't be cancelled: timeout is for handlers that are `async def`")
        if in_threads:
            self._threads = ThreadPoolExecutor(options.concurrency, f"natty {'/'.join(name)}")
        call = caller(handler, batch=self._batching, threads=self._threads)
        if options.timeout is not None:
            call = within(options.timeout, call)
        self._call = tracing.trace_process(call, *name)
        plain = self._call is call and options.timeout is None and not self._batching and takes_message(handler)
        self._direct = handler if plain and not in_threads else None

    def __repr__(self) -> str:
        counts = f"{len(self._lanes)} waiting, {self.handled} handled, {self.failures.failed} failed"
        return f"Work({counts}, {self.failures.buried} buried)"

    @property
    def counts(self) -> dict[str, int]:
        """All counts of messages, by name: see `Consumption.counts`."""
        return {"handled": self.handled} | self.failures.counts

    @property
    def letters(self) -> DeadLetters | None:
        """Where dead letters are stored, None if there are none."""
        return self.failures.letters

    @property
    def waiting(self) -> int:
        """Number of messages that wait for a handler."""
        return len(self._lanes)

    def start(self) -> None:
        """Let handlers run, in the context and the event loop of this call."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._cancellations = _cancellations()

    async def watch_letters(self, stream: str, advised: str, *, strip: int = 0) -> None:
        """Until `close`, bury messages that a handler terminates or the server gives up on.

        `advised` is the consumer, or `*` for all consumers of the stream. Errors as of `DeadLetters.watch`.
        """

        async def note(raw: RawMessage, error: Exception, letter: int) -> None:
            await self.failures.note_given_up(self._make(raw, None), error, letter)

        if self.letters is not None:
            watch = self.letters.watch(stream, self.consumer, advised=advised, strip=strip, on_letter=note)
            await self._watching.enter_async_context(watch)

    def iterate_held(self) -> Iterator[Delivery]:
        """Yield unsettled messages that wait, are being handled, or will be tried again here."""
        for turn in chain(*self._running.values(), self._later, self._lanes):
            if not turn.message.settled:
                yield turn

    def add(self, stint: Stint, raws: list[RawMessage], again: int = -1) -> None:
        """Add messages in order of arrival. `again` is how many of them were delivered before; negative: unknown."""
        make, sender = self._make, FromThreads(stint.sender) if self._threads is not None else stint.sender
        turns = [Delivery(make(raw, sender), stint) for raw in raws]
        if again:
            turns = self._drop_held(stint, turns)
        if _RETRY_FOR in b"".join([raw[2] for raw in raws]):
            turns = self._drop_foreign(stint, turns)
        if self._key is not None:
            for turn in turns:
                self._give_key(turn)
        loop = self._loop
        self._lanes.add(turns, loop.time() if loop is not None else 0.0)
        self.wake()

    def _drop_held(self, stint: Stint, turns: list[Delivery]) -> list[Delivery]:
        """Mark redeliveries, and drop those of messages that are still held in this stint."""
        first = stint.first
        for turn in turns:
            turn.again = first not in turn.message.raw[1]
        if not any(turn.again for turn in turns):
            return turns
        held = {turn.message.sequence for turn in self.iterate_held() if turn.stint is stint}
        left = []
        for turn in turns:
            if turn.again and turn.message.sequence in held:
                stint.receipts.finish(turn.message)
            else:
                left.append(turn)
                held.add(turn.message.sequence)
        return left

    def _drop_foreign(self, stint: Stint, turns: list[Delivery]) -> list[Delivery]:
        """Acknowledge and drop retried dead letters of other consumers: our consumer had not failed with them."""
        left = []
        for turn in turns:
            if turn.message.headers.get(RETRY_FOR, [self.consumer]) == [self.consumer]:
                left.append(turn)
            else:
                stint.receipts.finish(turn.message, ack=stint.lasts())
        return left

    def _give_key(self, turn: Delivery) -> None:
        assert self._key is not None
        try:
            turn.key = self._key(turn.message)
            hash(turn.key)
        except (Exception, asyncio.CancelledError) as error:  # the message fails when it is its turn
            turn.key, turn.fault, turn.again = None, error, True  # a lot of its own
        if turn.key is None and self._default_key is not None:
            turn.key = self._default_key(turn.message)

    def hand_out(self) -> Message | None:
        """Return the next message to a caller without a handler; it calls `finish_one` afterwards."""
        if turns := self._lanes.take():
            self._running[None] = turns
            return turns[0].message
        return None

    def finish_one(self) -> None:
        """Finish the message that was handed out last: free its memory, and make the next of its key ready."""
        (turn,) = self._running.pop(None)
        self._lanes.finish(turn)
        turn.stint.receipts.finish(turn.message)

    def release(self, stint: Stint, *, hand_back: bool = True) -> None:
        """End a stint and drop messages whose handler has not begun. Running handlers continue."""
        stint.end()
        for timer in self._later.values():
            timer.cancel()
        later, self._later = list(self._later), {}
        turns = [*later, *self._lanes.clear()]
        for turn in later:
            self._lanes.finish(turn)
        for turn in turns:
            turn.stint.receipts.finish(turn.message)
        if hand_back:
            stint.receipts.hand_back(turn.message for turn in turns)

    def fence(self, stint: Stint) -> int:
        """Stop the handlers of a stint whose lease is ending, since another client may then get their messages.

        Return the number of these messages. A thread can't be stopped: its message is only counted.
        """
        late, count = not stint.lasts(), 0
        for task, turns in self._running.items():
            if turns[0].stint is not stint or task in self._waiting or task in self._cut:
                continue
            count += len(turns)
            if late or self._threads is not None:
                self._report_overrun(turns)
            if self._threads is None:
                self.cut_short += len(turns)
                self._cut.add(task)
                cast("asyncio.Task[None]", task).cancel()
        return count

    def _report_overrun(self, turns: list[Delivery]) -> None:
        self.overran += len(turns)
        text = "%r was being handled when our lease ended: another client may have it"
        for turn in turns:
            self._log.error(text, turn.message, extra={"action": "overran"})

    async def finish(self, timeout: float) -> None:
        """Wait until no handler runs; cancel handlers that still run after `timeout` seconds.

        They are cancelled at once if the caller is cancelled meanwhile, or was cancelled more than once since `start`.
        """
        if not self._tasks:
            return
        if _cancellations() > self._cancellations + 1:
            timeout = 0.0
        try:
            await asyncio.wait(self._tasks, timeout=timeout)
        finally:
            late = [task for task in self._tasks if not task.done()]
            if late:
                what = "handlers" if self.options.on_error is None else "handlers, or calls of on_error,"
                self._log.warning("%d %s did not finish within %g s: cancelled", len(late), what, timeout)
            await cancel_all(late)

    async def close(self, timeout: float) -> None:
        """As `finish`, and take no more messages."""
        self._stopping = True
        if self._due is not None:
            self._due.cancel()
        try:
            await self.finish(timeout)
        finally:
            await self._watching.aclose()
            await self.failures.reports.close()
            if self._threads is not None:
                self._threads.shutdown(wait=False)

    def wake(self) -> None:
        """Start a worker if a message can be taken; the worker starts the next one."""
        self._soon = None
        if self._loop is None or self._stopping or len(self._tasks) >= self.options.concurrency:
            return
        due = self._lanes.due_in(self._loop.time())
        if due == 0.0:
            task = self._loop.create_task(self._take_and_handle(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._on_task_end)
        elif due is not None and self._due is None:
            self._due = self._loop.call_later(due, self._look)

    def _look(self) -> None:
        self._due = None
        self.wake()

    async def _take_and_handle(self) -> None:
        loop, lanes, clean, errors = (
            asyncio.get_running_loop(),
            self._lanes,
            self._context,
            self.failures.reports.waiting,
        )
        concurrency, clock = self.options.concurrency, loop.time
        task = asyncio.current_task()
        assert task is not None
        now = clock()
        slice_end = now + SLICE
        while not self._stopping and (turns := lanes.take(now)):
            if self._soon is None and len(self._tasks) < concurrency:
                self._soon = loop.call_soon(self.wake)
            self._running[task] = turns
            try:
                await self._handle(turns, task)
            finally:
                del self._running[task]
            if errors:
                await self.failures.reports.send()
            if copy_context() != clean:
                return
            now = clock()
            if now >= slice_end:
                await asyncio.sleep(0)
                now = clock()
                slice_end = now + SLICE

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self.fault = fault
            self._log.error("the handler of %s was ended by %r", self.consumer, fault, extra={"action": "broken"})
            self._on_fault(fault)
        self.wake()

    async def _handle(self, turns: list[Delivery], task: asyncio.Task[None]) -> None:
        """Run the handler on a lot and settle it, or give the lot up if the handler is cancelled."""
        try:
            if not turns[0].stint.leased or await self._may_begin(turns, task):
                await self._attempt(turns, task)
        except asyncio.CancelledError:
            if task not in self._cut:
                self._give_up(turns)
                self._let_go(turns)
                raise
            self._begin_again(turns)
        except BaseException:
            self._give_up(turns)
            raise
        finally:
            if task in self._cut:
                self._cut.discard(task)
                task.uncancel()

    async def _attempt(self, turns: list[Delivery], task: asyncio.Task[None]) -> None:
        try:
            if turns[0].fault is not None:
                raise turns[0].fault
            if turns[0].again:
                await turns[0].stint.admit(turns[0])
            if self._direct is not None:
                await self._direct(turns[0].message)
            else:
                await self._call([turn.message for turn in turns])
        except asyncio.CancelledError as error:
            if task.cancelling():
                step = self._step_after_stop(turns, task)
                self.failures.report([turn.message for turn in turns if not turn.message.settled], error, step)
                raise
            await self._fail(turns, error, task)  # the handler awaited something that was cancelled
        except ThreadsEndedError:
            raise  # the handler has not begun
        except Exception as error:
            await self._fail(turns, error, task)
        else:
            self.handled += len(turns)
            if turns[0].stint.leased and not turns[0].stint.lasts() and task not in self._cut:
                self._report_overrun(turns)
            self._succeed(turns)

    async def _may_begin(self, turns: list[Delivery], task: object) -> bool:
        """Wait until the stint lets the handler start. Return whether any message is left to handle."""
        stint = turns[0].stint
        self._waiting.add(task)
        try:
            while not stint.may_start() and not stint.over:
                await stint.wait_for_change()
        finally:
            self._waiting.discard(task)
        if stint.over:
            self._let_go(turns)
            return False
        known = [turn for turn in turns if stint.was_handled(turn)]
        turns[:] = [turn for turn in turns if turn not in known]
        self.repeated += len(known)
        for turn in known:
            stint.receipts.finish(turn.message, ack=stint.lasts())
        if not turns:
            self._lanes.finish(known[0], self._now())
        return bool(turns)

    def _succeed(self, turns: list[Delivery]) -> None:
        stint = turns[0].stint
        ack = True
        if stint.leased:
            ack = stint.lasts()  # otherwise the server could take it for the ack of the client that has the message now
            for turn in turns:
                if not turn.message.settled:  # by its handler, which may want another delivery
                    stint.note_success(turn)
        finish = stint.receipts.finish
        for turn in turns:
            finish(turn.message, ack=ack)
        if turns[0].key is not None:
            self._lanes.finish(turns[0], self._now())

    def _now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0

    def _let_go(self, turns: list[Delivery]) -> None:
        """Drop a lot, and make the next message of its key ready."""
        for turn in turns:
            turn.stint.receipts.finish(turn.message)
        self._lanes.finish(turns[0], self._now())

    def _give_up(self, turns: list[Delivery]) -> None:
        """Hand back unfinished messages. With a lease, the next pinned client gets them after the ack wait."""
        if not turns[0].stint.leased:
            turns[0].stint.receipts.hand_back(turn.message for turn in turns)

    def _begin_again(self, turns: list[Delivery]) -> None:
        """Handle a lot again whose handler was stopped; if the stint is over, leave it to another client."""
        if turns[0].stint.over:
            self._let_go(turns)
        else:
            self._lanes.again(turns)

    def _step_after_stop(self, turns: list[Delivery], task: object) -> NextStep:
        """Return what happens to a lot whose task was stopped; after a fence, it is handled here again."""
        again = task in self._cut and not turns[0].stint.over
        return NextStep(action="retry", delay=0.0) if again else NextStep(action="handed_back")

    async def _decide(self, turns: list[Delivery], error: BaseException, task: object) -> dict[Delivery, NextStep]:
        """Return what happens to each message. If a stop comes meanwhile, report all, and leave the unsettled ones."""
        steps: dict[Delivery, NextStep] = {}
        try:
            for turn in turns:
                ours = turn.message.settled or turn.stint.lasts()
                steps[turn] = await self.failures.decide(turn, error) if ours else NextStep(action="handed_back")
        except asyncio.CancelledError:
            stopped = self._step_after_stop(turns, task)
            for turn in [*turns]:
                step = steps.get(turn) or (NextStep(action="settled") if turn.message.settled else stopped)
                self.failures.report([turn.message], error, stopped if step.action == "retry" else step)
                if step.action in ("dead_letter", "settled"):
                    turns.remove(turn)
                    turn.stint.receipts.finish(turn.message)
            raise
        return steps

    async def _fail(self, turns: list[Delivery], error: BaseException, task: object) -> None:
        """Try each message again after its next delay; bury it after its last delay, or if it can never succeed."""
        failures, handed_back = self.failures, NextStep(action="handed_back")
        failures.count(len(turns), error)
        steps = await self._decide(turns, error, task)
        left = [turn for turn, step in steps.items() if step.action == "retry"]
        here = bool(left) and left[0].key is not None and not left[0].stint.over
        for turn in left:
            if turn.key is not None and not here:
                self._give_up([turn])  # the later messages of its key went to another client, which needs this first
                steps[turn] = handed_back
                continue
            delay = failures.delay(turn, error)
            sent = here or failures.nak(turn.message, delay)
            steps[turn] = replace(steps[turn], delay=delay) if sent else handed_back
        for turn, step in steps.items():
            failures.report([turn.message], error, step)
            if not here or step.action != "retry":
                turn.stint.receipts.finish(turn.message)
        if here:
            self._retry_here(left, steps[left[0]].delay or 0.0)
        else:
            self._lanes.finish(turns[0], self._now())

    def _retry_here(self, turns: list[Delivery], delay: float) -> None:
        """Try the first again after its delay, then each of the others alone; later messages of their key wait."""
        self._lanes.put_behind(turns[0], turns[1:])
        self._later[turns[0]] = asyncio.get_running_loop().call_later(delay, self._retry, turns[0])

    def _retry(self, turn: Delivery) -> None:
        del self._later[turn]
        self._lanes.again([turn])
        self.wake()


def _cancellations() -> int:
    """Return how many times the current task has been cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
