"""Detection of messages in a work queue that the server forgot to deliver, before handlers begin and while they run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from natty.consuming.dead_letters import DeadLetters
from natty.errors import AuthorizationError, DomainUnreachableError, JetStreamNotEnabledError, NattyError
from natty.jetstream import JetStream
from natty.streams.stranded import LOOK_EVERY, Outcome, QueueMender, first_below_floor

logger = logging.getLogger("natty.groups")

PROVEN_AFTER = 2.0  # seconds between two looks before handlers begin: a cluster deletes acknowledged messages later


class Forgotten:
    """Looks for messages below the ack floor of a member's consumer that this instance does not hold.

    Only the pinned instance looks, since no other instance holds messages then. The server must deliver forgotten
    messages before later messages of their keys: `found` becomes True, and the member finishes its running handlers and
    creates its consumer again. A work queue then delivers all unacknowledged messages in order. In streams of other
    kinds forgotten messages can't be detected.
    """

    def __init__(
        self,
        jetstream: JetStream,
        place: tuple[str, str],
        letters: tuple[DeadLetters | None, str],
        holds: Callable[[], set[int]],
        changed: Callable[[], None],
    ) -> None:
        self.found = False
        self._jetstream, self._holds, self._changed = jetstream, holds, changed
        self._stream, self._consumer = place
        self._blind = False  # it is not a work queue, or we have no permission to look
        self._since: float | None = None  # time of the previous look, if it found something
        box, group = letters
        self._mender = QueueMender(
            jetstream, *place, box.find_letter if box is not None else None, named=group, remake=self._remake
        )

    def __repr__(self) -> str:
        return f"Forgotten({self._stream}/{self._consumer}, {'found' if self.found else 'nothing known'})"

    async def allows_begin(self, info: Mapping[str, Any]) -> bool:
        """Return whether handlers may begin: no forgotten message can be seen, or nothing can be done about it.

        `info` is CONSUMER.INFO; all messages that it counts as unacknowledged are held here. NattyError: unknown.
        """
        now = await self._look(info)
        if now and self._since is not None and time.monotonic() < self._since + PROVEN_AFTER:
            return False
        self._since = time.monotonic() if now else None
        return await self._mender.judge(now) in (Outcome.NOTHING, Outcome.REFUSED)

    async def watch(self, begun: Callable[[], bool]) -> None:
        """Look every `LOOK_EVERY` seconds while handlers run, until cancelled."""
        while not self._blind:
            await asyncio.sleep(LOOK_EVERY)
            if begun() and not self.found:
                try:
                    info = await self._jetstream.request(f"CONSUMER.INFO.{self._stream}.{self._consumer}")
                    await self._mender.judge(await self._look(info))
                except NattyError as error:
                    logger.debug("%r: retrying later: %s", self, error)

    async def _look(self, info: Mapping[str, Any]) -> list[int]:
        if self._blind:
            return []
        try:
            stream = await self._jetstream.request(f"STREAM.INFO.{self._stream}")
            self._blind = stream["config"]["retention"] != "workqueue"
            if self._blind or stream["state"]["first_seq"] > info["ack_floor"]["stream_seq"]:
                return []
            found = await first_below_floor(self._jetstream, self._stream, info, self._holds())
        except (AuthorizationError, JetStreamNotEnabledError, DomainUnreachableError) as error:
            logger.info("natty does not look for forgotten messages of %s: %s", self._stream, error)
            self._blind = True
            return []
        held = self._holds()
        return [sequence for sequence in found if sequence not in held]

    def _remake(self) -> None:
        self.found = True
        self._changed()
