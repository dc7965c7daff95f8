"""Runs a pipeline once: from what is new for it to the commit, or to the record of a failure."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from capture.archive.manifest import Stored
from capture.errors import CaptureError, FencedError, PipelineError, SparkError, StoreError
from capture.maintenance.compaction_plan import new_name
from capture.node.pipeline_packer import PipelinePacker
from capture.node.pipeline_requests import Request
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Deriver
from capture.pipelines.document import STREAM, PipelineTable, Run, run_folder
from capture.pipelines.run import QUARANTINE, Gathered, Method, choose_method, conclude, fail, make_derivation
from capture.stores.own_store import opening_url
from natty import LeadershipLostError, NattyError
from natty.config.units import write_count

PACK_LEAST = 2.0, 1.0
"""Seconds for which small files are merged after a run, and after a batch, at the least."""

Gather = Callable[[Method, PipelineTable, bool], Awaitable[Gathered]]
"""Returns what a run reads of what is new, or of everything if the last argument is true."""

log = logging.getLogger("capture.pipelines")


class Troubles:
    """What does not work at the moment: `failing` has a sentence for each, by its name."""

    def __init__(self, failing: dict[str, str]) -> None:
        self.failing = failing

    def __repr__(self) -> str:
        return f"Troubles({', '.join(self.failing)})"

    def note(self, what: str, failure: str, *, fault: Exception | None = None) -> None:
        """Keep a failure, and log it once while it lasts; with the traceback of a fault of ours."""
        if self.failing.get(what) != failure:
            log.error("%s", failure, exc_info=fault, extra={"action": "pipeline_failed"})
        self.failing[what] = failure

    def clear(self, what: str) -> None:
        """Forget a failure: it works again."""
        self.failing.pop(what, None)

    @contextlib.asynccontextmanager
    async def attempt(self, what: str, *, clears: bool = True) -> AsyncIterator[None]:
        """Run the body; a failure of it is noted, and does not leave this. LeadershipLostError if the term is over.

        If there is none, what was noted before is forgotten, if it `clears` that.
        """
        try:
            yield
        except FencedError as error:
            raise LeadershipLostError(str(error)) from error
        except LeadershipLostError:
            raise
        except (CaptureError, NattyError) as error:
            self.note(what, str(error))
        except Exception as error:  # a fault of ours: other pipelines run all the same
            self.note(what, f"{what}: {type(error).__name__}: {error}", fault=error)
        else:
            if clears:
                self.clear(what)


@dataclass(frozen=True, kw_only=True)
class _Ran:
    """A committed run: what it read, the files of the table now, and the tables that got files.

    After it small files may be merged for `pack_seconds`.
    """

    gathered: Gathered
    files: Sequence[Stored]
    grown: Collection[str]
    pack_seconds: float


@dataclass
class PipelineRunner:
    """Runs pipelines in a term, several at once, but one pipeline once at a time.

    `counts` has for each pipeline what its runs add up to: see `PipelineKeeper`.
    """

    leading: PipelineLeading
    deriver: Deriver
    node: str = ""
    clock: Callable[[], float] = time.time
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    packer: PipelinePacker = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.packer = PipelinePacker(self.leading, self.deriver, self.node, self.clock, self.counts)

    async def run(
        self,
        pipeline: Pipeline,
        others: Mapping[str, Pipeline],
        gather: Gather,
        asked: Request | None = None,
        why: Literal["new", "stream"] = "new",
    ) -> Gathered | None:
        """Run a pipeline once, if there is anything new; return what it read. `others` are all pipelines by name.

        A failure is committed as the record of a run, and raised again, except that Spark has ended during a batch of a
        stream. FencedError; CaptureError; NattyError.
        """
        began, leading = self.clock(), self.leading
        known = (await leading.read(began)).tables.get(pipeline.name)
        table = known or PipelineTable(definition=pipeline.definition)
        anew = asked is not None and asked.what == "rerun"
        if asked:
            table = msgspec.structs.replace(table, asked=asked.id)
        if asked and anew:
            table = msgspec.structs.replace(table, since_ns=asked.since_ns)
        run = Run(
            number=0,
            began=began,
            ended=began,
            token=leading.pointer.token,
            leader=self.node,
            why=why if not asked else "rerun" if anew else "asked",
            asked=asked.id if asked else "",
            batches=int(why == STREAM),
        )
        try:
            with leading.run(began):
                ran = await self._compute(pipeline, table, run, choose_method(pipeline, others), gather)
        except (FencedError, LeadershipLostError):
            raise
        except Exception as error:
            if why == STREAM and isinstance(error, SparkError):
                raise
            if not isinstance(error, CaptureError | NattyError):  # a fault of ours: other pipelines run all the same
                log.exception("the run of pipeline %s failed", pipeline.name, extra={"action": "pipeline_failed"})
            failure = _explain(pipeline.name, error)
            run = msgspec.structs.replace(run, ended=self.clock(), error=failure)
            self._count(pipeline.name, run)
            stays = anew and isinstance(error, SparkError | StoreError | NattyError)  # a rerun, until it is carried out
            answered = known.asked if stays and known else "" if stays else table.asked
            plan = getattr(error, "plan", "")
            await self._record(pipeline.name, msgspec.structs.replace(table, asked=answered), run, plan)
            raise PipelineError(failure) from error
        if ran:
            await self.packer.pack(pipeline, ran.files, ran.grown, seconds=ran.pack_seconds)
        elif asked:
            await leading.commit(Change(tables={pipeline.name: table}), self.clock())
        return ran.gathered if ran else None

    async def _compute(
        self, pipeline: Pipeline, table: PipelineTable, run: Run, method: Method, gather: Gather
    ) -> _Ran | None:
        leading, anew = self.leading, run.why == "rerun"
        if table.number and table.definition != pipeline.definition and not anew:
            raise PipelineError(explain_change(pipeline.name))
        gathered = await gather(method, table, anew)
        if not gathered.is_new:
            return None
        files = await leading.list_files(pipeline.name)
        folder = run_folder(pipeline.name, leading.pointer.token, new_name())
        asked = make_derivation(
            pipeline, method, table, gathered, files, store=opening_url(leading.store), folder=folder
        )
        try:
            async with asyncio.timeout(pipeline.time_limit):
                derived = await self.deriver.derive(asked)
        except TimeoutError:
            raise PipelineError(
                f"pipeline {pipeline.name}: its run took longer than its time_limit of {pipeline.time_limit:g} s, and"
                " was ended"
            ) from None
        leading.pointer.check()
        why = "rerun" if gathered.anew and table.number else run.why
        ended = self.clock()
        seconds = max(0.0, ended - run.began) if run.batches else 0.0
        run = msgspec.structs.replace(run, ended=ended, why=why, seconds=seconds)
        quarantine = (await leading.read(self.clock())).tables.get(QUARANTINE.format(name=pipeline.name))
        change = conclude(pipeline, table, gathered, derived, files, run, quarantine)
        try:
            await leading.commit(change, self.clock())
        except (CaptureError, NattyError) as error:
            if isinstance(error, FencedError) or not await self._is_committed(pipeline.name, table.number + 1):
                raise
            log.warning("the run of pipeline %s is committed, and then: %s", pipeline.name, error)
        figures = {"rows_in": derived.rows_in, "rows_out": derived.rows_out, "bytes_in": gathered.bytes}
        written = sum(one.bytes for one in derived.came)
        self._count(pipeline.name, msgspec.structs.replace(run, **figures, bytes_out=written))
        log.log(
            logging.DEBUG if why == STREAM else logging.INFO,
            "%s ran pipeline %s: %s in, %s out",
            self.node,
            pipeline.name,
            write_count(derived.rows_in, "row"),
            write_count(derived.rows_out, "row"),
            extra={"action": "pipeline_ran"},
        )
        gone = {one.path for one in change.gone}
        came = [one for one in change.came if one.stream == pipeline.name]
        least, least_of_batch = PACK_LEAST
        return _Ran(
            gathered=gathered,
            files=[*(one for one in files if one.path not in gone), *came],
            grown={one.stream for one in change.came},
            pack_seconds=max(least_of_batch, pipeline.times().every / 2) if run.batches else max(least, run.took),
        )

    def _count(self, name: str, run: Run) -> None:
        figures = {one: getattr(run, one) for one in ("rows_in", "rows_out", "bytes_in", "bytes_out")}
        took = round(1000 * run.took)
        self.counts.setdefault(name, Counter()).update(runs=1, failed=bool(run.error), milliseconds=took, **figures)

    async def _is_committed(self, name: str, number: int) -> bool:
        """Return whether a pipeline's table has this number, although its commit has failed: perhaps after it held."""
        try:
            return (await self.leading.read(self.clock())).tables[name].number == number
        except FencedError:
            raise
        except (CaptureError, NattyError, KeyError):
            return False

    async def _record(self, name: str, table: PipelineTable, run: Run, plan: str) -> None:
        """Commit the record of a failed run of this table, if the store can be written.

        What is committed by now stays as it is: if that is this run, after all, there is nothing to record.
        """
        try:
            known = (await self.leading.read(self.clock())).tables.get(name)
            if known is None or known.number == table.number:
                before = msgspec.structs.replace(known or table, asked=table.asked)
                await self.leading.commit(fail(before, name, run, run.error, plan), self.clock())
        except FencedError:
            raise
        except (CaptureError, NattyError) as error:
            log.warning("the failed run is not recorded: %s", error, extra={"action": "pipeline_failed"})


def _explain(name: str, error: Exception) -> str:
    """Return the reason of a failed run, which names the pipeline."""
    said = str(error) if isinstance(error, CaptureError | NattyError) else f"{type(error).__name__}: {error}"
    return said if f"pipeline {name}" in said else f"pipeline {name}: {said}"


def explain_change(name: str) -> str:
    """Return a sentence about a pipeline whose settings are not those that its table was made by."""
    return (
        f"pipeline {name} was changed, and its table is as it was before: `capture pipeline check` says what differs,"
        f" and `capture pipeline rerun {name}` makes it again"
    )
