"""The same work on many things, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

AT_ONCE = 16
"""Requests to a store that are under way together: each waits for the network most of its time."""

T = TypeVar("T")


async def each(things: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int = AT_ONCE) -> None:
    """Do the work on each thing, so many at a time, in their order.

    An error ends its own turn, and the others go on with the rest; it is raised when none of them runs any more.
    """
    waiting = iter(things)

    async def some() -> None:
        for one in waiting:
            await work(one)

    results = await asyncio.gather(*(some() for _ in range(at_once)), return_exceptions=True)
    for error in filter(None, results):
        raise error
