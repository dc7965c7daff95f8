"""Many questions, a few at a time: more wait for one another until they time out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import TypeVar

AT_ONCE = 100

T = TypeVar("T")
Answer = TypeVar("Answer")


async def answers(
    things: Iterable[T], ask: Callable[[T], Awaitable[Answer]], *, at_once: int = AT_ONCE
) -> list[Answer]:
    """Return the answer about each thing, in their order. The first error ends it."""
    waiting, found = iter(things), []
    while some := list(islice(waiting, at_once)):
        found += await asyncio.gather(*map(ask, some))
    return found
