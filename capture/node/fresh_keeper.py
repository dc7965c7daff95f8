"""Keeps the table fresh while a node leads the compaction, and wakes the compaction when many blocks are shown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

from capture.archive.iceberg_state import FreshState
from capture.errors import NotSweptError
from capture.maintenance.fresh import NOTHING, FreshReport, FreshTable
from capture.maintenance.schedule import AT_ONCE, Schedule
from capture.maintenance.table_commits import TableLeading
from natty import LeadershipLostError

FRESH = "fresh table"
"""The name of the task in messages about failures."""
BETWEEN = 30.0
"""Seconds between two compactions that begin because many blocks are shown, at the least."""
OFF = 5.0
"""Seconds after which `[table] fresh` is read again while it is 0."""
LOOKS = 10
"""How often, at the least, a manifest is looked for in the time between two commits: a commit follows a sweep soon."""

log = logging.getLogger("capture.fresh")

Attempt = Callable[[str, Awaitable[FreshReport]], Awaitable[FreshReport | None]]


class FreshKeeper:
    """Shows new blocks every few seconds, in a task of its own.

    `every` returns the setting (seconds; 0: off), `lead` what the leader works with. `attempt` runs a step, and returns
    None if it failed; an error that it raises is put into `failing`. A step that has nothing to do reads the manifest's
    head and no more, and is repeated soon; after all others, `every` seconds pass from one beginning to the next.
    """

    def __init__(
        self,
        table: FreshTable,
        lead: Callable[[], Awaitable[TableLeading]],
        *,
        every: Callable[[], float],
        attempt: Attempt,
        failing: MutableMapping[str, str],
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._lead = lead
        self._every = every
        self._attempt = attempt
        self._failing = failing
        self._clock = clock
        self._crowded = asyncio.Event()
        self._woken = -BETWEEN
        self._keeps = False

    def __repr__(self) -> str:
        return f"FreshKeeper({self._table!r})"

    @property
    def state(self) -> FreshState | None:
        """The state of the fresh table; None if it is off, or outside of `scope`."""
        return self._table.state if self._keeps and self._every() else None

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Keep the table fresh while the body runs."""
        task = asyncio.create_task(self._keep())
        self._keeps = True
        try:
            yield
        finally:
            self._keeps = False
            task.cancel()
            await asyncio.wait([task])

    async def pause(self, seconds: float) -> None:
        """Wait so long, or until many blocks are shown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._crowded.wait()

    def schedule(self, slots: Schedule) -> Schedule:
        """Return these slots, or one that begins now if many blocks are shown."""
        crowded = self._crowded.is_set()
        self._crowded.clear()
        return AT_ONCE if crowded else slots

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            every, began = self._every(), loop.time()
            if not every:
                await asyncio.sleep(OFF)
                continue
            pause = every
            try:
                done = await self._attempt(FRESH, self._step())
            except NotSweptError:
                pass
            except LeadershipLostError:  # the compaction notices it, too
                return
            except Exception as error:
                log.exception("the %s failed", FRESH, extra={"action": "duty_failed"})
                self._failing[FRESH] = f"the {FRESH} failed: {type(error).__name__}: {error}"
            else:
                self._wake(done)
                pause = every / LOOKS if done is NOTHING else every
            await asyncio.sleep(max(every / LOOKS, began + pause - loop.time()))

    async def _step(self) -> FreshReport:
        return await self._table.step(await self._lead(), self._clock())

    def _wake(self, done: FreshReport | None) -> None:
        now = asyncio.get_running_loop().time()
        if done and done.is_crowded and now - self._woken >= BETWEEN:
            self._woken = now
            self._crowded.set()
