"""Reading a member's consumer: requests, the pin and its lease, and the transfer of messages to the handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import count
from typing import Any

from natty.consuming.work import Work
from natty.elections import clock
from natty.errors import ConsumerNotFoundError, NattyError, NoRespondersError, NotConnectedError
from natty.groups.forgotten import Forgotten
from natty.groups.settings import PRIORITY_GROUP, Timings
from natty.groups.stint import ANSWER, FLUSH_TIMEOUT, Memory, PinnedStint, keep_pin
from natty.jetstream import JetStream
from natty.names import decode
from natty.pulling.pin import Pin
from natty.pulling.pull import Pull, size_of
from natty.pulling.requests import PullOptions
from natty.wire.ack import IN_PROGRESS, delivery_of, first_delivery, identity_of, sequence_of
from natty.wire.background import cancel_all, keep_up, wait_until_set
from natty.wire.message import Batch, RawMessage

logger = logging.getLogger("natty.groups")

STOP_BEFORE = 0.1  # fraction of the lease: handlers are stopped this long before the lease ends
KEEP_EVERY = 1.0  # seconds at most between two requests that keep the pin
LONGEST_PAUSE = 60.0  # seconds between two requests beyond the credit for messages that do not come
QUIET = 0.025  # seconds between two looks at the number of unacknowledged messages


class Reading:
    """Reads one incarnation of a member's consumer: as its pinned instance, or as a standby.

    While we are pinned, it sends a request that can't return a message at least every second, independently of the
    handlers. If the server accepts it with our pin, we have a lease: no other instance gets our messages until an ack
    wait after we sent it. Handlers start only within the lease, and are stopped before it ends if it is not renewed.
    """

    def __init__(
        self,
        jetstream: JetStream,
        place: tuple[str, str, str],
        timings: Timings,
        work: Work,
        memory: Memory,
        options: PullOptions,
        config: dict[str, Any],
        *,
        changed: Callable[[], None],
        limit: Callable[[], float] = lambda: float("inf"),
        longest: float = float("inf"),
    ) -> None:
        self.stream, self.consumer, self.created = place
        self.stint: PinnedStint | None = None
        self._last_reply = b""
        self.refused = False  # the server ended our requests: the consumer is missing, or has a new leader
        self._jetstream, self._timings, self._work, self._memory = jetstream, timings, work, memory
        self._changed, self._limit = changed, limit
        self._window = min(timings.ack_wait, timings.pinned_ttl)
        self._margin = STOP_BEFORE * min(timings.ack_wait, longest)
        self._pin = Pin(PRIORITY_GROUP, self._on_pin_change, self._on_refused, self._on_renewed)
        options = replace(options, expires=timings.pull_expires, heartbeat=timings.pull_heartbeat)
        self._pull = Pull(jetstream, self.stream, self.consumer, options, pin=self._pin)
        self._pull.respect(config)
        self._pinned = asyncio.Event()
        self._interrupted = asyncio.Event()  # the next look at the pin and at what is missing is due now
        self._forgotten = Forgotten(jetstream, place[:2], (work.letters, work.consumer), self._holds, changed)
        self._looking: asyncio.Task[None] | None = None
        self._tasks = [
            asyncio.create_task(job, name=f"natty group {self.stream}/{self.consumer}")
            for job in (
                self._read(),
                keep_up(f"keeping the pin of {self.stream}/{self.consumer}", self._keep_pinned),
                keep_up(f"keeping the messages of {self.stream}/{self.consumer}", self._keep_waiting),
                keep_up(f"looking for forgotten messages of {self.stream}/{self.consumer}", self._watch_forgotten),
            )
        ]

    def __repr__(self) -> str:
        return f"Reading({self.stream}/{self.consumer}, {self.stint or 'standby'})"

    @property
    def pinned(self) -> bool:
        """Whether the server has pinned us, as far as we know."""
        return bool(self._pin.id)

    @property
    def pin(self) -> str:
        """Our pin id, "" for none."""
        return self._pin.id

    @property
    def active(self) -> bool:
        """Whether handlers may start."""
        return self.stint is not None and self.stint.may_start()

    @property
    def forgot(self) -> bool:
        """Whether the server forgot to deliver messages: the consumer must be created again."""
        return self._forgotten.found

    async def close(self) -> None:
        """Stop reading and drop messages whose handler has not begun. Running handlers continue."""
        await self._end_reading()
        await self._cancel()

    async def drain(self, timeout: float) -> None:
        """Stop reading, finish running handlers, and wait until the server has their acks; we stay pinned meanwhile."""
        await self._end_reading()
        await self._work.finish(timeout)
        await self._work.failures.reports.send_last()
        if self.stint is not None:
            self.stint.receipts.send()
        with suppress(NattyError):
            await self._jetstream.connection.flush(FLUSH_TIMEOUT)
            await self._wait_until_settled()
        await self._cancel()

    async def _end_reading(self) -> None:
        self._pull.stop()
        if self.stint is not None:
            self._work.release(self.stint, hand_back=not self.refused)
        await asyncio.gather(self._tasks[0], return_exceptions=True)

    async def _cancel(self) -> None:
        tasks = [*self._tasks, *([self._looking] if self._looking is not None else [])]
        await cancel_all(tasks)

    async def _wait_until_settled(self) -> None:
        """Wait until the server has applied our acks: then the consumer may be deleted.

        A busy server applies acks long after it has read them, but in order, so its answer about the last message means
        that it has applied all. On replicas, the number of unacknowledged messages then stops changing.
        """
        if self._last_reply:
            await self._jetstream.connection.request(decode(self._last_reply), IN_PROGRESS, timeout=FLUSH_TIMEOUT)
        before = -1
        while (now := int((await self._info())["num_ack_pending"])) not in (0, before):
            before = now
            await asyncio.sleep(QUIET)

    async def _info(self) -> dict[str, Any]:
        return await self._jetstream.request(f"CONSUMER.INFO.{self.stream}.{self.consumer}", timeout=FLUSH_TIMEOUT)

    async def _read(self) -> None:
        try:
            async with aclosing(self._pull.__aiter__()) as batches:
                async for batch in batches:
                    self._receive(batch)
        except NattyError:
            raise  # the member looks at the consumer, and starts again
        except Exception:
            logger.exception("the reading of %s/%s failed and restarts", self.stream, self.consumer)
            self._on_refused()

    def _receive(self, batch: Batch) -> None:
        """Pass on the messages that were delivered in this stint; hand back late ones of other stints."""
        stint = self.stint
        self._last_reply = batch.raw[-1][1]
        ours = [raw for raw in batch.raw if stint is not None and stint.mark in raw[2]]
        if len(ours) < len(batch):
            others = [raw for raw in batch.raw if stint is None or stint.mark not in raw[2]]
            with suppress(NotConnectedError):
                self._pull.nak([raw[1] for raw in others])
            self._pull.finish(len(others), size_of(others))
        if stint is not None and stint.open:
            self._work.add(stint, ours)
        elif stint is not None:
            stint.early += ours

    def _on_pin_change(self) -> None:
        """Begin a stint if we are pinned now, and end the one before."""
        if self.stint is not None:
            stint, self.stint = self.stint, None
            in_time = stint.lasts()
            with suppress(NotConnectedError):
                self._pull.nak([raw[1] for raw in stint.early] if in_time else [])
            self._pull.finish(len(stint.early), size_of(stint.early))
            self._work.release(stint, hand_back=in_time)
            if not in_time:
                self._fence(stint)
        self._pinned.clear()
        self._forgotten.found = False
        if self._pin.id and not self._pull.stopping:
            self.stint = PinnedStint(
                self,
                self._pin.id,
                self._pull,
                first_delivery(self.stream, self.consumer),
                self._margin,
                self._memory,
            )
            self._pinned.set()
        self._changed()

    def _on_renewed(self) -> None:
        """Check again, and at once, that all unfinished messages have come to us, since the session is a new one."""
        if self.stint is not None:
            self.stint.interrupt()
            self._interrupted.set()

    def _on_refused(self) -> None:
        self.refused = True
        self._pull.stop()
        if self.stint is not None:
            self._work.release(self.stint, hand_back=False)
        self._changed()

    async def _keep_pinned(self) -> None:
        while True:
            await self._pinned.wait()
            stint = self.stint
            if stint is None:
                continue
            self._interrupted.clear()
            kept = await self._keep(stint)
            pause = min(self._timings.ack_wait / (5 if kept else 50), KEEP_EVERY if kept else ANSWER)
            await wait_until_set(self._interrupted, pause)

    async def _keep(self, stint: PinnedStint) -> bool:
        """Renew the pin; return whether handlers may start."""
        try:
            kept = await keep_pin(self._jetstream, self.stream, self.consumer, self._pin, self._window)
        except (NoRespondersError, ConsumerNotFoundError):
            self._on_refused()
            return False
        except NattyError:
            return False
        if self.stint is not stint:
            return False
        if not kept.ours:
            self._pin.forget()
            if not self._pull.stopping:
                self._pull.renew()
            return False
        stint.extend(min(kept.until, self._limit()))
        if not stint.watched:
            self._watch_lease(stint)
        if not stint.open and not stint.over:
            if missing := self._count_missing(stint, kept.info):
                self._require(stint, missing)
            else:
                self._take_over_after_look(stint, kept.info)
        return stint.may_start() or stint.over

    def _watch_lease(self, stint: PinnedStint) -> None:
        """Stop the handlers shortly before the lease ends; normally it is renewed before.

        If the lease has already ended, for example because this process was paused, ask the server first: perhaps no
        other instance wanted the pin.
        """
        stint.watched = False
        if (left := stint.remaining()) > 0:
            stint.watched = True
            asyncio.get_running_loop().call_later(left, self._watch_lease, stint)
        elif not stint.lasts() and self.stint is stint:
            self._tasks.append(asyncio.create_task(self._after_pause(stint)))
        else:
            self._fence(stint)

    async def _after_pause(self, stint: PinnedStint) -> None:
        if not await self._keep(stint):
            self._fence(stint)

    def _fence(self, stint: PinnedStint) -> None:
        if self._work.fence(stint):
            logger.warning("%s/%s: the lease of our pin expired without a renewal", self.stream, self.consumer)
            self._changed()

    def _count_missing(self, stint: PinnedStint, info: dict[str, Any]) -> int:
        """Return how many messages that our predecessor got are neither finished nor have come to us.

        The server counted the unfinished messages after a certain delivery. Only messages delivered up to that one are
        compared, since more may have come after the count.
        """
        delivered = info["delivered"]["consumer_seq"]
        replies = (*self._iterate_held(), *(raw[1] for raw in stint.early))
        held = {identity_of(reply) for reply in replies if delivery_of(reply) <= delivered}
        return max(0, int(info["num_ack_pending"]) - len(held))

    def _require(self, stint: PinnedStint, missing: int) -> None:
        """Request messages of our predecessor even if those that arrived before them use up our credit.

        Not before an ack wait has passed: until then the server would send new messages instead. It also does so while
        what is missing is not due, after a long `nak(delay)` for example: as long as none of it comes, the pause until
        the next such request doubles.
        """
        now = clock()
        if now < stint.since + self._timings.ack_wait:
            return
        if not missing < stint.missing:
            if now < stint.next_request:
                return
            stint.pause = min(2 * stint.pause or self._timings.ack_wait, LONGEST_PAUSE)
            stint.next_request = now + stint.pause
        stint.missing = missing
        self._pull.require(missing)

    def _take_over_after_look(self, stint: PinnedStint, info: dict[str, Any]) -> None:
        """Begin once the server is sure to deliver all unacknowledged messages; other tasks keep the pin meanwhile.

        Forgotten messages must be handled before later messages of their keys.
        """

        async def look(interruptions: int) -> None:
            with suppress(NattyError):
                allowed = await self._forgotten.allows_begin(info)
                if allowed and self.stint is stint and interruptions == stint.interruptions:
                    self._take_over(stint)

        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(look(stint.interruptions))

    def _take_over(self, stint: PinnedStint) -> None:
        """Let handlers begin with the messages that arrived, in stream order."""
        early, stint.early = stint.early, []
        if len(once := by_sequence(early)) < len(early):
            self._pull.finish(len(early) - len(once))
        stint.begin()
        self._work.add(stint, once)
        self._changed()

    def _holds(self) -> set[int]:
        """Return the sequences of the messages of this stint that are not settled."""
        stint = self.stint
        if stint is None:
            return set()
        return set(map(sequence_of, (*self._iterate_held(stint), *(raw[1] for raw in stint.early))))

    def _iterate_held(self, stint: PinnedStint | None = None) -> Iterator[bytes]:
        """Yield the ack subjects of our messages that are not settled: of one stint, or of all."""
        for turn in self._work.iterate_held():
            one = turn.stint
            if one is stint or (stint is None and isinstance(one, PinnedStint) and one.reads is self):
                yield turn.message.raw[1]

    async def _watch_forgotten(self) -> None:
        await self._forgotten.watch(lambda: self.active)

    async def _keep_waiting(self) -> None:
        """Restart the ack wait of all messages that we hold, at regular times."""
        for times in count(1):
            await asyncio.sleep(self._timings.ack_wait / 3)
            if times % 4 == 0:
                self._memory.age({turn.key for turn in self._work.iterate_held()})
            with suppress(NotConnectedError):
                self._pull.keep_waiting()
                early = self.stint.early if self.stint is not None else []
                self._pull.in_progress([*self._iterate_held(), *(raw[1] for raw in early)])


def by_sequence(raws: Iterable[RawMessage]) -> list[RawMessage]:
    """Return the messages in stream order, without duplicates."""
    once: dict[bytes, RawMessage] = {identity_of(raw[1]): raw for raw in raws}
    return [once[one] for one in sorted(once, key=lambda one: int(one.partition(b".")[0]))]
