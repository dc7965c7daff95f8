from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextvars import copy_context

from natty.consuming.lanes import Lanes, Turn

logger = logging.getLogger("natty.consume")

SLICE = 0.005  # seconds that a worker runs on end before the event loop has its turn


class Workers:
    """Up to `concurrency` tasks that take lots from the lanes and handle them, one lot after the other.

    A task lives while there is something to take, so that a handler that never waits costs no task of its own. Context
    variables that a handler sets don't reach the next one: its worker is then replaced.
    `handle` settles what it is given and raises nothing; what it raises nevertheless goes to `on_fault`.
    """

    def __init__(
        self,
        lanes: Lanes,
        handle: Callable[[list[Turn]], Awaitable[None]],
        concurrency: int,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._lanes, self._handle, self._concurrency, self._on_fault = lanes, handle, concurrency, on_fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[object, list[Turn]] = {}  # by task
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._cancellations = _cancellations()
        self._soon: asyncio.Handle | None = None  # the next look for something to take
        self._due: asyncio.TimerHandle | None = None  # the look when a lot that is not full is due
        self._stopping = False

    def __repr__(self) -> str:
        return f"Workers({len(self._tasks)} of {self._concurrency}, {len(self._running)} running)"

    def __iter__(self) -> Iterator[Turn]:
        """Yield what is being handled."""
        for turns in self._running.values():
            yield from turns

    def wake(self) -> None:
        """Start a worker if something can be taken; it wakes the next one."""
        self._soon = None
        if self._stopping or len(self._tasks) >= self._concurrency:
            return
        due = self._lanes.due_in(self._loop.time())
        if due == 0.0:
            task = self._loop.create_task(self._work(), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        elif due is not None and self._due is None:
            self._due = self._loop.call_later(due, self._look)

    def _look(self) -> None:
        self._due = None
        self.wake()

    async def _work(self) -> None:
        lanes, clock, clean = self._lanes, self._loop.time, self._context
        task = asyncio.current_task()
        now = clock()
        slice_end = now + SLICE
        while not self._stopping and (turns := lanes.take(now)):
            if self._soon is None and len(self._tasks) < self._concurrency:
                self._soon = self._loop.call_soon(self.wake)
            self._running[task] = turns
            try:
                await self._handle(turns)
            finally:
                del self._running[task]
            if copy_context() != clean:
                return
            now = clock()
            if now >= slice_end:
                await asyncio.sleep(0)
                now = clock()
                slice_end = now + SLICE

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._on_fault(fault)
        self.wake()

    async def finish(self, timeout: float) -> None:
        """Take nothing more; return when what is being handled is done, cancelled after `timeout` seconds.

        It is cancelled at once if the caller is cancelled meanwhile, or has been more than once since the beginning.
        """
        self._stopping = True
        if self._due is not None:
            self._due.cancel()
        if not self._tasks:
            return
        if _cancellations() > self._cancellations + 1:
            timeout = 0.0
        try:
            await asyncio.wait(self._tasks, timeout=timeout)
        finally:
            late = [task for task in self._tasks if not task.done()]
            if late:
                logger.warning("%d handlers did not finish within %g s: cancelled", len(late), timeout)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _cancellations() -> int:
    """Return how often the current task has been cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
