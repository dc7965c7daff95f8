"""The page to read: how a message gets from the stream into the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Coroutine
from functools import partial
from typing import Any

from capture.ingest.block import Groups, OpenBlocks, SealedBlock
from capture.ingest.record import Decoder, Records, V
from capture.ingest.slots import SLOTS, Slots
from capture.ingest.spill import CHUNK_BYTES
from natty.wire.message import Batch


async def capture(
    source: AsyncIterable[Batch],
    decode: Decoder[V],
    partition: Callable[[Records[V]], Groups],
    blocks: OpenBlocks,
    commit: Callable[[SealedBlock], Coroutine[Any, Any, object]],
    *,
    clock: Callable[[], float] = time.monotonic,
    slots: int = SLOTS,
) -> None:
    """Store every message of `source`, then acknowledge it.

    The end of `source` is the graceful stop: what is open is sealed, and every commit is waited for. A quiet source
    yields an empty batch now and then; blocks come of age by that. A commit that fails ends it with its error, and a
    cancellation ends it at once: what is not acknowledged by then will be delivered again.
    """
    room = Slots(blocks, slots)

    async def store(sealed: list[SealedBlock]) -> None:
        if blocks.spill and blocks.spill.unwritten_bytes >= (1 if sealed else CHUNK_BYTES):
            await asyncio.to_thread(blocks.spill.write)
        while sealed:
            block = sealed.pop(0)
            await room.acquire(block)  # a slow store holds back reading, never memory
            task = commits.create_task(commit(block))  # durable, visible, then acknowledged: in one function
            task.add_done_callback(partial(room.release, block))

    try:
        async with asyncio.TaskGroup() as commits:
            async for batch in source:
                records = decode(batch)  # what can't be decoded is kept raw under its own key
                await store(blocks.add(partition(records), now=clock()))
                await store(blocks.due(clock()))
            await store(blocks.seal_all())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # the first to fail; the other commits were cancelled with it
