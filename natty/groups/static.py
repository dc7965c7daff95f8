"""Static groups: members read the stream itself, whose subjects begin with a partition. The group never changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from natty.errors import BadGroupError, GroupExistsError, NattyError
from natty.groups import rules
from natty.groups.admin import GroupAdmin
from natty.groups.partitions import MemberMapping
from natty.groups.records import StaticRecord
from natty.groups.settings import PRIORITY_GROUP, check_member, is_outdated, static_consumer
from natty.streams import delete_consumer


class StaticAdmin(GroupAdmin[StaticRecord]):
    """A static group."""

    kind = "static"

    @property
    def consumed_stream(self) -> str:
        """The stream itself."""
        return self.stream

    def consumer_name(self, member: str) -> str:
        """Return the name of a member's durable consumer."""
        return static_consumer(self.name, member)

    def decode(self, value: bytes) -> StaticRecord:
        """Read a record. BadGroupError."""
        return StaticRecord.decode(value)

    async def create(
        self,
        partitions: int,
        filters: Iterable[str] = (),
        *,
        members: Sequence[str] = (),
        mappings: Mapping[str, Sequence[int]] | None = None,
    ) -> StaticRecord:
        """Create the group if it does not exist, and return its record. The members create the consumers.

        Give either `members`, over which the partitions are balanced, or `mappings` of each member to its partitions.
        `filters` are subjects without the partition; none: the whole stream. Mapped members can't have filters: Go
        reads whole partitions there, and more than one filter can't work.
        GroupExistsError if it exists with other settings, or if consumers with its members' names exist: the members
        would continue at their positions. BadGroupError for settings that can't work; StreamNotFoundError;
        UnsupportedError.
        """
        mapped = tuple(MemberMapping(name, tuple(given)) for name, given in (mappings or {}).items())
        wanted = StaticRecord(partitions=partitions, filters=tuple(filters), members=tuple(members), mappings=mapped)
        wanted.check()
        rules.check_subjects(wanted.filters)
        rules.check_listing(partitions, wanted.members)
        if mapped and wanted.filters:
            raise BadGroupError("mapped members read their partitions whole, whatever the filters: leave them out")
        for name in wanted.member_names:
            check_member(name)
        self._jetstream.require("a partitioned group")
        rules.check_partitioned(self.stream, await self._source(), partitions)
        await self._prepare_bucket()
        if (there := await self._find()) is not None:
            self._compare(wanted, there)
            return there
        found = await asyncio.gather(*(self._consumer(name) for name in wanted.member_names))
        if taken := [one["name"] for one in found if one is not None]:
            raise GroupExistsError(
                f"{self} would use consumers that exist already and are not its own: {', '.join(taken)}. Choose another"
                " name for the group; if they are left of an earlier one, delete them first"
            )
        return await self._store(wanted)

    async def upgrade(self, *, force: bool = False) -> list[str]:
        """Convert the members' consumers of pcgroups 0.1; return their names. They keep their positions.

        It leaves the record as it is: both versions read it, and a member of 0.1 that is still there deletes its
        consumer, and with it its position, when the record changes. Errors: see `GroupAdmin.upgrade`.
        """
        self._jetstream.require("a partitioned group")
        outdated = [one for one in await self.members() if one.outdated]
        if not force:
            self._refuse_active(outdated)
        return [
            f"consumer {self.consumer_name(one.name)}" for one in outdated if await self._convert_consumer(one.name)
        ]

    async def _convert_consumer(self, member: str) -> bool:
        """Give a consumer of pcgroups 0.1 the priority group of later versions; return whether there was one."""
        found = await self._consumer(member)
        if found is None or not is_outdated(found["config"], member):
            return False
        config = found["config"] | {"priority_groups": [PRIORITY_GROUP]}
        body = {"stream_name": self.stream, "config": config, "action": "update"}
        await self._jetstream.request(f"CONSUMER.CREATE.{self.stream}.{self.consumer_name(member)}", body)
        return True

    async def delete(self) -> list[str]:
        """Delete the group and its members' consumers, and no others; its members end.

        It keeps and returns a consumer of such a name that no member created. NattyError names the consumers that could
        not be deleted; the group itself is then deleted.
        """
        try:
            names = (await self.read()).member_names
        except BadGroupError:  # a record that can't be read can be deleted; its members are unknown
            names = ()
        await self._delete_record()
        results = await asyncio.gather(*(self._delete_consumer(name) for name in names), return_exceptions=True)
        failed = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, NattyError):
                failed.append(f"{self.consumer_name(name)} ({result})")
            elif isinstance(result, BaseException):
                raise result
        if failed:
            raise NattyError(
                f"{self} is deleted, and these consumers of stream {self.stream} are left: {'; '.join(failed)}."
                " Delete them by hand"
            )
        return [f"consumer {self.consumer_name(name)}" for name, result in zip(names, results, strict=True) if result]

    async def _delete_consumer(self, member: str) -> bool:
        """Delete a member's consumer; return True if one of that name exists that no member created."""
        found = await self._consumer(member)
        if found is None:
            return False
        config = found["config"]
        if config.get("priority_groups") != [PRIORITY_GROUP] and not is_outdated(config, member):
            return True
        await delete_consumer(self._jetstream, self.stream, self.consumer_name(member))
        return False
