"""What the elected nodes do, each office's leader its own: one sweeps, one compacts. All of it ends with the term."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from capture.compact import Engine, Policy, compact
from capture.config import CaptureConfig
from capture.errors import CaptureError, Fenced, NotSwept
from capture.head import COMPACTION, SWEEP, TermHead
from capture.schedule import next_run
from capture.spark import SparkDriver
from capture.stores import Store
from capture.sweep import sweep
from natty import LeadershipLost, Natty, NattyError, Term

log = logging.getLogger(__name__)

SWEPT_WITHIN = 1.0  # seconds between two looks whether the sweep's leader has made a manifest


def policy(config: CaptureConfig) -> Policy:
    """Return the compaction's rules."""
    wanted = config.compaction
    return Policy(
        target_bytes=wanted.target_bytes,
        min_files=wanted.min_files,
        max_wait=wanted.max_wait,
        max_groups=wanted.max_groups,
    )


@dataclass(frozen=True)
class Duty:
    """The leaders' work on one archive. What fails is logged and tried again in the next round; capture goes on."""

    natty: Natty
    store: Store
    config: CaptureConfig
    node: str
    clock: Callable[[], float] = time.time
    spark_log: Path | None = None

    async def sweep(self, term: Term) -> None:
        """Sweep for as long as the term lasts; LeadershipLost when it ends."""
        head = TermHead(term, SWEEP)
        while True:
            term.check()
            await self._attempt("sweep", self._sweep(head))
            await asyncio.sleep(self.config.sweep.every)

    async def compact(self, term: Term) -> None:
        """Compact in every slot for as long as the term lasts; LeadershipLost when it ends.

        Spark runs under the term: no process of it outlives the deadline, and none is left when this returns.
        """
        head = TermHead(term, COMPACTION)
        options = self.config.spark.options()
        async with SparkDriver(options, log=self.spark_log, run=term.run_process) as engine:
            while True:
                term.check()
                try:
                    await self._attempt("compaction", self._compact(head, engine))
                except NotSwept:
                    await asyncio.sleep(SWEPT_WITHIN)
                    continue
                now = self.clock()
                await asyncio.sleep(next_run(now, self.config.compaction.every) - now)

    async def _attempt(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Fenced as error:
            raise LeadershipLost(str(error)) from error
        except (LeadershipLost, NotSwept):
            raise
        except (CaptureError, NattyError) as error:
            log.error("the %s failed: %s", what, error, extra={"action": "duty_failed"})

    async def _sweep(self, head: TermHead) -> None:
        grace = self.config.sweep.grace
        table_head = COMPACTION.reader(self.natty, self.config.name)
        report = await sweep(self.store, head, table_head, now=self.clock(), grace=grace, node=self.node)
        await self.store.remove_leftovers(grace, self.clock())
        if report.adopted:
            log.info("%s swept: %d blocks adopted", self.node, report.adopted, extra={"action": "swept"})
        for problem in (*report.unreadable, *(f"{path} is named by an entry and missing" for path in report.dangling)):
            log.error("the sweep left this alone, look at it: %s", problem, extra={"action": "sweep_problem"})

    async def _compact(self, head: TermHead, engine: Engine) -> None:
        done = await compact(
            self.store,
            head,
            SWEEP.reader(self.natty, self.config.name),
            engine,
            policy(self.config),
            now=self.clock(),
            grace=self.config.sweep.grace,
            node=self.node,
        )
        if done.outputs:
            log.info("%s compacted %d files into %d", self.node, done.inputs, done.outputs)
