"""An instance of a member: it follows the group's record, keeps its consumer, and runs the handler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Any, Self

from natty.config.units import NANOSECONDS
from natty.consuming.handler import Handler
from natty.errors import (
    BadGroupError,
    BucketNotFoundError,
    ConsumerExistsError,
    GroupNotFoundError,
    KeyNotFoundError,
    NattyError,
)
from natty.groups.admin import BUCKETS, GroupAdmin
from natty.groups.instance import Do, Instance, Own, Step
from natty.groups.joining import JoinOptions, MemberEvent, State
from natty.groups.lag import count_lag
from natty.groups.place import Place, parse_info
from natty.groups.reading import Reading
from natty.groups.records import Record, may_follow
from natty.groups.settings import Timings, is_outdated
from natty.groups.stint import Memory, make_work
from natty.jetstream import JetStream
from natty.kv import Bucket, Entry, Event, Gone, PictureComplete
from natty.wire.background import cancel_all
from natty.wire.counters import GROUP, HANDLER
from natty.wire.lifetime import Running

logger = logging.getLogger("natty.groups")

ASK_AGAIN = 0.3  # seconds before the next try if the server did not answer
EVENTS_HELD = 1000


class Membership:
    """One instance of a member: `async with group.join("m1", handler) as membership`.

    Several instances of one name are each other's standbys: the server gives the messages to one of them. The handler
    is called for one message of a key at a time, in stream order. The instance recovers from the loss of consumer, pin,
    server or connection by comparing its state with the server's. `handed_over` counts how often we gave up our
    consumer, and `hand_over_seconds` adds up how long that took; `rebalances` counts changes of our partitions.
    """

    def __init__(
        self, jetstream: JetStream, admin: GroupAdmin[Any], member: str, handler: Handler, options: JoinOptions
    ) -> None:
        self.member, self.options = member, options
        self.state = State.JOINING
        self.rebalances = self.handed_over = self.lost = 0
        self.hand_over_seconds = 0.0
        self.record: Record | None = None
        self.limit: Callable[[], float] = lambda: float("inf")  # latest end of a lease, see `autojoin`
        self.longest = float("inf")  # seconds that such a lease lasts
        self.alone = False  # whether no other instance can have this name
        self._jetstream = jetstream
        self._group, self._elastic = admin, admin.kind == "elastic"
        self._place = Place(jetstream, admin, member, options.settings)
        self.source, self.group = admin.stream, admin.name
        self.stream, self.consumer = self._place.stream, self._place.consumer
        self._bucket = Bucket(jetstream, BUCKETS[admin.kind])
        self._key = admin.key
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._cause: BaseException | None = None
        self._leaving = self._deleted = False
        self._reading: Reading | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Queue[MemberEvent]] = []
        self.work = make_work(jetstream, self.group, member, handler, options, self._wake.set)
        self._memory = Memory(options.max_deliveries, gives_up=bool(options.dead_letters))

    def __repr__(self) -> str:
        return f"Membership({self.source}/{self.group}, {self.member}, {self.state}, partitions {[*self.partitions]})"

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that the record gives to this member."""
        return self.record.partitions_of(self.member) if self.record is not None else ()

    @property
    def pinned(self) -> bool:
        """Whether the server has pinned this instance, as far as it knows."""
        return self._reading is not None and self._reading.pinned

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the handlers' work: those of `Consumption.counts`, and `repeated`, `cut_short` and `overran`.

        `overran` counts messages whose handlers were still running after our lease had ended. Another instance can have
        run the same key at the same time only if this process was paused for longer than the ack wait.
        """
        return self.work.counts | {name: getattr(self.work, name) for name in ("repeated", "cut_short", "overran")}

    async def __aenter__(self) -> Self:
        """Join. GroupNotFoundError if the group does not exist; errors of the dead letters' streams.

        BadGroupError for a record that can't be used, and for a static group that does not list this member.
        """
        self._running = Running(self._jetstream.connection.lifetime, self.leave, self.options.shutdown_timeout)
        self._running.around(self.work.start)
        self._instance = Instance(
            self.options.ack_wait, elastic=self._elastic, tick=Timings(self.options.ack_wait).reconcile / 2
        )
        await self._read_record()
        await self.work.watch_letters(self.stream, "*" if self._elastic else self.consumer, strip=1)
        observed = self._jetstream.connection.observed
        observed.add(self.work, HANDLER, self.stream, self.consumer)
        observed.add(self, GROUP, self.source, self.group, self.member)
        self._jetstream.connection.listeners.append(self._on_connection)
        jobs = [self._follow_record(), self._run()]
        if every := self.options.lag_every:
            jobs.append(
                count_lag(
                    self._jetstream, self._group, self.member, every, lambda: self.partitions if self.pinned else ()
                )
            )
        self._tasks = [asyncio.create_task(job, name=f"natty group {self._key} {self.member}") for job in jobs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: let running handlers finish, send their acks, and give up the pin."""
        self._end()
        try:
            await asyncio.gather(self._tasks[1], return_exceptions=True)
        finally:
            await self._stop()

    async def wait_until_ended(self) -> None:
        """Wait for the end of the membership: the group was deleted, or `leave` was called. Raises the cause if any."""
        self._jetstream.connection.check_loop()
        await self._ended.wait()
        if self._cause is not None:
            raise self._cause

    def leave(self) -> None:
        """End the membership, as leaving the block does. Safe to call from any thread. Idempotent."""
        self._jetstream.connection.call_on_loop(self._end)

    async def events(self) -> AsyncGenerator[MemberEvent, None]:
        """Yield events from now on, until the membership ends. A slow reader loses the oldest if 1000 events wait."""
        self._jetstream.connection.check_loop()
        queue: asyncio.Queue[MemberEvent] = asyncio.Queue(EVENTS_HELD)
        self._readers.append(queue)
        try:
            while True:
                event = await queue.get()
                yield event
                if event.kind == State.ENDED:
                    return
        finally:
            self._readers.remove(queue)

    async def step_down(self) -> None:
        """Let a standby take over; without one we are pinned again. Running handlers have an ack wait to finish."""
        await self._place.unpin()

    async def _read_record(self) -> None:
        try:
            self._take((await self._bucket.get(self._key)).value)
        except (KeyNotFoundError, BucketNotFoundError) as error:
            raise GroupNotFoundError(f"there is no group {self.group} of stream {self.source}") from error
        if not self._elastic and not (self.record and self.record.lists(self.member)):
            raise BadGroupError(f"static group {self.group} of {self.source} does not list member {self.member}")

    def _take(self, value: bytes) -> None:
        """Apply a revision of the record. BadGroupError if a setting changed that must not change."""
        record: Record = self._group.decode_current(value)
        before = self.record
        if before is not None and not may_follow(before, record):
            raise BadGroupError(
                f"fixed settings of group {self.group} of {self.source} were changed: leave it and join again"
            )
        partitions, self.record = self.partitions, record
        self._assign(record.filters_of(self.member))
        if before is not None and partitions != self.partitions:
            self.rebalances += 1
            self._report("partitions")

    def _assign(self, filters: list[str]) -> None:
        self._instance.assign(filters)
        self._wake.set()

    async def _follow_record(self) -> None:
        """Follow the record until it is deleted. If it disappears with its bucket, wait for it: it may come back."""
        try:
            there = False
            async with aclosing(self._bucket.watch(self._key).__aiter__()) as changes:
                async for change in changes:
                    if isinstance(change, Entry):
                        there = True
                        self._take(change.value)
                    elif _says_deleted(change) or (isinstance(change, PictureComplete) and not there):
                        self._deleted = True
                        self._end()
                        return
                    elif isinstance(change, Gone):
                        self._assign([])
        except Exception as error:  # an instance can't work without the record
            self._end(error)

    def _end(self, cause: BaseException | None = None) -> None:
        self._cause = self._cause or cause
        self._leaving = True
        self._wake.set()

    def _on_connection(self, event: str) -> None:
        if event == "closed":
            self.leave()
        self._wake.set()

    async def _run(self) -> None:
        with self._running:
            try:
                await self._reconcile()
            except Exception as error:
                self._end(error)
            finally:
                self._show(State.ENDED)
                self._ended.set()

    async def _reconcile(self) -> None:
        """Compare with the server's state and run the next step, after every event and at regular times."""
        while not self._leaving:
            self._wake.clear()
            try:
                again = await self._do(*(await self._decide()))
            except NattyError as error:
                logger.warning("%r: %s", self, error, extra={"action": "reconcile"})
                again = ASK_AGAIN
            self._show()
            if again != 0.0 and not self._leaving:
                with suppress(TimeoutError):
                    async with asyncio.timeout(again):
                        await self._wake.wait()
        await self._leave()

    async def _decide(self) -> tuple[Step, dict[str, Any] | None]:
        reading = self._reading
        own = Own(reading.created, pinned=reading.pinned, forgot=reading.forgot) if reading is not None else Own()
        if self.work.fault is not None:
            self._end(self.work.fault)
            return Step(Do.FAIL), None
        info = await self._place.look()
        if reading is not None and reading.refused and info is not None and info["created"] == reading.created:
            info = None  # even if it is there: the server has ended our requests, so begin anew
        return self._instance.decide(time.monotonic(), None if info is None else parse_info(info), own), info

    async def _do(self, step: Step, info: dict[str, Any] | None) -> float | None:
        """Run a step; return the seconds until the next look."""
        match step.do:
            case Do.CREATE:
                if await self._place.make(self._instance.filters):
                    self._instance.note_created()
                else:
                    self._instance.note_overlap(time.monotonic())
                return 0.0
            case Do.DELETE:
                await self._place.delete()
            case Do.READ:
                assert info is not None
                self._begin(info)
                return self._instance.tick
            case Do.CLOSE:
                await self._close()
            case Do.DRAIN:
                await self._drain()
            case Do.FAIL:
                self._end(self.work.fault or ConsumerExistsError(self._explain(info)))
        return step.again

    def _explain(self, info: dict[str, Any] | None) -> str:
        """Return why a static member can't read from the consumer that exists, and what to do."""
        text = f"consumer {self.consumer} of {self.stream}"
        if info is not None and is_outdated(info["config"], self.member):
            return f"{text} {self._group.outdated_hint}"
        return f"{text} reads other partitions than the group's record says: delete it; its position is then lost"

    def _begin(self, info: dict[str, Any]) -> None:
        config = info["config"]
        if config["ack_policy"] == "all":
            text = f"consumer {self.consumer} of {self.stream} uses cumulative acks (ack_policy all), as capture's does"
            self._end(BadGroupError(f"{text}: its messages can't be handled one by one; join another group"))
            return
        timings = Timings(config["ack_wait"] / NANOSECONDS)
        wanted = self.options.settings
        if timings.ack_wait != wanted["ack_wait"] or config.get("max_ack_pending") != wanted["max_ack_pending"]:
            text = "consumer %s of %s was made with ack_wait %g s and max_ack_pending %s: natty uses these"
            facts = (self.consumer, self.stream, timings.ack_wait, config.get("max_ack_pending"))
            logger.warning(text, *facts, extra={"action": "adopted"})
        self._instance.note_created()
        self._reading = Reading(
            self._jetstream,
            (self.stream, self.consumer, info["created"]),
            timings,
            self.work,
            self._memory,
            self.options.limit_requests(config),
            config,
            changed=self._on_reading,
            limit=lambda: self.limit(),
            longest=self.longest,
        )

    def _on_reading(self) -> None:
        self._show()
        if self._reading is not None and (self._reading.refused or self._reading.forgot):
            self._wake.set()

    async def _close(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            self.lost += reading.refused
            await reading.close()

    async def _drain(self) -> None:
        reading = self._reading
        assert reading is not None
        self._show(State.HANDING_OVER)
        began, pin = time.monotonic(), reading.pin
        await reading.drain(self.options.shutdown_timeout)
        self._instance.note_drained(reading.created, pin)
        self._reading = None
        self.handed_over += 1
        self.hand_over_seconds += time.monotonic() - began

    async def _leave(self) -> None:
        """Finish running handlers, then delete the consumer if no other instance pulls; otherwise give up the pin."""
        reading = self._reading
        if self._deleted and not self._elastic:
            await self._close()
            await self._place.delete()
        if reading is None or self._deleted:
            return
        self._show(State.HANDING_OVER)
        pin = reading.pin
        await reading.drain(self.options.shutdown_timeout)
        self._reading = None
        with suppress(NattyError):
            info = await self._place.look()
            if info is None or not pin or parse_info(info).pinned != pin:
                return
            if self._elastic and (self.alone or not info["num_waiting"]):
                await self._place.delete()
            else:
                await self.step_down()

    async def _stop(self) -> None:
        self._jetstream.connection.listeners.remove(self._on_connection)
        await cancel_all(self._tasks)
        await self._close()
        await self.work.close(self.options.shutdown_timeout)
        self._jetstream.connection.observed.retire(self.work)
        self._jetstream.connection.observed.retire(self)
        self._ended.set()

    def _show(self, state: State | None = None) -> None:
        """Report the state if it has changed."""
        state = state or self._state()
        if state is not self.state:
            self.state = state
            self._report(state)

    def _state(self) -> State:
        reading = self._reading
        if reading is None:
            return State.WAITING if self._instance.filters else State.OUTSIDE
        if reading.stint is None:
            return State.STANDBY
        return State.ACTIVE if reading.stint.open else State.TAKING_OVER

    def _report(self, kind: str) -> None:
        event = MemberEvent(str(kind), self.partitions)
        logger.info("%r: %s", self, kind, extra={"action": "group", "event": str(kind)})
        for queue in self._readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)
        try:
            if self.options.on_event is not None:
                self.options.on_event(event)
        except (Exception, asyncio.CancelledError):  # the member itself is well
            logger.exception("on_event of %r failed", self, extra={"action": "hook_failed"})


def _says_deleted(change: Event) -> bool:
    return isinstance(change, Gone) and change.reason in ("deleted", "purged", "expired")
