from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar

from natty import kv, stream
from natty.config import Config, resolve
from natty.connection import Connection
from natty.consume import ConsumeOptions, Consumption, Handler
from natty.jetstream import JetStream, PubAck
from natty.kv import Bucket, Entry
from natty.leader import Election, ElectionOptions, Lease, Term
from natty.publish import Publisher, PublisherOptions
from natty.pull import Pull, PullOptions

T = TypeVar("T")
Work = Callable[[Term], Awaitable[T]]


class Natty:
    """JetStream for services: `async with Natty(...) as natty`, or `natty = await Natty.connect(...)`.

    Settings are those of `Config`, by keyword; what is not given comes from the environment (`NATS_URL`, `NATS_CREDS`,
    `NATS_CERT`, `NATS_KEY`, `NATS_CA`, …), then from the selected context of the `nats` tool, then from the defaults.
    The way out, for all that has no method here: `natty.jetstream` (raw API requests) and `natty.connection`.
    """

    def __init__(self, servers: str | list[str] | None = None, *, context: str | None = None, **settings: Any) -> None:
        self.config: Config = resolve({"servers": servers, **settings}, context=context)
        self.connection = Connection(self.config)
        self.jetstream = JetStream(self.connection)

    def __repr__(self) -> str:
        return f"Natty({self.connection!r})"

    @classmethod
    async def connect(cls, servers: str | list[str] | None = None, **settings: Any) -> Self:
        """Connect and return the client; `close` it in the end. Raises as `Connection.open` does."""
        return await cls(servers, **settings).__aenter__()

    async def __aenter__(self) -> Self:
        await self.connection.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let the server take what was sent, then close. Idempotent; never hangs."""
        await self.connection.close()

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        headers: dict[str, str] | None = None,
        expect_last_sequence: int | None = None,
        expect_last_subject_sequence: int | None = None,
        timeout: float | None = None,
    ) -> PubAck:
        """Publish one message and return when it is stored. See `JetStream.publish` for what it raises.

        `message_id` makes the stream store it once however often it is published within its duplicate window.
        """
        expected = {
            "Nats-Msg-Id": message_id or None,
            "Nats-Expected-Last-Sequence": expect_last_sequence,
            "Nats-Expected-Last-Subject-Sequence": expect_last_subject_sequence,
        }
        all_headers = dict(headers or {}) | {name: str(value) for name, value in expected.items() if value is not None}
        return await self.jetstream.publish(subject, data, headers=all_headers, timeout=timeout)

    def publisher(self, stream: str, **options: Any) -> Publisher:
        """Return a publisher of many messages to one stream; use it with `async with`. Options: `PublisherOptions`."""
        return Publisher(self.jetstream, stream, PublisherOptions(**options))

    def consume(
        self,
        stream: str,
        durable: str,
        handler: Handler | None = None,
        *,
        consumer: dict[str, Any] | None = None,
        **options: Any,
    ) -> Consumption:
        """Consume a stream with a durable consumer, made if there is none: `await` it, or `async for message in` it.

        `consumer` holds settings for making it (`filter_subjects`, `ack_wait`, …); options are `ConsumeOptions`.
        """
        return Consumption(self.jetstream, stream, durable, handler, ConsumeOptions(**options), consumer)

    def pull(self, stream: str, durable: str, **options: Any) -> Pull:
        """Return the bare pull loop, batch by batch, for those who ack in bulk. Options: `PullOptions`."""
        return Pull(self.jetstream, stream, durable, PullOptions(**options))

    async def ensure_stream(self, name: str, **settings: Any) -> dict[str, Any]:
        """Make the stream if there is none; StreamExistsError if it has other settings. See `stream.ensure_stream`."""
        return await stream.ensure_stream(self.jetstream, name, settings)

    async def ensure_consumer(self, stream_name: str, durable: str, **settings: Any) -> dict[str, Any]:
        """Make the durable pull consumer if there is none; ConsumerExistsError if it has other settings."""
        return await stream.ensure_consumer(self.jetstream, stream_name, durable, settings)

    async def create_bucket(self, bucket: str, **settings: Any) -> Bucket:
        """Make the bucket if there is none and return it. Settings: `ttl`, `replicas`, `description`."""
        return await kv.create_bucket(self.jetstream, bucket, **settings)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete the bucket; a missing one is no error."""
        await kv.delete_bucket(self.jetstream, bucket)

    def bucket(self, name: str) -> Bucket:
        """Return a handle of the bucket; nothing is asked of the server yet."""
        return Bucket(self.jetstream, name)

    async def get(self, bucket: str, key: str) -> Entry:
        """Return a key's entry. KeyNotFoundError, BucketNotFoundError."""
        return await self.bucket(bucket).get(key)

    async def put(self, bucket: str, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Store a value, in a bucket that is made if missing; return the revision."""
        return await (await self.create_bucket(bucket)).put(key, value, ttl=ttl)

    async def create(self, bucket: str, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Store the value of a key that is absent, in a bucket that is made if missing. KeyExistsError."""
        return await (await self.create_bucket(bucket)).create(key, value, ttl=ttl)

    async def update(self, bucket: str, key: str, value: bytes, *, revision: int) -> int:
        """Store a value if the key is still at `revision`. RevisionConflictError."""
        return await self.bucket(bucket).update(key, value, revision=revision)

    async def refresh(self, bucket: str, key: str, *, revision: int | None = None) -> int:
        """Restart a key's TTL if nobody changed it. RevisionConflictError, KeyNotFoundError."""
        return await self.bucket(bucket).refresh(key, revision=revision)

    async def delete(self, bucket: str, key: str) -> None:
        """Delete a key; a missing key is no error."""
        await self.bucket(bucket).delete(key)

    async def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys that exist, sorted."""
        return await self.bucket(bucket).keys(prefix)

    def election(self, name: str, **options: Any) -> Election:
        """Return this node's candidacy: `await election.run(work)`. Options: `ElectionOptions`."""
        return Election(self.jetstream, ElectionOptions(name=name, **options))

    def as_leader(self, name: str, **options: Any) -> Callable[[Work[T]], Callable[[], Coroutine[Any, Any, T]]]:
        """Decorate `async def work(term)`: calling it campaigns, and runs it while this node is elected."""
        return lambda work: wraps(work)(partial(self.election(name, **options).run, work))

    async def get_leader(self, name: str, **options: Any) -> str | None:
        """Return the node that holds the lease as last written, or None: a hint, never a base for decisions."""
        lease: Lease | None = await self.election(name, **options).leader()
        return lease.id if lease else None

    async def have_leader(self, name: str, node_name: str, **options: Any) -> bool:
        """Return whether this node holds the lease as last written: a hint."""
        return await self.get_leader(name, **options) == node_name


def as_leader(
    name: str, *, settings: dict[str, Any] | None = None, **options: Any
) -> Callable[[Work[T]], Callable[[], Coroutine[Any, Any, T]]]:
    """Decorate `async def work(term)`: calling it connects, campaigns, and runs it while this node is elected.

    Connection settings come from the environment and the nats context, as `Natty()` reads them, or from `settings`.
    """

    def decorate(work: Work[T]) -> Callable[[], Coroutine[Any, Any, T]]:
        @wraps(work)
        async def elected() -> T:
            async with Natty(**(settings or {})) as natty:
                return await natty.election(name, **options).run(work)

        return elected

    return decorate
