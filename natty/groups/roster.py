"""Registrations of live members: each registers under a key of a bucket, and renews it before it expires."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, suppress

from natty.elections import clock
from natty.errors import BucketNotFoundError, KeyNotFoundError, NattyError, RevisionConflictError
from natty.groups.stint import DRIFT
from natty.jetstream import JetStream
from natty.kv import Bucket, Entry, Gone, PictureComplete, create_bucket

logger = logging.getLogger("natty.groups")

MEMBERS_BUCKET = "natty-group-members"
TTL = 5.0  # seconds


class Roster:
    """The registrations below a key, including ours: `prepare`, `register`, then `stay` beside the work, and `leave`.

    `valid_until` is the earliest end of our registration (`elections.clock`): until then all others count us as live.
    """

    def __init__(self, jetstream: JetStream, key: str, name: str, ttl: float) -> None:
        self.ttl = max(1.0, float(round(ttl)))
        self.valid_until = 0.0
        self._jetstream, self._key, self._name = jetstream, key, name
        self._bucket = Bucket(jetstream, MEMBERS_BUCKET)
        self._entry: Entry | None = None

    def __repr__(self) -> str:
        return f"Roster({self._key}.{self._name}, {self.valid_until - clock():.2f} s left)"

    async def prepare(self) -> None:
        """Create the bucket if it is missing. NattyError."""
        await create_bucket(self._jetstream, MEMBERS_BUCKET)

    async def register(self) -> None:
        """Store our registration. NattyError."""
        sent, key = clock(), f"{self._key}.{self._name}"
        revision = await self._bucket.put(key, b"{}", ttl=self.ttl)
        self._entry = Entry(key, b"{}", revision)
        self.valid_until = sent + self.ttl * (1 - DRIFT)

    async def stay(self) -> None:
        """Renew our registration until cancelled; store it again if it expired or was lost with its bucket."""
        while True:
            await asyncio.sleep(self.ttl / 4)
            assert self._entry is not None
            sent = clock()
            try:
                self._entry = await self._bucket.refresh(self._entry, ttl=self.ttl, timeout=self.ttl / 2)
                self.valid_until = sent + self.ttl * (1 - DRIFT)
            except (KeyNotFoundError, RevisionConflictError):
                with suppress(NattyError):
                    await self.register()
            except BucketNotFoundError:
                with suppress(NattyError):
                    await self.prepare()
                    await self.register()
            except NattyError as error:
                logger.warning("%r: could not stay registered: %s", self, error, extra={"action": "registration"})

    async def follow(self, live: set[str], changed: asyncio.Event) -> None:
        """Keep `live` equal to the registered names; set `changed` at each change, once all existing ones are read."""
        complete, reported = False, None
        async with aclosing(self._bucket.watch(f"{self._key}.*").__aiter__()) as events:
            async for event in events:
                if isinstance(event, PictureComplete):
                    complete = True
                else:
                    name = event.key.removeprefix(f"{self._key}.")
                    (live.discard if isinstance(event, Gone) else live.add)(name)
                if complete and live != reported:
                    reported = set(live)
                    changed.set()

    async def add(self, name: str) -> None:
        """Register another member without an expiry."""
        await self._bucket.put(f"{self._key}.{name}", b"{}")

    async def leave(self) -> None:
        """Delete our registration; if that fails, it expires."""
        with suppress(NattyError):
            await self._bucket.delete(f"{self._key}.{self._name}")
