"""Finds messages that have left the stream: in the archive, where they were stored meanwhile, or nowhere."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

from capture.archive.encryption import Keys
from capture.archive.index.tree import Where
from capture.archive.manifest import Stored
from capture.archive.sequences import MAXIMUM, Sequences
from capture.config.consumers import Position, consumer_states
from capture.config.settings import CaptureConfig
from capture.errors import NotStoredError
from capture.ingest.source import stream_info
from capture.reading.live import check_same
from capture.reading.merge import Look
from capture.reading.shares import Selection, Share, narrow, shares
from capture.stores import Store
from natty import Natty

PENDING_WITHIN = 60.0
"""Seconds until a message that was delivered to capture, and has left the stream, must be in the archive."""
LOOK_AGAIN = 0.2  # seconds


@dataclass(frozen=True, kw_only=True)
class CapturedStream:
    """A stream, and where its messages are: in the archive, whose objects `look` lists, and in the server.

    `created` is the creation time of the captured stream, in the server's own text; "" if that is not known.
    """

    store: Store
    look: Look
    natty: Natty
    config: CaptureConfig  # names the consumers
    created: str = ""
    keys: Keys | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.config.stream

    async def info(self, least: int = 0) -> dict[str, Any]:
        """Return what the stream's leader says about it; `least` as for `led_info`.

        StreamNotFoundError; CaptureError if it is another stream.
        """
        info = await stream_info(self.natty, self.stream, created=self.created, least=least)
        if self.created:
            check_same(self.stream, self.created, info)
        return info


@dataclass(frozen=True)
class Found:
    """Where sequences are that the stream did not return: `plan` reads them from these objects of the archive.

    `missing` are in neither place. Of these, `gone` are before the stream's first sequence, `first`.
    """

    plan: list[Share]
    missing: Sequences
    gone: Sequences
    first: int


class Search:
    """Searches the archive for messages that the stream does not return."""

    def __init__(self, captured: CapturedStream, settled: int = 0) -> None:
        self.captured = captured
        self._delivered: deque[tuple[float, int]] = (
            deque()
        )  # up to which sequence messages were delivered to capture, and when
        self._stored = settled  # up to which sequence messages were delivered long enough ago
        self._deleted = ""  # the last object that was deleted before it was read

    def __repr__(self) -> str:
        return f"Search({self.captured.stream})"

    @property
    def settled(self) -> int:
        """Up to which sequence messages are not about to be stored: for another search, for the same stream."""
        return self._stored

    async def settle(self) -> None:
        """Take what is acknowledged now as stored. To be called before the state of the stream is read.

        A message that the stream holds after that, and that is not in the archive then, is not one that capture has
        received and is about to store: only a purge makes a consumer skip messages, and it removes them.
        """
        if states := await consumer_states(self.captured.natty, self.captured.config):
            self._stored = max(self._stored, Position.of(states).floor)

    async def look(self, first: int = 1, last: int = MAXIMUM) -> list[Stored]:
        """Return the archive's objects that may hold these sequences.

        NotStoredError if the archive still names the object that `note_deleted` recorded.
        """
        objects = await self.captured.look(Where(sequences=(first, last)))
        if self._deleted in {one.path for one in objects}:
            raise NotStoredError(
                f"there is no {self._deleted} in {self.captured.store.url}, and the archive still names it"
            )
        return objects

    def note_deleted(self, path: str) -> None:
        """Note that an object was deleted before it was read: another one must have its messages."""
        self._deleted = path

    async def find(self, holes: Sequences) -> Found:
        """Return where these sequences are. They are at least one, and the stream was read before.

        A message that was purged or expired, and that was delivered to capture, may be stored soon: wait for it.
        """
        while True:
            first = (await self.captured.info())["state"]["first_seq"]
            doubtful = await self._find_doubtful()
            objects = await self.look(holes.first, holes.last)
            plan = narrow(shares(objects, _span(holes)), holes)
            missing = holes - Sequences.union_of(share.given for share in plan)
            gone = missing.within(holes.first, first - 1)
            if not gone or gone.isdisjoint(doubtful):
                return Found(plan, missing, gone, first)
            await asyncio.sleep(LOOK_AGAIN)

    async def _find_doubtful(self) -> Sequences:
        """Return the sequences that were delivered to running nodes lately, and that they may be about to store."""
        now = asyncio.get_running_loop().time()
        given, furthest = await self._read_delivered()
        if not self._delivered or given > self._delivered[-1][1]:
            self._delivered.append((now, given))
        while self._delivered and self._delivered[0][0] <= now - PENDING_WITHIN:
            self._stored = max(self._stored, self._delivered.popleft()[1])
        return Sequences.from_range(self._stored + 1, furthest)

    async def _read_delivered(self) -> tuple[int, int]:
        """Return up to which sequence all, and up to which any, messages were delivered to running nodes.

        Without a consumer, they may have read all that the stream has.
        """
        if self.captured.config.is_direct:
            last = int((await self.captured.info())["state"]["last_seq"])
            return last, last
        states = await consumer_states(self.captured.natty, self.captured.config)
        at_work = [one for one in states if one["num_waiting"] or one["num_ack_pending"]]
        if not at_work:
            return 0, 0
        return Position.of(at_work).delivered, max(int(one["delivered"]["stream_seq"]) for one in at_work)


def _span(holes: Sequences) -> Selection:
    return Selection(start_sequence=holes.first, end_sequence=holes.last)
