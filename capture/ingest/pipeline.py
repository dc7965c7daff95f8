"""How a message gets from the stream into the store. Read this file first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Callable

from capture.ingest.block import Groups, OpenBlocks, SealedBlock
from capture.ingest.in_flight import Commit, InFlight
from capture.ingest.record import Decoder, Records, V
from capture.ingest.spill import CHUNK_BYTES
from natty.wire.message import Batch


async def capture(
    source: AsyncIterable[Batch],
    decode: Decoder[V],
    partition: Callable[[Records[V]], Groups],
    blocks: OpenBlocks,
    commit: Commit,
    *,
    in_flight: InFlight | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Store every message of `source`, then acknowledge it.

    The end of `source` is the graceful stop: all open blocks are sealed, and every commit is waited for. A quiet source
    must yield an empty batch now and then, so that blocks are sealed when they reach `max_age`. A commit that fails
    ends the pipeline with its error, unless `in_flight` says otherwise. A cancellation ends it at once: the server
    delivers again what was not acknowledged by then.
    """
    in_flight = in_flight or InFlight(blocks)

    async def store(sealed: list[SealedBlock]) -> None:
        if blocks.spill and blocks.spill.unwritten_bytes >= (1 if sealed else CHUNK_BYTES):
            await asyncio.to_thread(blocks.spill.write)
        while sealed:  # a slow store holds back reading, and does not fill memory
            await in_flight.start(sealed.pop(0), commit, commits)

    try:
        async with asyncio.TaskGroup() as commits:
            async for batch in source:
                records = decode(batch)  # what can't be decoded is kept raw under its own key
                await store(blocks.add(partition(records), now=clock()))
                await store(blocks.due(clock()))
            await store(blocks.seal_all())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures  # the first to fail; the other commits were cancelled with it
