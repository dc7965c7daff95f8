"""Publishing in the background: a publisher for each stream, and the errors of messages that were not stored."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import TypeVar

from cachetools import TTLCache

from natty.config.options import Count, Seconds
from natty.config.units import write_count
from natty.errors import ConnectionClosedError, PublishError
from natty.jetstream import JetStream
from natty.names import check_subject, covers
from natty.publishing.options import PublisherOptions
from natty.publishing.publisher import Publisher
from natty.publishing.reporting import OnPublishError, Reporter
from natty.wire.message import Headers

logger = logging.getLogger("natty.outbox")

Callback = TypeVar("Callback", bound=OnPublishError)


@dataclass(frozen=True, kw_only=True)
class OutboxOptions(PublisherOptions):
    """How background publishing behaves; the options of a publisher are for each stream's."""

    idle: Seconds = 60.0  # seconds without a message after which a subject is forgotten
    max_subjects: Count = 10_000  # remembered
    max_errors: Count = 10_000  # that wait for a reader or the callback, before no more messages are taken


class PublishErrors:
    """Messages that could not be stored. Each error is kept until a callback or a reader has taken it."""

    def __init__(self, check_loop: Callable[[], None] = lambda: None) -> None:
        self._check_loop = check_loop
        self._unread: deque[PublishError] = deque()
        self._arrived = asyncio.Event()
        self._reporter: Reporter | None = None
        self._readers = 0
        self._over = False

    def __len__(self) -> int:
        """Return how many errors wait for the callback or for a reader."""
        return len(self._unread) + (len(self._reporter.waiting) if self._reporter is not None else 0)

    @property
    def is_called_by_its_own(self) -> bool:
        """Whether the caller, in any task or thread, is part of a call of the callback."""
        return self._reporter is not None and self._reporter.is_called_by_its_own

    def add(self, error: PublishError) -> None:
        """Pass the error to the callback, or keep it. It is also kept if the callback fails."""
        if self._reporter is not None:
            self._reporter.report(error)
        else:
            self._keep(error)

    def _keep(self, error: PublishError) -> None:
        self._unread.append(error)
        self._arrived.set()

    def call(self, callback: Callback) -> Callback:
        """Call `callback` with every error from now on, first with those that wait; usable as a decorator."""
        if self._reporter is None:
            self._reporter = Reporter(callback, self._keep, "on_publish_error", "for publish_errors()")
        self._reporter.callback = callback
        waiting, self._unread = self._unread, deque()
        for error in waiting:
            self.add(error)
        return callback

    async def settle(self) -> None:
        """Return when the callback has ended with every error so far."""
        if self._reporter is not None:
            await self._reporter.settle()

    async def read(self) -> AsyncIterator[PublishError]:
        """Yield the errors, each to one reader, until the client is closed and all are read."""
        self._check_loop()
        self._readers += 1
        try:
            while self._unread or not self._over:
                if self._unread:
                    yield self._unread.popleft()
                else:
                    self._arrived.clear()
                    await self._arrived.wait()
        finally:
            self._readers -= 1

    def close(self, *, raises: bool) -> None:
        """End the readers. If none reads, PublishError names what is unread; without `raises` it is logged instead."""
        self._over = True
        self._arrived.set()
        if not self._unread or self._readers:
            return
        first = self._unread[0]
        were = "published in the background was", "published in the background were"
        text = f"{write_count(len(self._unread), 'message', *were)} not stored; the first: {first}"
        self._unread.clear()
        if raises:
            raise PublishError(text, subject=first.subject, msg_id=first.msg_id, data=first.data) from first
        logger.error("%s", text, extra={"action": "publish failed"})


@dataclass(eq=False)
class _Sender:
    """The publisher of one stream, shared by all subjects that lead to it."""

    stream: str
    publisher: Publisher
    opened: AsyncExitStack
    subjects: set[str] = field(default_factory=set)
    users: int = 0  # publish calls under way
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    draining: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return not (self.subjects or self.users or self.draining)

    async def drain(self) -> None:
        """Return when every message has its outcome and the publisher is closed."""
        while self.users:
            self.unused.clear()
            await self.unused.wait()
        await self.opened.aclose()


@dataclass(eq=False, slots=True)
class _Route:
    sender: _Sender
    since: float  # when it was put into the cache
    doubtful: bool = False  # a message failed there: the subject may belong to another stream by now


