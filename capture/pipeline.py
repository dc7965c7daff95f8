"""The page to read: how a message gets from the stream into the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any

from capture.block import Groups, OpenBlocks, SealedBlock
from capture.decoders.contract import Decoder
from capture.record import Records, V
from natty.message import Batch

SLOTS = 4  # commits under way at once


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
    free = asyncio.Semaphore(slots)

    async def store(sealed: list[SealedBlock]) -> None:
        for block in sealed:
            await free.acquire()  # a slow store holds back reading, never memory
            task = commits.create_task(commit(block))  # durable, visible, then acknowledged: in one function
            task.add_done_callback(lambda _: free.release())

    try:
        async with asyncio.TaskGroup() as commits:
            async for batch in source:
                records = decode(batch)  # what can't be decoded is kept raw under its own key
                await store(blocks.add(partition(records), now=clock()))
                await store(blocks.due(clock()))
            await store(blocks.seal_all())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # the first to fail; the other commits were cancelled with it
