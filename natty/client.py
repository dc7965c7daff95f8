"""The client: one method for each use, and `as_leader` for functions that have no client."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from datetime import datetime
from functools import cached_property, partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from natty import kv, streams
from natty.config.options import make_options
from natty.config.settings import Config, ConnectionSettings, resolve
from natty.consuming import closing
from natty.consuming.consume import Consumption
from natty.consuming.dead_letters import LETTERS, LetterBox
from natty.consuming.handler import Handler
from natty.consuming.messaging import MAX_BYTES, MAX_MESSAGES, CoreMessage, CoreSubscription, Respond, Responder
from natty.consuming.options import OF_CONSUMERS, ConsumeOptions, ConsumeSettings
from natty.consuming.shutdown import until_signal
from natty.elections import (
    BUCKET,
    Election,
    ElectionOptions,
    ElectionSettings,
    Leadership,
    Lease,
    Term,
    ask_to_step_down,
    election_options,
    observe,
)
from natty.errors import PublishError
from natty.groups import ElasticGroup, StaticGroup
from natty.jetstream import JetStream, PubAck, StoredMessage
from natty.kv import Bucket, BucketStatus, Entry, Gone, Handles, Watch, WatchSettings
from natty.names import check_name
from natty.publishing.atomic import AtomicMessage, publish_atomic
from natty.publishing.options import PublisherOptions, PublisherSettings
from natty.publishing.outbox import Callback, Outbox
from natty.publishing.publisher import Publisher
from natty.pulling.ordered import read, read_options
from natty.pulling.pull import Pull
from natty.pulling.requests import PullOptions, PullSettings
from natty.streams import (
    BucketConfig,
    ConsumerConfig,
    ConsumerInfo,
    PauseAnswer,
    ServerConsumerConfig,
    ServerStreamConfig,
    StreamConfig,
    StreamInfo,
)
from natty.streams.schedules import Scheduler, ScheduleSettings
from natty.templates import Templates
from natty.wire.connection import Connection
from natty.wire.message import Headers, Message, encode_headers, publish_headers

P = ParamSpec("P")
T = TypeVar("T")
Elected = Callable[P, Coroutine[Any, Any, T]]


class AsLeader(Protocol):
    """A decorator of a leader's work: `async def` runs on the event loop, any other callable in a thread.

    The function that it returns takes the work's parameters without the term.
    """

    @overload
    def __call__(self, work: Callable[Concatenate[Term, P], Awaitable[T]], /) -> Elected[P, T]: ...

    @overload
    def __call__(self, work: Callable[Concatenate[Term, P], T], /) -> Elected[P, T]: ...


class Natty:
    """JetStream for services: `async with Natty(...) as natty`, or `natty = await Natty.connect(...)`.

    Settings are the keywords of `ConnectionSettings`. Missing ones come from the environment (`NATS_URL`, `NATS_CREDS`,
    `NATS_CERT`, `NATS_KEY`, `NATS_CA`, …), then from a context of the `nats` tool, then from the defaults. With
    `servers`, only a context that `context` names counts.
    For everything without a method here, use `natty.jetstream` (raw API requests) and `natty.connection`.
    """

    def __init__(
        self,
        servers: str | list[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        self.config: Config = resolve({"servers": servers, **settings}, context=context)
        self.connection = Connection(self.config)
        self.jetstream = JetStream(self.connection)

    def __repr__(self) -> str:
        return f"Natty({self.connection!r})"

    @cached_property
    def outbox(self) -> Outbox:
        """The background publishers. Call `outbox.configure(OutboxOptions(...))` before the first `publish_async`."""
        return Outbox(self.jetstream)

    @cached_property
    def scheduler(self) -> Scheduler:
        """What waits to be published later: `list`, `get`, `cancel`; docs/publish-later.md."""
        return Scheduler(self.jetstream)

    @classmethod
    async def connect(
        cls,
        servers: str | list[str] | None = None,
        *,
        context: str | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> Self:
        """Connect and return the client: `close` it at the end, or use `async with`, which does not open it again.

        Each server is tried once. ConnectError names each one and what was wrong with it; AuthorizationError,
        ConfigError, TLSRequiredError or TLSHandshakeError if that was the reason.
        """
        return await cls(servers, context=context, **settings).__aenter__()

    async def __aenter__(self) -> Self:
        await self.connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await closing.close(self.connection, self.outbox, raises=kind is None)

    async def close(self) -> None:
        """Let handlers finish, wait for the outcome of the background publishes, then close the connection.

        Stops consumptions and members of groups: their handlers have `shutdown_timeout` seconds, and their acks are
        sent. Ends elections: cancels the work and releases the lease. Then waits until each message of `publish_async`
        is stored or reported, at most `give_up` seconds (30) after the server's last answer; PublishError if there
        was no receiver for the reports. Leaving `async with` does the same. Idempotent; a closed client can't be opened
        again. If cancelled, it closes at once. If a handler or a leader's work calls it, it returns at once, and closes
        after they have returned.
        """
        await closing.close(self.connection, self.outbox, raises=True)

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        msg_id: str = "",
        headers: Headers | None = None,
        expect_last_sequence: int | None = None,
        expect_last_subject_sequence: int | None = None,
        ttl: float | str | None = None,
        at: datetime | None = None,
        after: float | str | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish one message and return when it is stored. See `JetStream.publish` for the errors.

        With `msg_id`, the stream stores the message only once within its duplicate window, and the client sends it
        again if the ack is lost. The stream removes it after `ttl`, seconds or text ("7d"), rounded up (server 2.11, a
        stream with `allow_msg_ttl`). `timeout` is in seconds, by default that of the client.

        With `at`, a datetime with a time zone, or `after`, seconds or text ("5m"), the server keeps the message until
        then, and publishes it: see `Scheduler.publish`. `schedule` of the ack names it, for `scheduler.cancel`.
        """
        all_headers = publish_headers(
            headers,
            msg_id=msg_id,
            expect_last_sequence=expect_last_sequence,
            expect_last_subject_sequence=expect_last_subject_sequence,
            ttl=ttl,
        )
        if at is not None or after is not None:
            return await self.scheduler.publish(subject, data, all_headers, at=at, after=after, timeout=timeout)
        return await self.jetstream.publish_and_count(subject, data, headers=all_headers, timeout=timeout)

    async def schedule(self, name: str, subject: str, data: bytes = b"", **options: Unpack[ScheduleSettings]) -> PubAck:
        """Have the server publish again and again, or once. Options: `ScheduleSettings`. See `Scheduler.put`."""
        return await self.scheduler.put(name, subject, data, **options)

    async def request(
        self, subject: str, data: bytes = b"", *, headers: Headers | None = None, timeout: float | None = None
    ) -> CoreMessage:
        """Send a request over core NATS and return the first answer, within `timeout` seconds, by default the client's.

        NoRespondersError if there is no subscription to the subject. RequestTimeoutError, NotConnectedError;
        AuthorizationError if the subject is not permitted; TypeError, BadSubjectError, PayloadTooLargeError.
        """
        block = encode_headers(headers) if headers else b""
        raw = await self.connection.request(subject, data, headers=block, timeout=timeout)
        return CoreMessage(raw, self.connection)

    def subscribe(
        self, subject: str, *, queue: str = "", max_messages: int = MAX_MESSAGES, max_bytes: int = MAX_BYTES
    ) -> CoreSubscription:
        """Return a subscription of core NATS: `async with client.subscribe("a.*") as messages`, or `async for`.

        If `max_messages` (65536) or `max_bytes` (64 MiB) wait to be read, it drops new ones; see `CoreSubscription`.
        With `queue`, one member of that group gets each message. BadSubjectError when it begins.
        """
        return CoreSubscription(self.connection, subject, queue=queue, max_messages=max_messages, max_bytes=max_bytes)

    def respond(
        self, subject: str, handler: Respond, *, queue: str = "", concurrency: int = 1, shutdown_timeout: float = 10.0
    ) -> Responder:
        """Answer requests on a subject with the result of `handler(message)`: use `await` or `async with`.

        Runs up to `concurrency` handlers at a time; at the end they have `shutdown_timeout` seconds. See `Responder`.
        """
        subscription = CoreSubscription(self.connection, subject, queue=queue)
        return Responder(
            subscription, self.connection, handler, concurrency=concurrency, shutdown_timeout=shutdown_timeout
        )

    def read(
        self,
        stream: str,
        *,
        from_sequence: int | None = None,
        from_time: datetime | str | None = None,
        subjects: str | Sequence[str] = (),
        follow: bool = False,
        headers_only: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Read a stream in order, every message once: `async for message in client.read("ORDERS")`.

        Starts at its first message, a sequence or a time, a datetime or text as "2026-11-21T06:00:00Z"; `subjects`
        filters, wildcards allowed. Ends after the last message that the stream holds, or when the client is closed;
        with `follow`, continues with each new message. The messages need no ack. StreamNotFoundError, also if the
        stream is deleted meanwhile; UnsupportedError.
        """
        options = read_options(from_sequence, from_time, subjects, headers_only=headers_only)
        return read(self.jetstream, stream, options, follow=follow)

    async def publish_async(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> None:
        """Publish in the background: return when the message is accepted; wait while too many are in flight.

        The message is stored, or reported to `on_publish_error` or `publish_errors()`. With a `msg_id`, it is sent
        again if its ack is lost. Messages of a subject are stored in order. See `Outbox.publish` for the errors.
        """
        await self.outbox.publish(subject, data, msg_id=msg_id, headers=headers)

    def on_publish_error(self, callback: Callback) -> Callback:
        """Call `callback(error)` for every message of `publish_async` that is not stored; usable as a decorator.

        `def` is called on the event loop and must not block; `async def` runs as a task, one error after another, up to
        10 s each. If it raises, that is logged and the error is kept for `publish_errors`. `outbox.counts` counts.
        """
        return self.outbox.errors.call(callback)

    def publish_errors(self) -> AsyncIterator[PublishError]:
        """Iterate over the messages of `publish_async` that were not stored, until the client is closed."""
        return self.outbox.errors.read()

    async def flush_publishers(self) -> None:
        """Return when each message that `publish_async` has accepted so far is stored, or reported as an error."""
        await self.outbox.flush()

    async def delete_publisher(self, subject: str) -> None:
        """Remove the subject's background publisher once its messages are settled; a missing one is not an error."""
        await self.outbox.delete(subject)

    async def publish_atomic(
        self,
        messages: Sequence[AtomicMessage | tuple[str, bytes]],
        *,
        expect_last_sequence: int | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Store all of the messages in their stream, or none; return the ack of the last.

        Needs server 2.12 and a stream with `allow_atomic`; at most 1000 messages, also as pairs (subject, data).
        `timeout` is in seconds, by default that of the client. PublishError or WrongLastSequenceError: nothing was
        stored; PublishError with `in_doubt`: it may be stored, so publish it again with the same message ids.
        """
        return await publish_atomic(
            self.jetstream, messages, expect_last_sequence=expect_last_sequence, timeout=timeout
        )

    def publisher(self, stream: str, **options: Unpack[PublisherSettings]) -> Publisher:
        """Return a publisher of many messages to one stream; use `async with`. Options: `PublisherSettings`."""
        return Publisher(self.jetstream, stream, make_options(PublisherOptions, "publisher", options))

    def consume(
        self,
        stream: str,
        durable: str,
        handler: Handler | None = None,
        *,
        consumer: ConsumerConfig | None = None,
        **options: Unpack[ConsumeSettings],
    ) -> Consumption:
        """Consume a stream with a durable consumer: use `await` or `async for message in`. Creates a missing consumer.

        `handler` takes a message, its body by annotation, or both; see `Handler`. `consumer` has the settings of a new
        consumer (`filter_subjects`, `ack_wait`, …). Options: `ConsumeSettings`.
        """
        chosen = make_options(ConsumeOptions, "consume", options, OF_CONSUMERS)
        return Consumption(self.jetstream, stream, durable, handler, chosen, consumer)

    def pull(self, stream: str, durable: str, **options: Unpack[PullSettings]) -> Pull:
        """Return the bare pull loop, batch by batch, to ack in bulk. Options: `PullSettings`."""
        return Pull(self.jetstream, stream, durable, make_options(PullOptions, "pull", options, OF_CONSUMERS))

    def group(self, stream_name: str, name: str) -> ElasticGroup:
        """Return an elastic group of a stream, to join and administer it. Sends no request. See docs/groups.md."""
        return ElasticGroup(self.jetstream, stream_name, name)

    def static_group(self, stream_name: str, name: str) -> StaticGroup:
        """Return a static group of a stream whose subjects begin with a partition. Sends no request."""
        return StaticGroup(self.jetstream, stream_name, name)

    async def create_stream(self, name: str, **settings: Unpack[StreamConfig]) -> ServerStreamConfig:
        """Create the stream if it does not exist; return its configuration, durations in nanoseconds.

        `max_age` and other durations are seconds or text ("7d"), `max_bytes` and other sizes bytes or text ("1GiB").
        StreamExistsError if it exists with other settings; ConfigError for an unknown one, with the nearest name.
        """
        return await streams.create_stream(self.jetstream, name, settings)

    async def ensure_stream(
        self, name: str, *, allow_destructive: bool = False, **settings: Unpack[StreamConfig]
    ) -> ServerStreamConfig:
        """Create the stream, or change the settings that are safe to change; StreamExistsError for the others.

        Other settings stay as they are; units as for `create_stream`. docs/streams.md lists the safe changes.
        """
        return await streams.ensure_stream(self.jetstream, name, settings, allow_destructive=allow_destructive)

    async def stream_info(self, name: str) -> StreamInfo:
        """Return a stream's configuration and state as the server reports them: durations are nanoseconds."""
        return await streams.stream_info(self.jetstream, check_name("stream", name))

    async def delete_stream(self, name: str) -> None:
        """Delete the stream with its messages and consumers; a missing stream is not an error."""
        await streams.delete_stream(self.jetstream, name)

    async def purge_stream(
        self, name: str, *, subject: str = "", below: int = 0, keep: int = 0, allow_pending: bool = False
    ) -> int:
        """Delete messages at once: all, on a subject, before a sequence, or all but the newest.

        PurgeRefusedError for a purge by subject while consumers hold other unacknowledged messages, unless
        `allow_pending`.
        """
        return await streams.purge(
            self.jetstream, name, subject=subject, below=below, keep=keep, allow_pending=allow_pending
        )

    async def get_message(self, stream_name: str, *, sequence: int = 0, last_for: str = "") -> StoredMessage:
        """Return the message at a sequence, or the last one on a subject; MessageNotFoundError."""
        return await streams.message(self.jetstream, stream_name, sequence=sequence, last_for=last_for)

    async def delete_message(self, stream_name: str, sequence: int, *, erase: bool = True) -> bool:
        """Delete one message; `erase` overwrites it on the disk. False if there is none."""
        return await streams.delete_message(self.jetstream, stream_name, sequence, erase=erase)

    async def create_consumer(
        self, stream_name: str, durable: str, **settings: Unpack[ConsumerConfig]
    ) -> ServerConsumerConfig:
        """Create the durable pull consumer if it does not exist; return its configuration, durations in nanoseconds.

        `ack_wait` and other durations are seconds or text ("30s"). ConsumerExistsError if it exists with other
        settings; ConfigError for an unknown one, with the nearest name; StreamNotFoundError.
        """
        return await streams.create_consumer(self.jetstream, stream_name, durable, settings)

    async def ensure_consumer(
        self, stream_name: str, durable: str, *, allow_destructive: bool = False, **settings: Unpack[ConsumerConfig]
    ) -> ServerConsumerConfig:
        """Create the durable pull consumer, or change the settings that are safe to change.

        ConsumerExistsError for the others. Units as for `create_consumer`; docs/streams.md lists the safe changes.
        """
        return await streams.ensure_consumer(
            self.jetstream, stream_name, durable, settings, allow_destructive=allow_destructive
        )

    async def consumer_info(self, stream_name: str, durable: str) -> ConsumerInfo:
        """Return a consumer's configuration and position as the server reports them: durations are nanoseconds."""
        names = check_name("stream", stream_name), check_name("consumer", durable)
        return await streams.consumer_info(self.jetstream, *names)

    async def delete_consumer(self, stream_name: str, durable: str) -> None:
        """Delete the consumer; a missing consumer or stream is not an error."""
        await streams.delete_consumer(self.jetstream, stream_name, durable)

    async def pause_consumer(self, stream_name: str, durable: str, until: datetime) -> PauseAnswer:
        """Pause the consumer until a time; it keeps its position. ConfigError if `until` is past."""
        return await streams.pause_consumer(self.jetstream, stream_name, durable, until)

    async def resume_consumer(self, stream_name: str, durable: str) -> None:
        """Make a paused consumer deliver again at once; a consumer that is not paused is not an error."""
        await streams.resume_consumer(self.jetstream, stream_name, durable)

    def stream_templates(self) -> Templates:
        """Return the templates of this account, which create streams on demand. Sends no request. docs/templates.md"""
        return Templates(self.jetstream)

    def dead_letters(self, letters: str = LETTERS) -> LetterBox:
        """Return the dead letters of this account, to list, show, retry and purge them. Sends no request.

        `letters` is their stream, "DEAD_LETTERS" by default.
        """
        return LetterBox(self.jetstream, letters)

    async def create_bucket(self, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
        """Create the bucket if it does not exist, and return it; StreamExistsError if it has other settings.

        `ttl` of all keys is seconds or text ("7d"), `history` the number of values to keep for each key.
        Settings: `BucketConfig`.
        """
        return await kv.create_bucket(self.jetstream, bucket, **settings)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete the bucket; a missing bucket is not an error."""
        await kv.delete_bucket(self.jetstream, bucket)

    @cached_property
    def buckets(self) -> Handles:
        """The handles of the buckets in use, by name."""
        return Handles(self.jetstream)

    def bucket(self, name: str) -> Bucket:
        """Return a handle of the bucket. Sends no request."""
        return self.buckets[name]

    async def get(self, bucket: str, key: str, *, revision: int | None = None) -> Entry:
        """Return the key's entry, or its entry at `revision` if the bucket still holds it. KeyNotFoundError."""
        return await self.bucket(bucket).get(key, revision=revision)

    async def put(
        self, bucket: str, key: str, value: bytes, *, ttl: float | str | None = None, create_bucket: bool = False
    ) -> int:
        """Store the value unconditionally, and return its revision.

        See `Bucket.put`.
        """
        return await self.bucket(bucket).put(key, value, ttl=ttl, create_bucket=create_bucket)

    async def create(
        self, bucket: str, key: str, value: bytes, *, ttl: float | str | None = None, create_bucket: bool = False
    ) -> int:
        """Store the value of a key that is absent, deleted or expired. KeyExistsError.

        See `Bucket.create`.
        """
        return await self.bucket(bucket).create(key, value, ttl=ttl, create_bucket=create_bucket)

    async def update(
        self, bucket: str, key: str, value: bytes, *, revision: int, ttl: float | str | None = None
    ) -> int:
        """Store the value if the key is still at `revision`, and return the new one. RevisionConflictError."""
        return await self.bucket(bucket).update(key, value, revision=revision, ttl=ttl)

    async def modify(
        self, bucket: str, key: str, change: Callable[[bytes | None], bytes | None], *, ttl: float | str | None = None
    ) -> Entry | None:
        """Store what `change` returns for the value (None: the key is absent); return the resulting entry, if any.

        See `Bucket.modify`.
        """
        return await self.bucket(bucket).modify(key, change, ttl=ttl)

    async def refresh(
        self,
        bucket: str,
        key: str | Entry,
        *,
        revision: int | None = None,
        value: bytes | None = None,
        ttl: float | str | None = None,
        timeout: float | None = None,
    ) -> Entry:
        """Restart the key's TTL by storing the same value again, and return its new entry.

        See `Bucket.refresh`.
        """
        return await self.bucket(bucket).refresh(key, revision=revision, value=value, ttl=ttl, timeout=timeout)

    async def delete(self, bucket: str, key: str, *, revision: int | None = None) -> None:
        """Delete the key; the bucket keeps its history. A missing key or bucket is not an error.

        See `Bucket.delete`.
        """
        await self.bucket(bucket).delete(key, revision=revision)

    async def purge(
        self, bucket: str, key: str, *, revision: int | None = None, ttl: float | str | None = None
    ) -> None:
        """Delete the key and its history; otherwise like `delete`. The server removes the marker after `ttl`.

        See `Bucket.purge`.
        """
        await self.bucket(bucket).purge(key, revision=revision, ttl=ttl)

    async def keys(self, bucket: str, *filters: str) -> list[str]:
        """Return the keys that exist, sorted. The server filters.

        See `Bucket.keys`.
        """
        return await self.bucket(bucket).keys(*filters)

    async def history(self, bucket: str, key: str) -> list[Entry | Gone]:
        """Return the key's entries that the bucket still holds, oldest first; the last one shows whether it exists.

        See `Bucket.history`.
        """
        return await self.bucket(bucket).history(key)

    def watch(self, bucket: str, *keys: str, **options: Unpack[WatchSettings]) -> Watch:
        """Return a watch of these keys (wildcards `*` and `>` allowed), or without keys of the whole bucket.

        See `Bucket.watch`.
        """
        return self.bucket(bucket).watch(*keys, **options)

    async def status(self, bucket: str) -> BucketStatus:
        """Return the content and the configuration of the bucket."""
        return await self.bucket(bucket).status()

    def election(self, name: str, **options: Unpack[ElectionSettings]) -> Election:
        """Return this node's candidacy: `await election.run(work)`. Options: `ElectionSettings`.

        With `every` or `cron` the work runs again and again while this node leads; see `Election.run`.
        """
        return Election(self.jetstream, election_options("election", name, options))

    def leader(self, name: str, **options: Unpack[ElectionSettings]) -> Election:
        """Return a block that runs while this node is elected: `async with natty.leader("sweeper") as term`.

        Entering it campaigns. When the term ends, the block is cancelled and LeadershipLostError raised at its end.
        """
        return self.election(name, **options)

    def observe(self, name: str, *, bucket: str = BUCKET, key: str = "") -> AsyncGenerator[Leadership, None]:
        """Yield who leads, since when and under which token, now and after each change: a hint.

        `bucket` ("natty_leaders") and `key` (the name) are those of the candidates, here and in `step_down`,
        `get_leader` and `have_leader`.
        """
        return observe(self.jetstream, ElectionOptions(name=name, bucket=bucket, key=key))

    async def step_down(self, name: str, *, to: str = "", bucket: str = BUCKET, key: str = "") -> str:
        """Ask the leader, on any machine, to leave office; return its name, or "" if there is no leader.

        The node `to` goes first then. NattyError if the leader does not answer.
        """
        return await ask_to_step_down(self.jetstream, ElectionOptions(name=name, bucket=bucket, key=key), to)

    def as_leader(self, name: str, **options: Unpack[ElectionSettings]) -> AsLeader:
        """Decorate `work(term, …)`: calling it campaigns, and runs it while this node is elected.

        Call it without the term: `await work(1, b=2)` for `work(term, a, b)`. The work is `async def`, or any other
        callable, which runs in a thread; see `Election.run`. Options: `ElectionSettings`.

        When the work returns or raises, this node leaves office and is no longer a candidate; other candidates run
        their work then. With `every=60.0` or `cron="0 3 * * *"` the work runs again and again while this node leads,
        this node stays a candidate, errors are logged and counted, and the call does not return.
        """
        chosen = election_options("as_leader", name, options)
        return lambda work: wraps(work)(partial(Election(self.jetstream, chosen).run, work))

    async def get_leader(self, name: str, *, bucket: str = BUCKET, key: str = "") -> str | None:
        """Return the node that holds the lease as last written, or None: a hint; base no decisions on it."""
        lease: Lease | None = await self.election(name, bucket=bucket, key=key).leader()
        return lease.id if lease else None

    async def have_leader(self, name: str, node_name: str, *, bucket: str = BUCKET, key: str = "") -> bool:
        """Return whether this node holds the lease as last written: a hint."""
        return await self.get_leader(name, bucket=bucket, key=key) == node_name


def as_leader(
    name: str, *, settings: ConnectionSettings | None = None, **options: Unpack[ElectionSettings]
) -> AsLeader:
    """Decorate `work(term, …)`: calling it connects, campaigns, and runs it while this node is elected.

    As `Natty.as_leader`. With `every` or `cron` the call returns None after SIGTERM or SIGINT, see `stop_on_signals`;
    without them the client is closed when the work has returned. Connection settings come from the environment and the
    nats context, as for `Natty()`, or from `settings`. Options: `ElectionSettings`.
    """

    chosen = election_options("as_leader", name, options)

    def decorate(work: Callable[..., Any]) -> Elected[..., Any]:
        @wraps(work)
        async def campaign(*args: Any, **kwargs: Any) -> Any:
            async with Natty(**(settings or {})) as client:
                return await Election(client.jetstream, chosen).run(work, *args, **kwargs)

        return until_signal(campaign) if chosen.repeats else campaign

    return decorate