class _Routes:
    """Which sender a subject leads to. No I/O; the caller gives the time."""

    def __init__(self, options: OutboxOptions) -> None:
        self._now = 0.0
        self._refresh_after = options.idle / 4
        self._cache: TTLCache[str, _Route] = TTLCache(options.max_subjects, options.idle, timer=lambda: self._now)

    def __len__(self) -> int:
        return len(self._cache)

    def find(self, subject: str, now: float) -> _Sender | None:
        """Return the subject's sender if it is certain, and keep it from expiring."""
        self._now = now
        try:
            route: _Route = self._cache[subject]  # half the cost of `get`, which looks twice
        except KeyError:
            return None
        if route.doubtful:
            return None
        if now - route.since > self._refresh_after:
            self.add(subject, route.sender, now)
        return route.sender

    def add(self, subject: str, sender: _Sender, now: float) -> None:
        """Route the subject to a sender, in place of an earlier one; the oldest subject makes room."""
        self.remove(subject)
        self.expire(now)
        if len(self._cache) >= self._cache.maxsize:
            oldest, route = self._cache.popitem()
            route.sender.subjects.discard(oldest)
        self._cache[subject] = _Route(sender, now)
        sender.subjects.add(subject)

    def remove(self, subject: str) -> _Sender | None:
        """Forget the subject; return the sender it led to."""
        route: _Route | None = self._cache.pop(subject, None)
        if route is None:
            return None
        route.sender.subjects.discard(subject)
        return route.sender

    def doubt(self, subject: str) -> None:
        """Have the subject's stream looked up again before the next message."""
        route: _Route | None = self._cache.get(subject)
        if route is not None:
            route.doubtful = True

    def is_doubtful(self, subject: str) -> bool:
        """Whether the subject is known but its stream must be looked up again."""
        route: _Route | None = self._cache.get(subject)
        return route is not None and route.doubtful

    def expire(self, now: float) -> None:
        """Forget subjects that were not used for `idle` seconds."""
        self._now = now
        for subject, route in self._cache.expire():
            route.sender.subjects.discard(subject)


