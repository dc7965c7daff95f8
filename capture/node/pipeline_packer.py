"""Merges the small files of pipelines' tables after their runs, in commits of their own that change no row."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from capture.errors import CaptureError, FencedError, PipelineError
from capture.maintenance.compaction_plan import new_name
from capture.pipelines import packing
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Deriver, Packing
from capture.pipelines.document import PipelineTable, run_folder
from capture.pipelines.run import QUARANTINE
from capture.stores.own_store import opening_url
from natty import LeadershipLostError, NattyError
from natty.config.units import write_count

REST = 300.0
"""Seconds until small files that could not be merged are tried again."""

log = logging.getLogger("capture.pipelines")


@dataclass
class PipelinePacker:
    """Merges small files of the tables to which a pipeline only adds rows: its own, if it appends, and its quarantine.

    A failure is logged, and changes nothing: the files stay as they are.
    """

    leading: PipelineLeading
    deriver: Deriver
    node: str = ""
    clock: Callable[[], float] = time.time
    _done: dict[str, int] = field(default_factory=dict, repr=False)  # runs of a table after which nothing was to merge
    _rests_until: dict[str, float] = field(default_factory=dict, repr=False)

    async def pack(self, pipeline: Pipeline) -> int:
        """Merge what is due after a run of this pipeline; return the bytes of the small files.

        FencedError or LeadershipLostError if the term is over.
        """
        names = [*([pipeline.name] if pipeline.mode == "append" else []), QUARANTINE.format(name=pipeline.name)]
        merged, now = 0, self.clock()
        if now < self._rests_until.get(pipeline.name, now):
            return merged
        try:
            for name in names:
                table = (await self.leading.read(now)).tables.get(name)
                if table and table.number != self._done.get(name):
                    merged += await self._pack_table(pipeline, name, table)
        except (FencedError, LeadershipLostError):
            raise
        except (CaptureError, NattyError) as error:
            self._rests_until[pipeline.name] = now + REST
            log.warning("%s; they stay for now", error, extra={"action": "pipeline_not_packed"})
        return merged

    async def _pack_table(self, pipeline: Pipeline, name: str, table: PipelineTable) -> int:
        leading, now = self.leading, self.clock()
        with leading.run(now):
            packs = packing.plan(await leading.list_files(name), table.rebuilt)
            if not packs:
                self._done[name] = table.number
                return 0
            asked = Packing(
                table=name,
                store=opening_url(leading.store),
                folder=run_folder(pipeline.name, leading.pointer.token, new_name()),
                columns=table.columns,
                partition=table.partition,
                packs=packs,
            )
            try:
                async with asyncio.timeout(pipeline.time_limit):
                    written = await self.deriver.pack(asked)
            except TimeoutError:
                limit = f"its time_limit of {pipeline.time_limit:g} s"
                raise PipelineError(f"the merge of small files of {name} took longer than {limit}") from None
            leading.pointer.check()
            change = packing.conclude(name, packs, written.came, node=self.node, now=self.clock())
            files, size = len(change.gone), sum(one.bytes for one in change.gone)
            runs = (await leading.read(now)).tables[pipeline.name].with_packed(files, size)
            await leading.commit(replace(change, tables={pipeline.name: runs}), self.clock())
        log.debug("%s merged %s of %s", self.node, write_count(files, "small file"), name)
        return size
