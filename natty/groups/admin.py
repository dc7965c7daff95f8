"""Administration that static and elastic groups share. Only administrators change the list of members."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from natty.errors import (
    BadGroupError,
    BucketNotFoundError,
    ConsumerNotFoundError,
    GroupExistsError,
    GroupNotFoundError,
    JetStreamError,
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
    is_outdated,
    record_key,
)
from natty.jetstream import JetStream
from natty.kv import Bucket
from natty.names import BadNameError
from natty.streams import StreamConfig, create_replicated
from natty.wire.background import map_concurrently

Kind = Literal["static", "elastic"]
R = TypeVar("R", bound=Record)
_NO_PRIORITY_GROUP = 10160
BUCKETS: dict[Kind, str] = {"static": STATIC_BUCKET, "elastic": ELASTIC_BUCKET}


@dataclass(frozen=True, kw_only=True)
class MemberState:
    """A member as the record and the server's consumer show it."""

    name: str
    listed: bool
    partitions: tuple[int, ...] = ()
    exists: bool = False  # it has a consumer; the server removes an elastic member's soon after its last instance left
    waiting: int = 0  # open pulls: one for each instance, pinned or standby
    pinned: str = ""  # the server's id of the instance that gets the messages; "" for none
    pending: int = 0  # messages that are not delivered yet
    unacked: int = 0
    outdated: bool = False  # its consumer was created by pcgroups 0.1, whose instances may read from it

    @property
    def active(self) -> bool:
        """Whether the server sees an instance that reads as this member."""
        return self.exists and bool(self.waiting or self.pinned)


