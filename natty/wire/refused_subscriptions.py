"""The subscriptions of a connection that the server refuses, and how they come to work again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping

from natty.errors import NattyError, legible
from natty.names import decode
from natty.wire.background import AGAIN_AFTER
from natty.wire.session import Session, Subscription

logger = logging.getLogger("natty.connection")

LONGEST_PAUSE = 10.0  # seconds between two tries of a subscription that the server refuses


class RefusedSubscriptions:
    """The subscriptions that the server refuses now; they are sent again until it accepts them.

    `session` returns the session, if there is one.
    """

    def __init__(
        self, subscriptions: Mapping[bytes, Subscription], session: Callable[[], Session | None], timeout: float
    ) -> None:
        self.ids: set[bytes] = set()
        self._again: set[bytes] = set()  # those that were refused since the last try
        self._subscriptions, self._session, self._timeout = subscriptions, session, timeout

    def __repr__(self) -> str:
        return f"RefusedSubscriptions({len(self.ids)})"

    def add(self, text: str) -> bool:
        """Take what the server does not permit, in its words. Return whether it is about subscriptions of ours."""
        refused = {sid for sid, one in self._subscriptions.items() if f"Subscription to {_quote(one.subject)}" in text}
        self.ids |= refused
        self._again |= refused
        return bool(refused)

    async def subscribe_again(self) -> None:
        """Send refused subscriptions again until the server accepts them. It ignores those that it has."""
        pause = AGAIN_AFTER
        while self.ids:
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)
            if (session := self._session()) is not None:
                with contextlib.suppress(OSError, NattyError):
                    await self._try(session)

    async def _try(self, session: Session) -> None:
        tried = {sid: one for sid, one in self._subscriptions.items() if sid in self.ids}
        self._again.clear()
        for one in tried.values():
            session.subscribe(one.sid, one.subject, one.queue)
        await session.ping(self._timeout)  # refusals come before its answer
        for sid in (tried.keys() & self.ids) - self._again:
            logger.info("the server accepts %r now", tried[sid], extra={"action": "subscribed"})
        self.ids &= self._again


def _quote(subject: bytes) -> str:
    """Return a subject as the server quotes it in its errors."""
    return '"' + legible(decode(subject).replace("\\", r"\\").replace('"', r"\"")) + '"'
