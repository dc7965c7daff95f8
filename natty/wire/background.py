"""Work in the background that is started again when it fails, many calls, a few at a time or ahead, limited waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, Self, TypeVar

AGAIN_AFTER = 1.0  # seconds before the second try; doubled with every further one
LONGEST_PAUSE = 60.0
AT_ONCE = 100  # requests to a server: more would wait for one another until they time out

T = TypeVar("T")
Result = TypeVar("Result")

log = logging.getLogger("natty.background")


async def keep_up(
    what: str,
    work: Callable[[], Awaitable[None]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Call `work` until it returns or this is cancelled. An error is logged, and `work` is called again.

    The pause before that doubles from AGAIN_AFTER to LONGEST_PAUSE seconds. Work that ran longer than this begins with
    the shortest pause again. `what` names the work in the log.

    If this is cancelled during a pause, `work` is not called again: its clean-up belongs to the code that cancels.
    """
    pause = AGAIN_AFTER
    while True:
        began = clock()
        try:
            return await work()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancellation(error):
                raise
            if clock() - began > LONGEST_PAUSE:
                pause = AGAIN_AFTER
            log.exception("%s failed and restarts in %g s", what, pause, extra={"action": "background_failed"})
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_cancellation(error: BaseException) -> bool:
    """Return whether the current task is to end. A CancelledError may also be that of a future which it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > 0)


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, for at most these seconds (None: without a limit). Return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # not wait_for: before Python 3.12 it may swallow a cancellation
            await event.wait()
    return event.is_set()


async def map_concurrently(
    things: Iterable[T], call: Callable[[T], Awaitable[Result]], *, at_once: int = AT_ONCE
) -> list[Result]:
    """Return what `call` returns for each thing, in their order; `at_once` calls run at a time.

    An error ends its own turn; the other turns handle the rest. The error is raised when all turns have ended.
    """
    waiting, results = enumerate(things), dict[int, Result]()

    async def take_turns(place: int, one: T) -> None:
        results[place] = await call(one)
        for place, one in waiting:
            results[place] = await call(one)

    first = list(islice(waiting, at_once))  # a turn is a task: few things need few
    ended = await asyncio.gather(*(take_turns(*one) for one in first), return_exceptions=True)
    for error in filter(None, ended):
        raise error
    return [results[place] for place in sorted(results)]


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait for their ends. Their results and errors are ignored."""
    tasks = list(tasks)
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Ahead(Generic[T, Result]):
    """Things in their order, and what `fetch` returns for each; those that follow are fetched in advance.

    At most `most` are fetched and not yet taken, and `most_bytes` of them by `size`, but `least` of any size. Errors of
    `fetch`, and of `things`, are raised when it is their turn.

    Iterate it for pairs of a thing and its result. Or enter it and use the methods: the exit cancels the fetches in
    flight, closes `things`, and hands results that were not taken to `discard`.
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
