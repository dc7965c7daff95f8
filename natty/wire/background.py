"""Work in the background that never dies unseen: what it raises is logged, and it begins again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

AGAIN_AFTER = 1.0  # seconds before the second try; doubled with every further one
LONGEST_PAUSE = 60.0

log = logging.getLogger("natty.background")


async def keep_up(
    what: str,
    work: Callable[[], Awaitable[None]],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> None:
    """Do the work until it returns, or until cancelled. Whatever it raises is logged, and it is called again.

    The pause before that doubles from AGAIN_AFTER to LONGEST_PAUSE seconds. Work that ran longer than this begins with
    the shortest pause again. `what` names the work in the log.

    Cancelled in such a pause, the work is not called again: what must happen at the end stands with whoever cancels
    this, not in the work.
    """
    pause = AGAIN_AFTER
    while True:
        began = clock()
        try:
            return await work()
        except Exception:
            if clock() - began > LONGEST_PAUSE:
                pause = AGAIN_AFTER
            log.exception("%s failed, and begins again in %g s", what, pause, extra={"action": "background_failed"})
        await sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