class GroupAdmin(ABC, Generic[R]):
    """A group of a stream, which may or may not exist on the server. Only method calls send requests.

    Methods that need the group raise GroupNotFoundError if it does not exist, and BadGroupError if its record can't be
    read. The constructor raises BadGroupError for names that can't be part of a key.
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
    async def upgrade(self, *, force: bool = False) -> list[str]:
        """Convert what pcgroups 0.1 created to pcgroups 0.2; return the record or consumers that were converted.

        Nothing is lost: each of them is converted by one request, and the same call completes an interrupted one.
        BadGroupError if instances of 0.1 still read; with `force` these stop reading, and messages that they hold may
        be handled twice.
        """

    @abstractmethod
    async def delete(self) -> list[str]:
        """Delete the group; members end when they see it. Return streams or consumers of its names that are not its."""

    async def read(self) -> R:
        """Return the group's record from the bucket's leader."""
        record = await self._find()
        if record is None:
            raise self._missing_error()
        return record

    async def members(self) -> list[MemberState]:
        """Return the state of every listed member, in the record's order."""
        record = await self.read()
        return await map_concurrently(record.member_names, lambda name: self._state(record, name))

    async def active_members(self) -> list[str]:
        """Return the listed members that have an instance reading."""
        return [one.name for one in await self.members() if one.active]

    async def member(self, name: str) -> MemberState:
        """Return the state of one member, listed or not."""
        return await self._state(await self.read(), name)

    async def step_down(self, member: str) -> None:
        """Make the server pin another instance of a member: the one that waits longest, or the same one if it is alone.

        BadGroupError if the member is not listed; ConsumerNotFoundError if no instance reads as it.
        """
        if not (await self.read()).lists(member):
            raise BadGroupError(f"{member} is not a member of {self}")
        unpin = f"CONSUMER.UNPIN.{self.consumed_stream}.{self.consumer_name(check_member(member))}"
        try:
            await self._jetstream.request(unpin, {"group": PRIORITY_GROUP})
        except (ConsumerNotFoundError, StreamNotFoundError) as error:
            raise ConsumerNotFoundError(
                f"member {member} of {self} has no consumer: no instance reads as it",
                code=error.code,
                err_code=error.err_code,
            ) from error
        except JetStreamError as error:
            if error.err_code == _NO_PRIORITY_GROUP:
                raise BadGroupError(f"member {member} of {self} {self.outdated_hint}") from error
            raise

    async def _state(self, record: Record, member: str) -> MemberState:
        consumer = await self._consumer(member)
        state = MemberState(name=member, listed=record.lists(member), partitions=record.partitions_of(member))
        if consumer is None:
            return state
        group: dict[str, Any] = next(iter(consumer.get("priority_groups") or []), {})
        return replace(
            state,
            exists=True,
            waiting=consumer["num_waiting"],
            pinned=group.get("pinned_client_id", ""),
            pending=consumer["num_pending"],
            unacked=consumer["num_ack_pending"],
            outdated=is_outdated(consumer["config"], member),
        )

    async def _consumer(self, member: str) -> dict[str, Any] | None:
        try:
            name = self.consumer_name(check_member(member))
            return await self._jetstream.request(f"CONSUMER.INFO.{self.consumed_stream}.{name}")
        except (ConsumerNotFoundError, StreamNotFoundError, BadNameError):  # BadNameError: listed, but not a valid name
            return None

    async def _find(self) -> R | None:
        try:
            return self._decode_record((await self._bucket.get(self.key)).value)
        except (KeyNotFoundError, BucketNotFoundError):
            return None

    def _decode_record(self, value: bytes) -> R:
        try:
            return self.decode(value)
        except BadGroupError as error:
            raise BadGroupError(f"{self}: {error}") from error

    def decode_current(self, value: bytes) -> R:
        """Read a record to work with it. BadGroupError, also for a record that must be upgraded first."""
        record = self._decode_record(value)
        self._require_current(record)
        return record

    def _require_current(self, record: R) -> None:
        if record.outdated:
            raise BadGroupError(f"{self} {self.outdated_hint}")

    @property
    def outdated_hint(self) -> str:
        """What is wrong with a group of pcgroups 0.1 and what to do, for errors."""
        command = f"natty group {self.kind} upgrade {self.stream} {self.name}"
        return (
            f"was created by pcgroups 0.1: stop the programs that read it with that version, and convert it ({command})"
        )

    def _refuse_active(self, members: Iterable[MemberState]) -> None:
        """BadGroupError if an instance of pcgroups 0.1 reads as one of these members."""
        if active := [one.name for one in members if one.active]:
            raise BadGroupError(
                f"programs with pcgroups 0.1 read {self} as {', '.join(active)}: stop them, and try again some seconds"
                " later, when the server has noticed; or force it (--force): they then stop reading, and messages that"
                " they hold may be handled twice"
            )

    async def _delete_record(self) -> bool:
        """Delete the record, even if it can't be read; return whether it existed."""
        try:
            await self._bucket.get(self.key)
        except (KeyNotFoundError, BucketNotFoundError):
            return False
        await self._bucket.delete(self.key)
        return True

    def _missing_error(self) -> GroupNotFoundError:
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
        """Create the bucket as Go's library does, if it is missing.

        Groups of all streams share it, so its number of replicas does not follow one stream.
        """
        try:
            await self._bucket.status()
        except BucketNotFoundError:
            settings: StreamConfig = {**bucket_settings(), "subjects": [f"$KV.{self._bucket.name}.>"]}
            await create_replicated(self._jetstream, self._bucket.stream, settings)

    async def _store(self, record: R) -> R:
        """Write the record of a new group; return the stored one. GroupExistsError if that one is different."""
        try:
            await self._bucket.create(self.key, record.encode())
        except KeyExistsError:
            there = await self.read()
            self._compare(record, there)
            return there
        return record

    def _compare(self, wanted: R, there: R) -> None:
        """GroupExistsError if the existing group differs from the wanted one."""
        if differences := wanted.differences(there):
            raise GroupExistsError(
                f"{self} exists with other settings: {'; '.join(differences)}. They never change: use the group as it"
                " is, or delete it and make it again"
            )


async def list_groups(jetstream: JetStream, kind: Kind, stream: str) -> list[str]:
    """Return the names of a stream's groups, sorted; an empty list if the bucket does not exist."""
    try:
        keys = await Bucket(jetstream, BUCKETS[kind]).keys(stream)
    except BucketNotFoundError:
        return []
    return [key.removeprefix(f"{stream}.") for key in keys]
