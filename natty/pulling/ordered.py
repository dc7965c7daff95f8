"""Reading a stream in order, without acknowledgements: `Ordered`, and `read`, which yields only its messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from natty.config.options import Count, CountOrZero, ServerSeconds, check_options, check_value
from natty.config.units import parse_time, show_time
from natty.errors import (
    ConnectionClosedError,
    NattyError,
    NotConnectedError,
    RequestTimeoutError,
    StreamNotFoundError,
    UnsupportedError,
)
from natty.jetstream import JetStream
from natty.pulling.requests import Requests, read_status, split_statuses
from natty.wire.ack import delivery_of, sequence_of
from natty.wire.background import wait_until_set
from natty.wire.message import Batch, Message, RawMessage

logger = logging.getLogger("natty.ordered")

RETRY_DELAY = 0.1  # seconds before a lost session is replaced; doubles up to the next line
RETRY_DELAY_MAX = 2.0
RECHECK = 0.25  # seconds between two checks whether the leader's last message still exists
CONFIRM = 1.0  # seconds before a second check if the leader has fewer messages than we read: was it rolled back?
STARTS = ("first", "last_per_subject", "new")
IDLE_CONSUMER = 30.0  # seconds without a request after which the server removes a consumer


@dataclass(frozen=True, kw_only=True)
class OrderedOptions:
    """Options of `Ordered`: subjects, start position, and limits of waiting messages."""

    filters: tuple[str, ...] = ()
    start: Literal["first", "last_per_subject", "new"] | CountOrZero | datetime | str = "first"  # a sequence, a time
    headers_only: bool = False
    max_messages: Count = 1024  # messages that have arrived and are not read yet
    max_bytes: Count = 8 * 1024 * 1024  # of these messages; a larger one is requested alone
    heartbeat: ServerSeconds = 5.0  # seconds; a session counts as lost after a silence of two heartbeats
    expires: ServerSeconds = 30.0  # seconds that the server keeps a request

    def __post_init__(self) -> None:
        check_options(self)
        if self.heartbeat * 2 > self.expires:
            raise UnsupportedError(
                f"a heartbeat of {self.heartbeat:g} s is over half of expires, {self.expires:g} s; servers refuse that"
            )

    @property
    def since(self) -> str:
        """The time to start at, RFC 3339; "" for another start."""
        if isinstance(self.start, datetime):
            return self.start.isoformat()
        return "" if isinstance(self.start, int) or self.start in STARTS else self.start


@dataclass(frozen=True, slots=True)
class Began:
    """A stream begins: at the start, and after it was deleted and created again. Later steps belong to it."""


@dataclass(frozen=True, slots=True)
class Vanished:
    """The stream no longer exists. The reader waits until it is created again."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All messages that the stream's leader held when this session began have been read. Once per session."""


Step = Batch | Began | Vanished | CaughtUp


class _Session:
    """One consumer and the requests for its messages. It is lost with the first missing message."""

    def __init__(self, consumer: str, requests: Requests) -> None:
        self.consumer, self.requests = consumer, requests
        self.delivered = 0
        self.requested = self.bytes_left = 0  # what is left of the request; no messages if there is none
        self.too_large = False  # whether the next message is larger than a whole request
        self.lost = ""


