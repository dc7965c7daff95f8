"""Requests about a member's consumer: look, create, delete, unpin."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from natty.errors import ConsumerNotFoundError, JetStreamError, StreamNotFoundError
from natty.groups.admin import GroupAdmin
from natty.groups.instance import Seen
from natty.groups.settings import PRIORITY_GROUP, check_member, elastic_consumer, static_member_consumer
from natty.jetstream import JetStream
from natty.streams import ConsumerConfig

ANSWER_WITHIN = 2.0  # seconds
_OVERLAP = 10100
_EXISTS = 10148


class Place:
    """A member's consumer on the server, which may or may not exist: to look at, create, delete and unpin."""

    def __init__(
        self, jetstream: JetStream, admin: GroupAdmin[Any], member: str, settings: ConsumerConfig | None = None
    ) -> None:
        self.member, self.settings = check_member(member), settings
        self.stream, self.consumer = admin.consumed_stream, admin.consumer_name(member)
        self._admin, self._jetstream = admin, jetstream

    def __repr__(self) -> str:
        return f"Place({self.stream}/{self.consumer})"

    async def look(self) -> dict[str, Any] | None:
        """Return the server's CONSUMER.INFO; None if the consumer does not exist."""
        try:
            return await self._ask("INFO")
        except ConsumerNotFoundError:
            return None

    async def make(self, filters: Sequence[str]) -> bool:
        """Create it, or leave it as it is if another instance was faster.

        Return False if another member's consumer still reads one of these partitions.
        """
        if self._admin.kind == "elastic":
            config = elastic_consumer(self.member, list(filters), self.settings)
        else:
            config = static_member_consumer(self._admin.name, self.member, list(filters), self.settings)
        try:
            await self._ask("CREATE", {"stream_name": self.stream, "config": config, "action": "create"})
        except JetStreamError as error:
            if error.err_code == _OVERLAP:
                return False
            if error.err_code != _EXISTS:
                raise
        return True

    async def delete(self) -> None:
        """Delete it; a missing consumer is not an error."""
        with suppress(ConsumerNotFoundError, StreamNotFoundError):
            await self._ask("DELETE")

    async def unpin(self) -> None:
        """Make the server pin the instance that waits longest. ConsumerNotFoundError."""
        await self._ask("UNPIN", {"group": PRIORITY_GROUP})

    async def _ask(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        subject = f"CONSUMER.{verb}.{self.stream}.{self.consumer}"
        return await self._jetstream.request(subject, body, timeout=ANSWER_WITHIN)


def parse_info(info: dict[str, Any]) -> Seen:
    """Return the facts from a CONSUMER.INFO that decide the next step.

    A consumer with another priority group, such as one of pcgroups 0.1, has no filters here: members can't read it.
    """
    config = info["config"]
    ours = config.get("priority_groups") == [PRIORITY_GROUP]
    group: dict[str, str] = next(iter(info.get("priority_groups") or []), {})
    return Seen(
        info["created"],
        tuple(config.get("filter_subjects") or [config.get("filter_subject", "")]) if ours else (),
        pinned=group.get("pinned_client_id", ""),
        unfinished=info["num_ack_pending"],
        waiting=info["num_waiting"],
    )
