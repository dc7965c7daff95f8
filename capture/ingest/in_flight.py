"""The blocks that are being stored: at most as many at once as slots and memory allow."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from capture.errors import StoreError
from capture.ingest.block import OPEN_SHARE, PENDING, OpenBlocks, SealedBlock
from natty.wire.repeated import Repeated

SLOTS = 4  # blocks that are stored at once
WRITING = 7  # memory that a writer needs beside a block, as a multiple of its content; measured: 1 (raw) to 7 (csv)
CALM = 0.5  # of max_pending: below it, the warning about late acknowledgements may be logged again

log = logging.getLogger("capture.slots")
failures = logging.getLogger("capture.commit")

Commit = Callable[[SealedBlock], Coroutine[Any, Any, object]]
"""Stores a block and acknowledges its messages. StoreError if it can't; its messages are then handed back."""


class InFlight:
    """The commits that run at the moment.

    One half of `max_open_bytes` is for open blocks and for those that wait for a slot, the other half is for those that
    are being stored; a block that is larger than that is stored alone. Nothing is read while a block waits, so both
    together are bounded however slow the store is. The disk of the buffers is divided in the same way.

    A commit that fails ends the pipeline. Without `stop_on_failure`, a StoreError is logged and the pipeline continues.
    """

    def __init__(
        self,
        blocks: OpenBlocks,
        slots: int = SLOTS,
        *,
        stop_on_failure: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._blocks = blocks
        self._slots = slots
        self._stop_on_failure = stop_on_failure
        self._clock = clock
        self._started: dict[SealedBlock, float] = {}
        self._released = asyncio.Event()
        self._has_warned = False
        self._repeated = Repeated(failures)

    def __repr__(self) -> str:
        return f"InFlight({len(self._started)} of {self._slots} slots, {self.messages} messages, {self.memory} bytes)"

    @property
    def messages(self) -> int:
        """The number of messages in these blocks."""
        return sum(block.count for block in self._started)

    @property
    def memory(self) -> int:
        """The bytes of memory that these blocks and their writers take, estimated."""
        return sum(map(_memory, self._started))

    @property
    def longest(self) -> float | None:
        """The seconds for which the first of these commits has run; None if none runs."""
        return self._clock() - min(self._started.values()) if self._started else None

    async def start(self, block: SealedBlock, commit: Commit, tasks: asyncio.TaskGroup) -> None:
        """Wait until there is a slot and memory for the block, then start its commit as one of `tasks`."""
        self._warn_if_late(block)
        while not self._has_room(block):
            self._released.clear()
            await self._released.wait()
        self._started[block] = self._clock()
        tasks.create_task(self._run(block, commit)).add_done_callback(lambda _: self._release(block))

    async def _run(self, block: SealedBlock, commit: Commit) -> None:
        try:
            await commit(block)
        except StoreError as error:
            if self._stop_on_failure:
                raise
            state, failed = f"blocks could not be stored ({type(error).__name__})", {"action": "store_failed"}
            self._repeated.error(state, str(error), messages=block.count, extra=failed | {"count": block.count})

    def _release(self, block: SealedBlock) -> None:
        del self._started[block]
        self._released.set()

    def _has_room(self, block: SealedBlock) -> bool:
        if not self._started:
            return True
        spill, limit = self._blocks.spill, (1 - OPEN_SHARE) * self._blocks.limits.max_open_bytes
        disk_is_full = spill is not None and spill.disk_bytes > OPEN_SHARE * spill.max_bytes
        return len(self._started) < self._slots and self.memory + _memory(block) <= limit and not disk_is_full

    def _warn_if_late(self, block: SealedBlock) -> None:
        """Warn, once until it is over, when so many messages wait for their ack that the server may stop delivering."""
        unacknowledged = self._blocks.pending + self.messages + block.count
        limit = self._blocks.limits.max_pending
        if unacknowledged < CALM * limit:
            self._has_warned = False
        elif not self._has_warned and (unacknowledged > limit or block.reason == PENDING):
            self._has_warned = True
            log.warning(
                "%d messages are not acknowledged yet, and max_pending is %d: blocks are sealed before their time, and "
                "the server stops delivering at the consumer's max_ack_pending. Raise both, lower max_age or "
                "max_messages, or use a faster store or more nodes",
                unacknowledged,
                limit,
                extra={"action": "ack_pending", "messages": unacknowledged, "limit": limit},
            )


def _memory(block: SealedBlock) -> int:
    return block.memory + WRITING * block.content_bytes
