"""What administers static and elastic groups alike. Only administrators write who is listed, never members."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from natty.errors import (
    BadGroupError,
    BucketNotFoundError,
    ConsumerNotFoundError,
    GroupExistsError,
    GroupNotFoundError,
    KeyExistsError,
    KeyNotFoundError,
    StreamNotFoundError,
)
from natty.groups.records import Record
from natty.groups.settings import (
    ELASTIC_BUCKET,
    PRIORITY_GROUP,
    STATIC_BUCKET,
    bucket_settings,
    check_member,
    record_key,
)
from natty.jetstream import JetStream
from natty.kv import Bucket
from natty.names import BadNameError
from natty.streams import StreamConfig, create_replicated

Kind = Literal["static", "elastic"]
R = TypeVar("R", bound=Record)
BUCKETS: dict[Kind, str] = {"static": STATIC_BUCKET, "elastic": ELASTIC_BUCKET}


@dataclass(frozen=True, kw_only=True)
class MemberState:
    """A member as the record and the server's consumer show it."""

    name: str
    listed: bool
    partitions: tuple[int, ...] = ()
    exists: bool = False  # it has a consumer; that of an elastic member goes some seconds after its last instance
    waiting: int = 0  # open pulls: an instance has one, the pinned one as well as a standby
    pinned: str = ""  # the server's id of the instance that gets the messages; "" for none
    pending: int = 0  # messages that were not delivered yet
    unacked: int = 0

    @property
    def active(self) -> bool:
        """Whether an instance reads as this member, as far as the server knows."""
        return self.exists and bool(self.waiting or self.pinned)


class GroupAdmin(ABC, Generic[R]):
    """A group of a stream, whether there is one on the server or not. Nothing is asked until a method is called.

    All methods that need the group raise GroupNotFoundError if there is none, and BadGroupError if its record can't be
    read. BadGroupError at once for names that can't be a key.
    """

    kind: Kind

    def __init__(self, jetstream: JetStream, stream: str, name: str) -> None:
        self.stream = stream
        self.name = name
        self.key = record_key(stream, name)
        self._jetstream = jetstream
        self._bucket = Bucket(jetstream, BUCKETS[self.kind])

    def __str__(self) -> str:
        return f"{self.kind} group {self.name} of stream {self.stream}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream!r}, {self.name!r})"

    @property
    @abstractmethod
    def consumed_stream(self) -> str:
        """The stream that the members' consumers are on."""

    @abstractmethod
    def consumer_name(self, member: str) -> str:
        """Return the name of a member's consumer."""

    @abstractmethod
    def decode(self, value: bytes) -> R:
        """Read a record of this kind. BadGroupError."""

    @abstractmethod
    async def delete(self) -> list[str]:
        """Delete the group; members end when they see it. Return what has one of its names and is not its own."""

    async def read(self) -> R:
        """Return the group's record, as the bucket's leader has it."""
        record = await self._find()
        if record is None:
            raise self._missing()
        return record

    async def members(self) -> list[MemberState]:
        """Return what becomes of every listed member, in the record's order."""
        record = await self.read()
        return list(await asyncio.gather(*(self._state(record, name) for name in record.member_names)))

    async def active_members(self) -> list[str]:
        """Return the listed members that an instance reads as."""
        return [one.name for one in await self.members() if one.active]

    async def member(self, name: str) -> MemberState:
        """Return what becomes of one member, listed or not."""
        return await self._state(await self.read(), name)

    async def step_down(self, member: str) -> None:
        """Have the server pin another instance of a member: the one that waits longest, or the same if it is alone.

        BadGroupError if nobody of that name is listed; ConsumerNotFoundError if no instance reads as it.
        """
        if not (await self.read()).lists(member):
            raise BadGroupError(f"{member} is not a member of {self}")
        unpin = f"CONSUMER.UNPIN.{self.consumed_stream}.{self.consumer_name(check_member(member))}"
        try:
            await self._jetstream.request(unpin, {"group": PRIORITY_GROUP})
        except (ConsumerNotFoundError, StreamNotFoundError) as error:
            raise ConsumerNotFoundError(
                f"member {member} of {self} has no consumer: nobody reads as it",
                code=error.code,
                err_code=error.err_code,
            ) from error

    async def _state(self, record: Record, member: str) -> MemberState:
        consumer = await self._consumer(member)
        state = MemberState(name=member, listed=record.lists(member), partitions=record.partitions_of(member))
        if consumer is None:
            return state
        groups = {one["group"]: one for one in consumer.get("priority_groups") or []}
        return replace(
            state,
            exists=True,
            waiting=consumer["num_waiting"],
            pinned=groups.get(PRIORITY_GROUP, {}).get("pinned_client_id", ""),
            pending=consumer["num_pending"],
            unacked=consumer["num_ack_pending"],
        )

    async def _consumer(self, member: str) -> dict[str, Any] | None:
        try:
            name = self.consumer_name(check_member(member))
            return await self._jetstream.request(f"CONSUMER.INFO.{self.consumed_stream}.{name}")
        except (ConsumerNotFoundError, StreamNotFoundError, BadNameError):  # the last: listed, and impossible
            return None

    async def _find(self) -> R | None:
        try:
            return self._decoded((await self._bucket.get(self.key)).value)
        except (KeyNotFoundError, BucketNotFoundError):
            return None

    def _decoded(self, value: bytes) -> R:
        try:
            return self.decode(value)
        except BadGroupError as error:
            raise BadGroupError(f"{self}: {error}") from error

    async def _delete_record(self) -> bool:
        """Delete the record, one that can't be read too; return whether there was one."""
        try:
            await self._bucket.get(self.key)
        except (KeyNotFoundError, BucketNotFoundError):
            return False
        await self._bucket.delete(self.key)
        return True

    def _missing(self) -> GroupNotFoundError:
        return GroupNotFoundError(f"there is no {self}")

    async def _source(self) -> dict[str, Any]:
        """Return the stream's configuration. StreamNotFoundError."""
        try:
            return dict((await self._jetstream.request(f"STREAM.INFO.{self.stream}"))["config"])
        except StreamNotFoundError as error:
            raise StreamNotFoundError(
                f"there is no stream {self.stream}: make it first", code=error.code, err_code=error.err_code
            ) from error

    async def _prepare_bucket(self) -> None:
        """Make the bucket as Go's library does, if there is none. It is shared: its replicas are not one stream's."""
        try:
            await self._bucket.status()
        except BucketNotFoundError:
            settings: StreamConfig = {**bucket_settings(), "subjects": [f"$KV.{self._bucket.name}.>"]}
            await create_replicated(self._jetstream, self._bucket.stream, settings)

    async def _store(self, record: R) -> R:
        """Write the record of a new group; return the one that is there. GroupExistsError if that is another one."""
        try:
            await self._bucket.create(self.key, record.encode())
        except KeyExistsError:
            there = await self.read()
            self._compare(record, there)
            return there
        return record

    def _compare(self, wanted: R, there: R) -> None:
        """GroupExistsError if a group that is there is not the wanted one."""
        if differences := wanted.differences(there):
            raise GroupExistsError(
                f"{self} exists with other settings: {'; '.join(differences)}. They never change: use the group as it"
                " is, or delete it and make it again"
            )


async def list_groups(jetstream: JetStream, kind: Kind, stream: str) -> list[str]:
    """Return the names of a stream's groups, sorted; none where nobody ever made one."""
    try:
        keys = await Bucket(jetstream, BUCKETS[kind]).keys(stream)
    except BucketNotFoundError:
        return []
    return [key.removeprefix(f"{stream}.") for key in keys]