class Outbox:
    """Publishing in the background: publishers kept by subject, drained and closed when idle.

    A subject leads to the stream that takes it, and the subjects of a stream share one publisher: messages of one
    subject are stored in the order they were taken. Every message ends in stored or in an error of `errors`.
    """

    def __init__(self, jetstream: JetStream, options: OutboxOptions | None = None) -> None:
        self.options = options or OutboxOptions()
        self.errors = PublishErrors(jetstream.connection.check_loop)
        if self.options.on_error is not None:
            self.errors.call(self.options.on_error)
        self._jetstream = jetstream
        self._routes = _Routes(self.options)
        self._senders: dict[str, _Sender] = {}
        self._past = Counter[str]()  # what publishers have counted that are closed
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __repr__(self) -> str:
        waiting = sum(sender.publisher.waiting for sender in self._senders.values())
        streams = ", ".join(sorted(self._senders)) or "no stream"
        return f"Outbox({streams}; {len(self._routes)} subjects, {waiting} waiting, {len(self.errors)} errors unread)"

    @property
    def counts(self) -> dict[str, int]:
        """Counts of messages: `stored`, `failed` and `duplicates`, as `Publisher.counts`; all streams together."""
        total = Counter(dict.fromkeys(("stored", "failed", "duplicates"), 0))
        for counted in (self._past, *(sender.publisher.counts for sender in self._senders.values())):
            total.update(counted)
        return dict(total)

    def configure(self, options: OutboxOptions) -> None:
        """Set the options. RuntimeError once a message was published with others."""
        if self._senders:
            raise RuntimeError("background publishing has begun: set its options before the first publish_async()")
        self.options, self._routes = options, _Routes(options)
        if options.on_error is not None:
            self.errors.call(options.on_error)

    async def publish(self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None) -> None:
        """Take one message; waits while its stream's window is full. What becomes of it shows in `errors` alone.

        PublishError, and the message is not taken, but counted as failed: no stream has this subject, or too many
        errors are unread.
        """
        try:
            if self._closed:
                raise ConnectionClosedError("the client is closed or closing: it publishes nothing more")
            if len(self.errors) >= self.options.max_errors:
                raise PublishError(
                    f"{write_count(len(self.errors), 'publish error', 'is', 'are')} unread: read"
                    " publish_errors(), or set an on_publish_error"
                    " that keeps up with them",
                    subject=subject,
                    msg_id=msg_id,
                )
            now = asyncio.get_running_loop().time()
            sender = self._routes.find(subject, now) or await self._sender_of(subject)
        except BaseException:
            self._past["failed"] += 1
            self._jetstream.count_failed()
            raise
        sender.users += 1
        try:
            await sender.publisher.publish(subject, data, msg_id=msg_id, headers=headers)
        finally:
            sender.users -= 1
            if not sender.users:
                sender.unused.set()

    async def _sender_of(self, subject: str) -> _Sender:
        check_subject(subject)
        loop = asyncio.get_running_loop()
        while True:
            async with self._opening:
                if (known := self._routes.find(subject, loop.time())) is not None:  # another call was faster
                    return known
                stream = self._stream_of(subject) or await self._jetstream.stream_of(subject)
                sender = self._senders.get(stream) or await self._open(stream)
                if sender.draining is None:
                    self._routes.add(subject, sender, loop.time())
                    return sender
            await asyncio.wait({sender.draining})  # a new publisher must not overtake it

    def _stream_of(self, subject: str) -> str:
        """Return the stream whose publisher says that it takes the subject; "" if it has to be asked for."""
        if self._routes.is_doubtful(subject):
            return ""
        return next((name for name, sender in self._senders.items() if covers(sender.publisher.subjects, subject)), "")

    async def _open(self, stream: str) -> _Sender:
        if self._closed:
            raise ConnectionClosedError("the client was closed meanwhile: it publishes nothing more")
        opened = AsyncExitStack()
        publisher = Publisher(self._jetstream, stream, replace(self.options, on_error=self._on_failure))
        await opened.enter_async_context(publisher)
        sender = self._senders[stream] = _Sender(stream, publisher, opened)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.options.idle / 2, self._tidy)
        return sender

    def _on_failure(self, error: PublishError) -> None:
        self._routes.doubt(error.subject)
        self.errors.add(error)

    def _tidy(self) -> None:
        """Drain the publishers that were not used for `idle` seconds."""
        loop = asyncio.get_running_loop()
        self._routes.expire(loop.time())
        for sender in self._senders.values():
            if sender.idle:
                self._retire(sender)
        self._timer = loop.call_later(self.options.idle / 2, self._tidy) if self._senders else None

    def _retire(self, sender: _Sender) -> asyncio.Task[None]:
        if sender.draining is None:
            for subject in list(sender.subjects):
                self._routes.remove(subject)
            sender.draining = asyncio.create_task(self._drain(sender), name=f"natty drain {sender.stream}")
        return sender.draining

    async def _drain(self, sender: _Sender) -> None:
        try:
            await sender.drain()
        finally:
            del self._senders[sender.stream]
            self._past.update(sender.publisher.counts)

    async def flush(self) -> None:
        """Return when every message taken so far has its outcome."""
        await asyncio.gather(*(sender.publisher.flush() for sender in self._senders.values()))
        await self.errors.settle()

    async def delete(self, subject: str) -> None:
        """Forget the subject's publisher when its messages have their outcome. Does nothing for an unknown subject."""
        self._jetstream.connection.check_loop()
        sender = self._routes.remove(subject)
        if sender is None:
            return
        await sender.publisher.flush()
        if sender.idle:
            await self._retire(sender)

    async def close(self, *, raises: bool = True) -> None:
        """Take no more messages, and return when every one has its outcome. Idempotent.

        PublishError if errors are unread; without `raises` they are logged instead. It takes `give_up` seconds at most
        after the server's last answer, and the time of the callback (see `Reporter.settle`). Cancelled, it reports what
        has no outcome as errors.
        """
        self._closed = True
        try:
            await asyncio.gather(*(self._retire(sender) for sender in list(self._senders.values())))
            await self.errors.settle()
        finally:
            self.abandon(raises=raises)

    def abandon(self, *, raises: bool = False) -> None:
        """End at once, as a `close` that is cancelled."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for sender in list(self._senders.values()):
            sender.publisher.abandon()
        self.errors.close(raises=raises)
