"""The control: `capture` whose leader of the pipelines commits a run's files first, and its progress afterwards."""

import asyncio
import dataclasses

from capture.cli import main
from capture.node import campaign, pipeline_keeper
from capture.pipelines import due
from capture.pipelines.commits import Change, PipelineLeading

BETWEEN = 0.5  # seconds between the two commits

commit = PipelineLeading.commit


async def commit_twice(self, change, now):
    """Commit what a fenced leader commits at once in two steps."""
    if not change.progress:
        return await commit(self, change, now)
    await commit(self, dataclasses.replace(change, progress={}), now)
    await asyncio.sleep(BETWEEN)
    return await commit(self, Change(tables={}, progress=change.progress), now)


if __name__ == "__main__":
    pipeline_keeper.LOOK, due.RETRY, due.LONGEST_RETRY = 0.3, 0.3, 2.0
    campaign.RETRY_DUTY = 0.5
    PipelineLeading.commit = commit_twice
    main()
