"""Automatic membership: each instance registers under a key with a time to live, and an elected one divides partitions.

The elected leader of the group edits the record by compare-and-set when a registration appears, ends or expires. A
member's lease never lasts longer than its registration, so the leader can safely delete the consumer of a dead member.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import aclosing
from types import TracebackType
from typing import Self

from natty.consuming.handler import Handler
from natty.elections import Election, ElectionOptions, Term
from natty.errors import ConnectionClosedError, NattyError
from natty.groups.elastic import ElasticAdmin
from natty.groups.joining import JoinOptions
from natty.groups.member import Membership
from natty.groups.place import Place
from natty.groups.roster import Roster
from natty.groups.shares import AUTOMATIC, plan
from natty.jetstream import JetStream
from natty.kv import Entry
from natty.wire.background import cancel_all, keep_up

logger = logging.getLogger("natty.groups")

TOGETHER = 0.05  # seconds: members that join or leave within them are one change of the record
LEASE = 1.5  # seconds, of the group's leader


class AutoMembership(Membership):
    """An instance of an unnamed member: `async with group.join(handler=handler) as membership`.

    `ttl`, in whole seconds: the others get its partitions if it gives no sign of life for this time. Each automatic
    member is one instance; there are no standbys, since every instance gets partitions.
    """

    def __init__(self, jetstream: JetStream, admin: ElasticAdmin, handler: Handler, ttl: float, options: JoinOptions):
        member = f"{AUTOMATIC}{secrets.token_hex(4)}"
        super().__init__(jetstream, admin, member, handler, options)
        self.election = Election(jetstream, ElectionOptions(name=election_name(admin), lease=LEASE, node_name=member))
        self.alone = True
        self._admin = admin
        self._roster = Roster(jetstream, admin.key, member, ttl)
        self._jobs: list[asyncio.Task[None]] = []
        self.limit, self.longest = lambda: self._roster.valid_until, self._roster.ttl

    async def __aenter__(self) -> Self:
        """Register and join; raises as `Membership.__aenter__`."""
        await self._admin.read()
        await self._roster.prepare()
        await super().__aenter__()
        await self._roster.register()
        jobs = (
            keep_up(f"the registration of {self.member}", self._roster.stay),
            keep_up(f"the campaign of {self.member}", self._campaign),
        )
        self._jobs = [asyncio.create_task(job) for job in jobs]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave: finish running handlers, give up the partitions, and let the leader divide them again."""
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            await self._part()

    async def _reconcile(self) -> None:
        try:
            await super()._reconcile()
        finally:  # before the membership has ended: closing the client waits until the registration is deleted
            await self._part()

    async def _part(self) -> None:
        await cancel_all(self._jobs)
        await self._roster.leave()

    async def _campaign(self) -> None:
        while True:
            try:
                await self.election.run(self._lead)
            except ConnectionClosedError:
                return
            except NattyError as error:
                logger.warning("%r: %s", self, error, extra={"action": "lead"})
                await asyncio.sleep(LEASE)

    async def _lead(self, term: Term) -> None:
        """Divide the partitions whenever a member joins or leaves, or another client changes the record."""
        changed = asyncio.Event()
        live: set[str] = set()
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self._roster.follow(live, changed))
            watching.create_task(self._follow_record_of(changed))
            while True:
                await changed.wait()
                await asyncio.sleep(TOGETHER)
                changed.clear()
                term.check()
                try:
                    await self._divide(live)
                except NattyError as error:
                    logger.warning("the partitions of %s could not be divided: %s", self._admin, error)
                    await asyncio.sleep(LEASE)
                    changed.set()

    async def _follow_record_of(self, changed: asyncio.Event) -> None:
        async with aclosing(self._bucket.watch(self._key, updates_only=True).__aiter__()) as events:
            async for event in events:
                if isinstance(event, Entry):
                    changed.set()

    async def _divide(self, live: set[str]) -> None:
        """Give the partitions to the registered members, and delete the consumers of automatic members that left."""
        listed = await self._admin.read()
        named = {name for name in listed.members if not name.startswith(AUTOMATIC)}
        for name in named - live:  # so that they stay members when the partitions become mapped
            await self._roster.add(name)
        change = await self._admin.change(lambda record: plan(record, live | named))
        gone = [name for name in change.dropped if name.startswith(AUTOMATIC)]
        for name in gone:
            await Place(self._jetstream, self._admin, name).delete()
        if change.before != change.after:
            text = "%s: %d members share the partitions (%d joined, %d left)"
            facts = (self._admin, len(live | named), len(change.added), len(change.dropped))
            logger.info(text, *facts, extra={"action": "divided"})


def election_name(admin: ElasticAdmin) -> str:
    """Return the name of the election of an automatic group's leader."""
    return f"group.{admin.key}"
