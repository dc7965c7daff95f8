"""Objects one after the other, the next ones of which are on their way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable

from capture.archive.manifest import Stored
from capture.stores.contract import Store

AHEAD_OBJECTS = 8
AHEAD_BYTES = 16 << 20
"""Of objects that are fetched before they are asked for, but for one, however large it is."""


async def fetched(store: Store, objects: Iterable[Stored]) -> AsyncGenerator[tuple[Stored, bytes], None]:
    """Yield each object with its bytes, in this order; what fetching one raises when its turn comes."""
    waiting = deque(objects)
    coming: deque[tuple[Stored, asyncio.Task[bytes]]] = deque()
    try:
        while waiting or coming:
            while waiting and (not coming or _room(coming, waiting[0])):
                one = waiting.popleft()
                coming.append((one, asyncio.create_task(store.get(one.path))))
            one, fetching = coming[0]
            await fetching
            coming.popleft()
            yield one, fetching.result()
    finally:
        for _, fetching in coming:
            fetching.cancel()
        await asyncio.gather(*(fetching for _, fetching in coming), return_exceptions=True)


def _room(coming: Iterable[tuple[Stored, object]], following: Stored) -> bool:
    sizes = [one.bytes for one, _ in coming]
    return len(sizes) < AHEAD_OBJECTS and sum(sizes) + following.bytes <= AHEAD_BYTES