class Ordered:
    """Reads a stream in order, every message at most once and without a gap: `async for step in reader`.

    It reads with a private consumer without acks. After any problem (a missing message, a lost connection, a silent or
    restarted server, a missing consumer) it creates a new consumer that starts after the last message. It detects a
    stream that was deleted and created again, or rolled back, and reads it from the beginning.
    Messages that the stream itself removes before they are read (limits, newer ones of a subject) are not a gap.
    At most `max_messages` wait here: if the reader is slow, the rest stays in the stream.
    Protocol: `$JS.API.CONSUMER.CREATE` and `MSG.NEXT`; ordered consumers are the idea of ADR-17.
    """

    def __init__(self, jetstream: JetStream, stream: str, options: OrderedOptions | None = None) -> None:
        self.stream = stream
        self.options = options or OrderedOptions()
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._created: str | None = None  # when the stream was created; "" while it does not exist
        self._session: _Session | None = None
        self._arrived: list[Batch] = []
        self._position = 0  # the last sequence that arrived
        self._read = 0  # the last sequence that was yielded
        self._target: int | None = None  # the sequence to read until we have caught up
        self._heard = 0.0
        self._retry_delay = RETRY_DELAY
        self._wake = asyncio.Event()
        self._stopping = self._begun = False
        self._reading = False  # whether a session has ever begun

    def __repr__(self) -> str:
        state = "stopped" if self._stopping else "reading" if self._session else "waiting"
        return f"Ordered({self.stream}, {state}, at {self._read})"

    @property
    def interrupted(self) -> bool:
        """Whether the session is over. If the iteration continues, a new session follows, with another `CaughtUp`."""
        return self._stopping or self._session is None or bool(self._session.lost)

    def stop(self) -> None:
        """End the iteration; messages that arrived and were not read are dropped. From any thread. Idempotent."""
        self._connection.call_on_loop(self._stop)

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()

    async def __aiter__(self) -> AsyncGenerator[Step, None]:
        """Yield steps until `stop`, or the end of the connection. Once: RuntimeError the second time.

        Raises errors that prevent the first session: StreamNotFoundError, AuthorizationError, NotConnectedError for a
        client that was not opened, … It retries while there is no connection or no answer, and after every error once
        the first session has begun.
        """
        if self._begun:
            raise RuntimeError(f"{self!r} can be iterated over only once: create another one")
        self._begun = True
        if not self._connection.supervised:
            raise self._connection.no_session()
        self._connection.listeners.append(self._on_event)
        try:
            while not self._stopping:
                if self._session is None:
                    for step in await self._open():
                        yield step
                elif self._target is not None and self._read >= self._target:
                    self._target = None
                    yield CaughtUp()
                elif self._session.lost and not self._arrived:
                    await self._leave(self._session)
                else:
                    await self._wait(self._session)
                    if self._arrived and not self._stopping:
                        batch, self._arrived = Batch.join(self._arrived), []
                        self._read = sequence_of(batch.replies[-1])
                        yield batch
        finally:
            self._connection.listeners.remove(self._on_event)
            self._stopping = True
            if self._session is not None:
                self._close(self._session)

    async def _open(self) -> list[Step]:
        """Begin a session, and return the steps to yield first. If that fails, wait before the next try."""
        steps: list[Step] = []
        try:
            consumer, waiting = await self._make_consumer(steps)
            from_later = self.options.since and not waiting  # than the last message
            self._target = 0 if from_later else await self._last()
        except NattyError as error:
            closed = isinstance(error, ConnectionClosedError)
            if not self._reading and (closed or not isinstance(error, RequestTimeoutError | NotConnectedError)):
                raise
            if closed:
                self._stopping = True
            elif isinstance(error, StreamNotFoundError):
                steps += [Vanished()] if self._created else []
                self._created = ""
            else:
                logger.warning("can't read stream %s: %s", self.stream, error, extra={"action": "retry"})
        else:
            self._begin(consumer)
            return steps
        await self._pause()
        return steps

    async def _make_consumer(self, steps: list[Step]) -> tuple[str, int]:
        """Create a consumer on the current stream; return its name and the number of messages that wait for it.

        It adds `Began` to `steps` if the stream is a different one than before.
        """
        while True:
            info = await self._info()
            if info["created"] == self._created and info["state"]["last_seq"] < self._position:
                await asyncio.sleep(CONFIRM)
                info = await self._info()
            if info["created"] != self._created or info["state"]["last_seq"] < self._position:
                start = self.options.start if self._created is None else "first"
                self._created = info["created"]
                last = info["state"]["last_seq"] if start == "new" else 0
                self._position = self._read = start - 1 if isinstance(start, int) else last
                steps.append(Began())
            consumer, waiting = await self._create_consumer()
            if (await self._info())["created"] == self._created:
                return consumer, waiting
            self._delete(consumer)  # the stream was created again in between: the consumer may be on either

    async def _info(self) -> dict[str, Any]:
        return await self._jetstream.request(f"STREAM.INFO.{self.stream}", led=True)

    async def _create_consumer(self) -> tuple[str, int]:
        name = f"natty_{uuid.uuid4().hex}"
        config: dict[str, Any] = {
            "name": name,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": int(IDLE_CONSUMER * 1e9),
            "headers_only": self.options.headers_only,
            "filter_subjects": list(self.options.filters),
            "deliver_policy": "last_per_subject" if self.options.start == "last_per_subject" else "all",
        }
        if since := self.options.since:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": since}
        if self._position:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._position + 1}
        body = {"stream_name": self.stream, "config": config, "action": "create"}
        made = await self._jetstream.request(f"CONSUMER.CREATE.{self.stream}.{name}", body)
        return name, made["num_pending"]

    async def _last(self) -> int:
        """Return the sequence of the last message that matches our filters, from the stream's leader; 0 for none."""
        if not self.options.filters and (newest := await self._jetstream.read(self.stream, subject=">")):
            return newest.sequence  # the server finds none on ">" if the message at its last sequence was deleted
        reads = (self._jetstream.read(self.stream, subject=one) for one in self.options.filters or ("*", "*.>"))
        return max(last.sequence if last else 0 for last in await asyncio.gather(*reads))

    def _begin(self, consumer: str) -> None:
        self._reading = True
        requests = Requests(self._jetstream, self.stream, consumer, lambda raw: self._receive(session, raw))
        session = self._session = _Session(consumer, requests)

    async def _leave(self, session: _Session) -> None:
        logger.info("%r begins a new session: %s", self, session.lost, extra={"action": "renew"})
        self._close(session)
        self._session = None
        await self._pause()

    def _close(self, session: _Session) -> None:
        session.requests.close()
        self._delete(session.consumer)

    def _delete(self, consumer: str) -> None:
        """Request the deletion of a consumer without waiting for the answer: the server also removes idle ones."""
        with contextlib.suppress(NotConnectedError):
            subject = f"{self._jetstream.prefix}.CONSUMER.DELETE.{self.stream}.{consumer}"
            self._connection.send(subject, reply=self._connection.new_inbox())

    async def _pause(self) -> None:
        delay = self._retry_delay * random.uniform(0.5, 1.0)
        self._retry_delay = min(2 * self._retry_delay, RETRY_DELAY_MAX)
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                while not self._stopping:
                    await self._wake.wait()
                    self._wake.clear()

    async def _wait(self, session: _Session) -> None:
        """Wait for messages or an event; return every `RECHECK` seconds until we have caught up."""
        loop = asyncio.get_running_loop()
        while not (self._arrived or self._stopping or session.lost):
            self._ask(session)
            silence = max(RETRY_DELAY, self._heard + 2 * self.options.heartbeat - loop.time())
            self._wake.clear()
            if await wait_until_set(self._wake, silence if self._target is None else min(silence, RECHECK)):
                continue
            if loop.time() >= self._heard + 2 * self.options.heartbeat:
                session.lost = "the server was silent for two heartbeats"
            elif self._target is not None:  # the target may have been removed before we could read it
                with contextlib.suppress(NattyError):
                    self._target = await self._last()
                return

    def _ask(self, session: _Session) -> None:
        options = self.options
        if session.requested or not self._connection.connected:
            return
        batch, max_bytes = (1, 0) if session.too_large else (options.max_messages, options.max_bytes)
        session.requested, session.bytes_left, session.too_large = batch, max_bytes, False
        self._heard = asyncio.get_running_loop().time()
        session.requests.ask(batch, options.expires, heartbeat=options.heartbeat, max_bytes=max_bytes)

    def _receive(self, session: _Session, batch: Batch) -> None:
        if session is not self._session or session.lost:
            return
        self._heard = asyncio.get_running_loop().time()
        data, statuses = split_statuses(batch)
        if data:
            first, last = delivery_of(data.replies[0]), delivery_of(data.replies[-1])
            if (first, last) != (session.delivered + 1, session.delivered + len(data)):
                self._lose(session, "a message is missing")
                return
            session.delivered += len(data)
            session.requested -= len(data)
            session.bytes_left -= data.size
            if session.bytes_left == 0:
                session.requested = 0  # the request is over, and the server sends no status
            self._retry_delay = RETRY_DELAY
            self._arrived.append(data)
            self._position = sequence_of(data.replies[-1])
            self._wake.set()
        for raw in statuses:
            self._status(session, raw)

    def _status(self, session: _Session, raw: RawMessage) -> None:
        """Handle a status: a heartbeat, the end of a request, or the end of the session."""
        status = read_status(raw)
        if status.is_heartbeat:
            self._retry_delay = RETRY_DELAY
            if status.last_delivery > session.delivered:
                self._lose(session, "a message is missing")
            return
        session.too_large = status.is_too_large and status.messages == self.options.max_messages
        if not (status.is_too_large or status.is_end):
            self._lose(session, f"{status.code} {status.text}")
        elif status.messages != 0:  # at 0 its last message has ended it, and the next request may have begun
            session.requested -= status.messages or 0
            if session.requested:
                self._lose(session, "a message is missing")
        self._wake.set()

    def _lose(self, session: _Session, why: str) -> None:
        session.lost = why
        self._wake.set()

    def _on_event(self, event: str) -> None:
        if event == "connected" and self._session is not None:
            self._lose(self._session, "reconnected")
        elif event == "closed":
            self.stop()


