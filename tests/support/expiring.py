"""Keys that expire."""

import asyncio
import contextlib

from patient import PATIENCE

from natty import KeyNotFoundError


async def expired(bucket, key, within=PATIENCE):
    """Wait until a key has expired."""
    async with asyncio.timeout(within):
        with contextlib.suppress(KeyNotFoundError):
            while True:
                await bucket.get(key)
                await asyncio.sleep(0.05)
