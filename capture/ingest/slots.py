from __future__ import annotations

import asyncio
import logging

from capture.ingest.block import OPEN_SHARE, PENDING, OpenBlocks, SealedBlock

SLOTS = 4  # blocks that are stored at once
WRITING = 7  # times its content that a writer needs beside a block, measured: 1 (raw) to 7 (csv)
CALM = 0.5  # of max_pending: what has to be fallen below before the next warning

log = logging.getLogger("capture.slots")


class Slots:
    """The places where sealed blocks are stored: as many at once as there are slots, as long as memory allows for them.

    One half of `max_open_bytes` is for open blocks and for those that wait here, the other half for those that are
    being stored; one that is larger is stored alone. As nothing is read while a block waits, both together are bounded
    however slow the store is. Of the disk of the buffers the same holds.
    """

    def __init__(self, blocks: OpenBlocks, slots: int = SLOTS) -> None:
        self._blocks = blocks
        self._slots = slots
        self._taken = 0
        self._memory = 0
        self._messages = 0
        self._told = False
        self._released = asyncio.Event()

    def __repr__(self) -> str:
        return f"Slots({self._taken} of {self._slots} taken, {self._messages} messages, {self._memory} bytes of memory)"

    async def acquire(self, block: SealedBlock) -> None:
        """Return when the block may be stored."""
        self._watch(block)
        while not self._has_room(_memory(block)):
            self._released.clear()
            await self._released.wait()
        self._taken += 1
        self._memory += _memory(block)
        self._messages += block.count

    def release(self, block: SealedBlock, _: object = None) -> None:
        """Take note that the block is stored, or that this has failed."""
        self._taken -= 1
        self._memory -= _memory(block)
        self._messages -= block.count
        self._released.set()

    def _has_room(self, memory: int) -> bool:
        if not self._taken:
            return True
        spill, limit = self._blocks.spill, (1 - OPEN_SHARE) * self._blocks.limits.max_open_bytes
        crowded = spill is not None and spill.disk_bytes > OPEN_SHARE * spill.max_bytes
        return self._taken < self._slots and self._memory + memory <= limit and not crowded

    def _watch(self, block: SealedBlock) -> None:
        """Warn, once an episode, when so many messages wait for their ack that the server may stop delivering."""
        unacknowledged = self._blocks.pending + self._messages + block.count
        limit = self._blocks.limits.max_pending
        if unacknowledged < CALM * limit:
            self._told = False
        elif not self._told and (unacknowledged > limit or block.reason == PENDING):
            self._told = True
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
