"""Merges the small files of pipelines' tables after their runs, in commits of their own that change no row."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from capture.archive.manifest import Stored
from capture.errors import CaptureError, FencedError, PipelineError
from capture.maintenance.compaction_plan import new_name
from capture.pipelines import packing
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Deriver, PackedFiles, Packing
from capture.pipelines.document import PipelineTable, run_folder
from capture.pipelines.run import QUARANTINE
from capture.stores.own_store import opening_url
from natty import LeadershipLostError, NattyError
from natty.config.units import write_count

REST, LONGEST_REST = 300.0, 86_400.0
"""Seconds until small files that could not be merged are tried again; they double."""
LIMIT, PATIENCE = 30.0, 15.0
"""Seconds after which Spark's driver begins no further file of a merge, and for which its answer is awaited then."""

NOT_PACKED = {"action": "pipeline_not_packed"}

log = logging.getLogger("capture.pipelines")


@dataclass
class PipelinePacker:
    """Merges small files of the tables to which a pipeline only adds rows: its own, if it appends, and its quarantine.

    It lasts as long as a term: it knows which files can't be merged, and what failed lately. A failure is logged, and
    changes nothing: the files stay as they are. `counts` has for each pipeline the `bytes_packed`.
    """

    leading: PipelineLeading
    deriver: Deriver
    node: str = ""
    clock: Callable[[], float] = time.time
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set, repr=False)  # tables in which nothing is left to merge
    _stay: set[str] = field(default_factory=set, repr=False)  # paths of files that can't be merged
    _failed: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict, repr=False)
    """How often the merge of a table's unit failed, and until when it rests; of a whole table for the unit ""."""

    async def pack(
        self, pipeline: Pipeline, files: Sequence[Stored], grown: Collection[str], *, seconds: float = 0.0
    ) -> None:
        """Merge what is due after a run of this pipeline, whose table has these files now.

        `grown` are the tables that got files. One merge follows the other while any is due, for so many `seconds`.
        FencedError or LeadershipLostError if the term is over; nothing else is raised, since the run is committed.
        """
        ends = self.leading.elapsed() + seconds
        tables: dict[str, Sequence[Stored] | None] = {pipeline.name: files} if pipeline.mode == "append" else {}
        tables[QUARANTINE.format(name=pipeline.name)] = None
        for name, known in tables.items():
            if (name in self._settled and name not in grown) or self._rests(name):
                continue
            try:
                await self._pack_table(pipeline, name, known, ends)
            except (FencedError, LeadershipLostError):
                raise
            except (CaptureError, NattyError) as error:
                self._rest(name)
                log.warning("%s; they stay for now", error, extra=NOT_PACKED)
            except Exception:  # a fault of ours
                self._rest(name)
                log.exception("small files of %s could not be merged; they stay for now", name, extra=NOT_PACKED)
            else:
                self._failed.pop((name, ""), None)

    async def _pack_table(self, pipeline: Pipeline, name: str, known: Sequence[Stored] | None, ends: float) -> None:
        leading, now = self.leading, self.clock()
        self._settled.discard(name)
        with leading.run(now):
            table = (await leading.read(now)).tables.get(name)
            files = known if known is not None else await leading.list_files(name) if table else []
            while table:
                resting = [unit for of, unit in self._failed if of == name and self._rests(name, unit)]
                packs = packing.plan((one for one in files if one.path not in self._stay), table.rebuilt, resting)
                if not packs:
                    self._settled.add(name)
                    return
                packed = await self._merge(pipeline, name, table, packs)
                self._note(name, packed)
                change = packing.conclude(name, packs, packed.units, node=self.node, now=self.clock())
                if change.gone:
                    count, size = len(change.gone), sum(one.bytes for one in change.gone)
                    runs = (await leading.read(now)).tables[pipeline.name].with_packed(count, size)
                    await leading.commit(replace(change, tables={pipeline.name: runs}), self.clock())
                    self.counts.setdefault(pipeline.name, Counter())["bytes_packed"] += size
                    log.debug("%s merged %s of %s", self.node, write_count(count, "small file"), name)
                    gone = {one.path for one in change.gone}
                    files = [*(one for one in files if one.path not in gone), *change.came]
                if leading.elapsed() >= ends or not any(
                    one.gone or one.large or one.refused or one.failed for one in packed.units
                ):
                    return

    async def _merge(
        self, pipeline: Pipeline, name: str, table: PipelineTable, packs: list[list[Stored]]
    ) -> PackedFiles:
        leading = self.leading
        asked = Packing(
            table=name,
            store=opening_url(leading.store),
            folder=run_folder(pipeline.name, leading.pointer.token, new_name()),
            columns=table.columns,
            partition=table.partition,
            packs=packs,
            seconds=LIMIT,
        )
        try:
            async with asyncio.timeout(LIMIT + PATIENCE):
                packed = await self.deriver.pack(asked)
        except TimeoutError:
            raise PipelineError(
                f"the merge of small files of {name} had no result after {LIMIT + PATIENCE:g} s"
            ) from None
        leading.pointer.check()
        return packed

    def _note(self, name: str, packed: PackedFiles) -> None:
        """Remember which files stay, and which units rest."""
        for one in packed.units:
            self._stay.update(one.large, one.refused)
            for why in one.refused.values():
                log.warning("%s: this file of %s is not merged with others", why, name, extra=NOT_PACKED)
            if one.failed:
                self._rest(name, one.unit)
                text = "small files of %s can't be merged, in %s: %s; they stay for now"
                log.warning(text, name, one.unit, one.failed, extra=NOT_PACKED)
            else:
                self._failed.pop((name, one.unit), None)

    def _rest(self, name: str, unit: str = "") -> None:
        failures, _ = self._failed.get((name, unit), (0, 0.0))
        until = self.leading.elapsed() + min(LONGEST_REST, REST * 2 ** min(failures, 20))
        self._failed[name, unit] = failures + 1, until

    def _rests(self, name: str, unit: str = "") -> bool:
        _, until = self._failed.get((name, unit), (0, 0.0))
        return (name, unit) in self._failed and self.leading.elapsed() < until
