"""Work in the background: started again when it fails, cancelled; many calls, a few at a time; limited waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

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

    async def take_turns() -> None:
        for place, one in waiting:
            results[place] = await call(one)

    ended = await asyncio.gather(*(take_turns() for _ in range(at_once)), return_exceptions=True)
    for error in filter(None, ended):
        raise error
    return [results[place] for place in sorted(results)]


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel these tasks and wait for their ends. Their results and errors are ignored."""
    tasks = list(tasks)
    for one in tasks:
        one.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
