"""Elastic groups: a work queue copies the stream's messages and gives them a partition; members join and leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from natty.errors import BadGroupError, BucketNotFoundError, GroupExistsError, JetStreamError, StreamNotFoundError
from natty.groups import rules
from natty.groups.admin import GroupAdmin
from natty.groups.partitions import MemberMapping, PartitioningFilter
from natty.groups.records import ElasticRecord
from natty.groups.settings import check_member, transforms, work_queue, work_queue_settings
from natty.jetstream import STREAM_EXISTS
from natty.streams import delete_stream, stream_state
from natty.streams.origins import refuse_lossy_sources

_BAD_TRANSFORM = (10146, 10147)  # it can't be parsed; two of them match the same subjects


@dataclass(frozen=True)
class Change:
    """A group's record before and after a change. If they are equal, nothing was written."""

    before: ElasticRecord
    after: ElasticRecord

    @property
    def added(self) -> list[str]:
        """The members that the change added."""
        return [name for name in self.after.member_names if not self.before.lists(name)]

    @property
    def dropped(self) -> list[str]:
        """The members that the change removed."""
        return [name for name in self.before.member_names if not self.after.lists(name)]


class ElasticAdmin(GroupAdmin[ElasticRecord]):
    """An elastic group. Changes use compare-and-set, and are tried again if another client was faster.

    They raise RevisionConflictError after twenty conflicts. They write nothing if nothing changes, because every write
    restarts members that are written in Go.
    """

    kind = "elastic"

    @property
    def consumed_stream(self) -> str:
        """The group's work queue."""
        return work_queue(self.stream, self.name)

    def consumer_name(self, member: str) -> str:
        """Return the name of a member's consumer, which is the member's name."""
        return member

    def decode(self, value: bytes) -> ElasticRecord:
        """Read a record. BadGroupError."""
        return ElasticRecord.decode(value)

    async def create(
        self,
        partitions: int,
        filters: Iterable[PartitioningFilter] | None = None,
        *,
        max_messages: int = 0,
        max_bytes: int = 0,
    ) -> ElasticRecord:
        """Create the group, without members, if it does not exist; return its record.

        Without `filters` it reads the whole stream, and the whole subject is the key. When the work queue reaches
        `max_messages` or `max_bytes` (0: no limit), it accepts no more until members have acknowledged some.
        Every step that may fail runs before the record is written, so that no partial group remains; after an
        interruption, the same call completes it.
        GroupExistsError if it exists with other settings, or if another stream has the work queue's name; BadGroupError
        for settings that can't work, before anything is created; StreamNotFoundError; UnsupportedError.
        """
        rules.check_new_partitions(partitions)
        wanted = ElasticRecord(
            partitions=partitions,
            filters=None if filters is None else tuple(filters),
            max_messages=max_messages,
            max_bytes=max_bytes,
        )
        wanted.check()
        rules.check_subjects(wanted.subjects)
        rules.check_limits(max_messages, max_bytes)
        self._jetstream.require("a partitioned group")
        if not all(one.wildcards for one in wanted.partitioning_filters()):
            self._jetstream.require("a partition by the whole subject")
        source = await self._source()
        await self._prepare_bucket()
        queue = await self._queue()
        if (there := await self._find()) is not None:
            self._require_current(there)
            self._compare(wanted, there)
            if queue is None:
                await self._make_work_queue(there, source)
            elif not self._is_queue_of(there, queue):
                raise self._taken_error()
            return there
        await self._make_work_queue(wanted, source)
        try:
            return await self._store(wanted)
        except (GroupExistsError, BadGroupError):  # another client created a different group meanwhile
            if queue is None:
                await delete_stream(self._jetstream, self.consumed_stream)
            raise

    async def upgrade(self, *, force: bool = False) -> list[str]:
        """Convert a record of pcgroups 0.1; return its key, or nothing if it is of a later version.

        The work queue is the same in both versions. Members of 0.1 end when they see the new record; the consumers that
        they leave are replaced by the members that join. A record that changes meanwhile is converted as it is then.
        GroupExistsError if another stream has the work queue's name. Other errors: see `GroupAdmin.upgrade`.
        """
        self._jetstream.require("a partitioned group")
        record = await self.read()
        if not record.outdated:
            return []
        queue = await self._queue()
        if queue is not None and not self._is_queue_of(record, queue):
            raise self._taken_error()
        if not force:
            self._refuse_active(await self.members())

        found: list[ElasticRecord] = []

        def convert(value: bytes | None) -> bytes:
            if value is None:
                raise self._missing_error()
            found.append(self._decode_record(value))
            return found[-1].encode() if found[-1].outdated else value

        await self._bucket.modify(self.key, convert)
        return [f"record {self.key}"] if found[-1].outdated else []

    async def delete(self) -> list[str]:
        """Delete the group and its work queue with the messages in it; its members end.

        It also deletes the remains of an interrupted creation or deletion. It deletes a stream only if that is this
        group's work queue, and returns any other stream of that name.
        """
        queue = await self._queue()
        ours = queue is not None and self._is_work_queue(queue)
        if not await self._delete_record() and not ours:
            raise self._missing_error()
        if ours:
            await delete_stream(self._jetstream, self.consumed_stream)
        return [f"stream {self.consumed_stream}"] if queue is not None and not ours else []

    async def add(self, *members: str) -> Change:
        """Add members to the end of the list. BadGroupError if partitions are mapped, or without a name.

        BadNameError for a name that no consumer can have. There may be more members than partitions: the last by name
        wait without a partition until others are dropped (`Change.after.without_partition`).
        """
        names = [check_member(name) for name in dict.fromkeys(members)]
        if not names:
            raise BadGroupError("no member was named: name at least one")
        return await self.change(
            lambda record: replace(
                self._require_unmapped(record),
                members=(*record.members, *(name for name in names if name not in record.members)),
            )
        )

    async def drop(self, *members: str) -> Change:
        """Remove members from the list. BadGroupError if partitions are mapped, or without a name.

        The members that get a dropped member's partitions also get its unacknowledged messages.
        """
        if not members:
            raise BadGroupError("no member was named: name at least one")
        return await self.change(
            lambda record: replace(
                self._require_unmapped(record), members=tuple(name for name in record.members if name not in members)
            )
        )

    async def set_mappings(self, mappings: Mapping[str, Sequence[int]]) -> Change:
        """Assign partitions to members explicitly, instead of balancing them. Every partition needs exactly one member.

        BadGroupError, BadNameError: then nothing is written.
        """
        if not mappings:
            raise BadGroupError("no member was mapped: name at least one, with its partitions")
        wanted = tuple(MemberMapping(check_member(name), tuple(mappings[name])) for name in mappings)
        parts = {one.member: set(one.partitions or ()) for one in wanted}

        def apply_mappings(record: ElasticRecord) -> ElasticRecord:
            if {one.member: set(one.partitions or ()) for one in record.mappings} == parts:
                return record  # the same mapping, perhaps in another order
            return replace(record, members=(), mappings=wanted)

        return await self.change(apply_mappings)

    async def delete_mappings(self) -> Change:
        """Delete all mappings: the group is then idle until members are added."""
        return await self.change(lambda record: replace(record, mappings=()))

    async def change(self, edit: Callable[[ElasticRecord], ElasticRecord]) -> Change:
        """Store the record that `edit` returns, if it differs; only members and mappings may change.

        `edit` is called again with a newer record whenever another client was faster, so it must have no side effects.
        """
        last: list[Change] = []

        def encode_change(value: bytes | None) -> bytes:
            if value is None:
                raise self._missing_error()
            before = self.decode_current(value)
            after = edit(before)
            after.check()
            last[:] = [Change(before, after)]
            return value if after == before else after.encode()

        try:
            await self._bucket.modify(self.key, encode_change)
        except BucketNotFoundError as error:
            raise self._missing_error() from error
        return last[0]

    async def count_buffered(self) -> int | None:
        """Return the number of unacknowledged messages in the work queue; None if it is missing."""
        try:
            return (await stream_state(self._jetstream, self.consumed_stream))["messages"]
        except StreamNotFoundError:
            return None

    def _require_unmapped(self, record: ElasticRecord) -> ElasticRecord:
        if record.mappings:
            raise BadGroupError(
                f"{self} has its partitions mapped: change the mappings, or delete them first"
                f" (natty group elastic delete-mapping {self.stream} {self.name})"
            )
        return record

    async def _make_work_queue(self, record: ElasticRecord, source: Mapping[str, Any]) -> None:
        """Create the stream that the group reads. An existing one with exactly these settings is accepted."""
        config = work_queue_settings(self.stream, self.name, record, source)
        await refuse_lossy_sources(self._jetstream, config)
        try:
            await self._jetstream.request(f"STREAM.CREATE.{self.consumed_stream}", config)
        except JetStreamError as error:
            if error.err_code == STREAM_EXISTS:
                raise self._taken_error() from error
            if error.err_code in _BAD_TRANSFORM:
                raise BadGroupError(f"{self}: the server does not accept these filters: {error}") from error
            raise

    def _taken_error(self) -> GroupExistsError:
        return GroupExistsError(
            f"{self} needs a work queue named {self.consumed_stream}, and there is another stream of that name: choose"
            " another name for the group; if it is left of an earlier one, delete that first"
            f" (natty group elastic rm {self.stream} {self.name})"
        )

    async def _queue(self) -> dict[str, Any] | None:
        try:
            return dict((await self._jetstream.request(f"STREAM.INFO.{self.consumed_stream}"))["config"])
        except StreamNotFoundError:
            return None

    def _is_queue_of(self, record: ElasticRecord, config: Mapping[str, Any]) -> bool:
        """Whether a stream is the work queue of a group with this record."""
        return self._is_work_queue(config) and config["sources"][0]["subject_transforms"] == transforms(record)

    def _is_work_queue(self, config: Mapping[str, Any]) -> bool:
        """Whether a stream is a group's work queue: it copies this stream's messages and partitions them."""
        sources = config.get("sources") or []
        return (
            config["retention"] == "workqueue"
            and not config.get("subjects")
            and [one["name"] for one in sources] == [self.stream]
            and rules.partitions_all(sources[0].get("subject_transforms") or [])
        )
