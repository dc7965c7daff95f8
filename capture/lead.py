"""What the elected node does: sweep, plan, compact, commit. All of it ends with the term."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from capture.compact import Policy, compact
from capture.config import CaptureConfig
from capture.errors import CaptureError, Fenced
from capture.head import TermHead
from capture.schedule import due
from capture.spark import SparkDriver
from capture.stores import Store
from capture.sweep import sweep
from natty import LeadershipLost, NattyError, Term

log = logging.getLogger(__name__)


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
    """The leader's work on one archive."""

    store: Store
    config: CaptureConfig
    node: str
    clock: Callable[[], float] = time.time
    spark_log: Path | None = None

    async def lead(self, term: Term) -> None:
        """Sweep and compact for as long as the term lasts; LeadershipLost when it ends.

        Spark runs in a child process and is killed before this returns: no work outlives the term. What fails for any
        other reason is logged and tried again in the next round; capture goes on meanwhile.
        """
        head = TermHead(term)
        compacted: float | None = None
        async with SparkDriver(self.config.spark.options(), log=self.spark_log) as engine:
            while True:
                term.check()
                await self._attempt("sweep", self._sweep(head))
                if due(compacted, self.clock(), self.config.compaction.every):
                    compacted = self.clock()
                    term.check()
                    await self._attempt("compaction", self._compact(head, engine))
                await asyncio.sleep(self.config.sweep.every)

    async def _attempt(self, what: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Fenced as error:
            raise LeadershipLost(str(error)) from error
        except LeadershipLost:
            raise
        except (CaptureError, NattyError) as error:
            log.error("the %s failed: %s", what, error, extra={"action": "duty_failed"})

    async def _sweep(self, head: TermHead) -> None:
        report = await sweep(self.store, head, now=self.clock(), grace=self.config.sweep.grace, node=self.node)
        await self.store.remove_leftovers(self.config.sweep.grace, self.clock())
        if report.adopted:
            log.info("%s swept: %d blocks adopted", self.node, report.adopted, extra={"action": "swept"})
        for problem in (*report.unreadable, *(f"{path} is named by an entry and missing" for path in report.dangling)):
            log.error("the sweep left this alone, look at it: %s", problem, extra={"action": "sweep_problem"})

    async def _compact(self, head: TermHead, engine: SparkDriver) -> None:
        done = await compact(self.store, head, engine, policy(self.config), now=self.clock(), node=self.node)
        if done.outputs:
            log.info("%s compacted %d files into %d", self.node, done.inputs, done.outputs)
