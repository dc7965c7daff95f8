"""Reads ahead: what is needed next is fetched while the caller works, in order and within limits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Generic, Protocol, Self, TypeVar

from capture.stores.contract import Store
from natty.wire.background import cancel_all

AHEAD_OBJECTS = 32
AHEAD_BYTES = 16 << 20
"""The limits of objects that are fetched and not yet taken; one larger object is fetched all the same."""


class Sized(Protocol):
    """An object of a store, and its size."""

    @property
    def path(self) -> str:
        """Where it is in the store."""
        ...

    @property
    def bytes(self) -> int:
        """Its size."""
        ...


T = TypeVar("T")
Result = TypeVar("Result")
AnyObject = TypeVar("AnyObject", bound=Sized)


class Ahead(Generic[T, Result]):
    """Things in their order, and what `fetch` returns for each; those that follow are fetched in advance.

    At most `most` are fetched and not yet taken, and `most_bytes` of them by `size`, but `least` of any size. Errors of
    `fetch`, and of `things`, are raised when it is their turn.

    Iterate it for pairs of a thing and its result. Or enter it and use the methods: the exit cancels the fetches in
    flight, closes `things`, and hands results that nobody took to `discard`.
    """

    def __init__(
        self,
        things: Iterable[T] | AsyncGenerator[T, None],
        fetch: Callable[[T], Awaitable[Result]],
        *,
        most: int,
        most_bytes: int = 0,
        size: Callable[[T], int] = lambda _: 0,
        least: int = 1,
        discard: Callable[[Result], object] = lambda _: None,
    ) -> None:
        self._things = things if isinstance(things, AsyncGenerator) else _in_turn(things)
        self._fetch, self._size, self._discard = fetch, size, discard
        self._most, self._most_bytes, self._least = most, most_bytes, least
        self._next: T | None = None
        self._failed: Exception | None = None
        self._coming: deque[tuple[T, asyncio.Future[Result]]] = deque()
        self._bytes = 0  # of those that are coming

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop([fetching for _, fetching in self._coming])
        await self._things.aclose()

    async def __aiter__(self) -> AsyncGenerator[tuple[T, Result], None]:
        """Yield each thing with its result. Raises what `fetch` and `things` raise."""
        async with self:
            while (one := await self.first()) is not None:
                yield one, await self.take()

    async def first(self) -> T | None:
        """Start fetches as far as the limits allow, and return the next thing; None after the last one."""
        while len(self._coming) < self._most and (one := await self._peek()) is not None:
            size = self._size(one)
            if len(self._coming) >= self._least and self._bytes + size > self._most_bytes:
                break
            self._coming.append((one, asyncio.ensure_future(self._fetch(one))))
            self._bytes += size
            self._next = None
        if self._failed and not self._coming:
            raise self._failed
        return self._coming[0][0] if self._coming else None

    async def take(self) -> Result:
        """Return the result of the thing that `first` returned. Raises what `fetch` raises."""
        fetching = self._coming[0][1]
        if not fetching.done():
            await asyncio.wait([fetching])
        return self._pop().result()

    async def skip_to(self, wanted: Callable[[T], bool]) -> None:
        """Leave out what comes before the first wanted thing; its fetches are cancelled, or never begin."""
        passed: list[asyncio.Future[Result]] = []
        while self._coming and not wanted(self._coming[0][0]):
            passed.append(self._pop())
        await self._drop(passed)
        while not self._coming and (one := await self._peek()) is not None and not wanted(one):
            self._next = None

    def _pop(self) -> asyncio.Future[Result]:
        one, fetching = self._coming.popleft()
        self._bytes -= self._size(one)
        return fetching

    async def _peek(self) -> T | None:
        if self._next is None and self._failed is None:
            try:
                self._next = await anext(self._things, None)
            except Exception as error:
                self._failed = error
        return self._next

    async def _drop(self, fetches: list[asyncio.Future[Result]]) -> None:
        await cancel_all(fetches)
        for one in fetches:
            if not one.cancelled() and one.exception() is None:
                self._discard(one.result())


async def _in_turn(things: Iterable[T]) -> AsyncGenerator[T, None]:
    for one in things:
        yield one


def read_ahead(store: Store, objects: Iterable[AnyObject] | AsyncGenerator[AnyObject, None]) -> Ahead[AnyObject, bytes]:
    """Return the objects with their bytes, AHEAD_OBJECTS and AHEAD_BYTES ahead."""
    return Ahead(
        objects,
        lambda one: store.get(one.path),
        most=AHEAD_OBJECTS,
        most_bytes=AHEAD_BYTES,
        size=lambda one: one.bytes,
    )
