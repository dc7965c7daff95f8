"""A leader of the compaction that compacts all the while, merging in the test's own process."""

import asyncio
import contextlib
import time

from patient import PATIENCE

import capture
from capture.archive.heads import COMPACTION, SWEEP, TermHead
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.table_commits import TableLeading
from capture.stores import open_store
from capture.testing import ArrowEngine

GRACE = 3.0  # seconds: what is compacted is deleted while it is read


async def compacting(natty, config, done):
    """Compact all the while, as the elected leader; `done` takes what each run replaced."""
    store, reader = open_store(config.store), SWEEP.reader(natty, config.name)

    async def work(term):
        head, engine, policy = TermHead(term, COMPACTION), ArrowEngine(), Policy(min_files=2, max_wait=0.5)
        while True:
            with contextlib.suppress(capture.CaptureError):  # the sweep has not made a manifest yet
                report = await compact(TableLeading(store, head, reader, grace=GRACE), engine, policy, now=time.time())
                done.append(report.inputs)
            await asyncio.sleep(0.2)

    await natty.election(COMPACTION.election(config.name), lease=PATIENCE).run(work)