def read_options(
    from_sequence: int | None, from_time: datetime | str | None, subjects: str | Sequence[str], *, headers_only: bool
) -> OrderedOptions:
    """Return the options of `read`. TypeError, ValueError for a wrong one, and if they contradict each other."""
    check_value("from_sequence", from_sequence, Count | None)
    check_value("from_time", from_time, datetime | str | None)
    check_value("subjects", subjects, str | Sequence[str])
    if from_sequence is not None and from_time is not None:
        raise ValueError("from_sequence and from_time exclude each other: give one of them")
    if isinstance(from_time, str):
        try:
            from_time = show_time(parse_time(from_time))
        except ValueError as error:
            raise ValueError(f"from_time is {from_time!r}; write a time as 2026-11-21T06:00:00Z: {error}") from error
    if isinstance(from_time, datetime) and from_time.tzinfo is None:
        raise ValueError(f"from_time {from_time} has no time zone: write datetime.now(UTC) or the like")
    filters = (subjects,) if isinstance(subjects, str) else tuple(subjects)
    return OrderedOptions(filters=filters, start=from_time or from_sequence or "first", headers_only=headers_only)


async def read(
    jetstream: JetStream, stream: str, options: OrderedOptions, *, follow: bool
) -> AsyncGenerator[Message, None]:
    """Yield the messages that the stream holds, in order; with `follow`, also messages that are stored later.

    Ends when the client is closed. Raises as `Ordered.__aiter__` does, and StreamNotFoundError if the stream is deleted
    while it is read.
    """
    first = options.start if isinstance(options.start, int) else 0
    begun = False
    async with aclosing(Ordered(jetstream, stream, options).__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, Batch):
                for message in step:
                    if message.sequence >= first:
                        begun = True
                        yield message
            elif isinstance(step, CaughtUp) and not follow:
                return
            elif isinstance(step, Vanished) or (isinstance(step, Began) and begun):
                raise StreamNotFoundError(f"stream {stream} was deleted while it was read", code=404)
