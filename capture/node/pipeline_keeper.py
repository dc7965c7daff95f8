"""The task of the pipelines' leader: runs what is due, in the order of the graph, and commits each run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from capture.archive.heads import PIPELINES, TermHead
from capture.archive.iceberg_state import Expiry
from capture.config.pipelines import pipelines_name, pipelines_signer, pipelines_store, read_pipelines
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, FencedError, PipelineError
from capture.maintenance.compaction_plan import new_name
from capture.node.campaign import campaign
from capture.node.exposure import LoadedExposure
from capture.node.pipeline_inputs import PipelineInputs
from capture.node.pipeline_requests import Request, read_requests
from capture.node.user_catalog import CatalogKeeper, UserCatalog
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Deriver
from capture.pipelines.document import FOLDER, Pipelines, PipelineTable, Run, run_folder
from capture.pipelines.run import QUARANTINE, choose_method, conclude, fail, make_derivation, order_by_age
from capture.spark import SparkDriver, unavailable
from capture.stores import Store, open_store
from capture.stores.open import explain_unopenable
from capture.stores.own_store import opening_url
from natty import LeadershipLostError, Natty, NattyError, Term
from natty.config.units import write_count

LOOK, SOON = 5.0, 0.2
"""Seconds between two looks at what is due and what operators ask for: at the most, and at the least."""
RETRY, LONGEST_RETRY = 30.0, 3600.0
"""Seconds after a failed run until the next one; they double with each further failure."""
KEPT_FOR = 3600.0
"""Seconds that a past snapshot of a table stays: each run of an upsert replaces files."""
FAST = 60.0
"""Seconds by which the clock of the last leader may have been ahead; a run that began later does not delay the next."""
KEEPS, REQUESTS = "all pipelines", "requests of pipelines"
"""The names in `failing` of what is not about one pipeline: no pipeline has such a name."""

log = logging.getLogger("capture.pipelines")


@dataclass
class Round:
    """What runs share that begin together: they see the same `inputs`."""

    leading: PipelineLeading
    deriver: Deriver
    pipelines: list[Pipeline]
    inputs: PipelineInputs


@dataclass
class PipelineKeeper:
    """The pipelines of a configuration, which may have several streams: while this node leads them, it runs them.

    `failing` has a sentence for each pipeline that does not run as it should. `counts` has for each pipeline what this
    node's runs add up to: `runs`, `failed` ones among them, `rows_in`, `rows_out`, `bytes_in`, `bytes_out`, and
    `milliseconds`.
    """

    natty: Natty
    config: CaptureConfig
    node: str
    clock: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    failing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # when there was nothing new

    @property
    def election(self) -> str:
        """The name of the election. ConfigError."""
        return PIPELINES.election(pipelines_name(self.config))

    async def stand(self) -> None:
        """Be a candidate for the pipelines' office until cancelled, from the time when there is a pipeline.

        Not if Spark can't run here, or can't open the store: that is logged.
        """
        while not self.config.pipeline:  # noqa: ASYNC110  # a reload may bring one
            await asyncio.sleep(LOOK)
        config = self.config
        store = open_store(pipelines_store(config))
        if reason := explain_unopenable(store.url) or await asyncio.to_thread(unavailable, config.spark.options()):
            text = "%s is not a candidate for the pipelines, a node with Spark has to run for it: %s"
            log.warning(text, self.node, reason, extra={"action": "no_spark"})
            return
        lease = config.compaction.lease
        await campaign(self.natty.election(self.election, lease=lease, node_name=self.node), self.lead)

    async def lead(self, term: Term) -> None:
        """Run what is due until the term ends. LeadershipLostError at its end.

        Spark runs under the term: no process of it outlives the deadline, and none is left when this returns.
        """
        config = self.config
        options = config.spark.options(queries=True)
        spark_log = Path(config.log) / f"spark-{self.node}-pipelines.log" if config.log else None
        driver = SparkDriver(options, log=spark_log, run=term.run_process, key_file=config.key_file)
        store = open_store(pipelines_store(config))
        leading = self.start_term(TermHead(term, PIPELINES, pipelines_signer(config)), store)
        self._looked.clear()
        try:
            async with driver as deriver, self._keep_catalog(leading):
                while True:
                    term.check()
                    await self.run_due(leading, deriver)
                    await asyncio.sleep(self._time_to_next())
        finally:
            self.failing.clear()

    @contextlib.asynccontextmanager
    async def _keep_catalog(self, leading: PipelineLeading) -> AsyncIterator[None]:
        """While the body runs, keep the entries in the user's catalog, if there is one, at the committed tables."""
        config, exposure = self.config, leading.exposure
        if not config.table.catalog.type or not isinstance(exposure, LoadedExposure):
            yield
            return
        mine = msgspec.structs.replace(config, store=pipelines_store(config), archive=pipelines_name(config))
        mine = msgspec.structs.replace(
            mine, table=msgspec.structs.replace(config.table, location=exposure.rule.location)
        )
        exposure.catalog = CatalogKeeper(UserCatalog(leading.store, mine), self.failing, clock=self.clock)
        async with exposure.catalog.scope():
            yield

    def start_term(self, pointer: TermHead, store: Store) -> PipelineLeading:
        """Return what the leader works with during a term."""
        rule = self.config.table
        location = rule.location and f"{rule.location.rstrip('/')}/{FOLDER}"
        brief = Expiry(keep_snapshots=1, keep_for=min(rule.keep_for, KEPT_FOR), location=location)
        exposure = LoadedExposure(store, brief, self.node)
        return PipelineLeading(store, pointer, self.node, self.config.sweep.grace, exposure, self.elapsed)

    async def run_due(self, leading: PipelineLeading, deriver: Deriver) -> None:
        """Run the pipelines that are due, each after those that it reads. A failure is recorded, and the others run.

        What operators have asked for is done first for each. FencedError or LeadershipLostError if the term is over.
        """
        async with self._attempt(KEEPS):
            pipelines = read_pipelines(self.config)
            requests = await self._read_requests()
            document = await leading.read(self.clock())
            await leading.clean(self.clock())
            if leading.exposure.is_due(document, self.clock()):
                document = await leading.commit(Change(tables={}), self.clock())
            began, round_ = self.elapsed(), Round(leading, deriver, pipelines, self._look(leading, document))
            for one in order_by_age(pipelines, document.tables):
                asked = requests.get(one.name)
                table = document.tables.get(one.name) or PipelineTable(definition=one.definition)
                if asked and asked.id == table.asked:
                    asked = None
                if asked and asked.what in ("pause", "resume"):
                    after = msgspec.structs.replace(table, paused=asked.what == "pause", asked=asked.id)
                    document = await leading.commit(Change(tables={one.name: after}), self.clock())
                    table, asked = after, None
                if not asked and not self._is_due(one, table):
                    continue
                if self.elapsed() > began + leading.grace / 3:  # what was read then may be deleted soon
                    began, round_.inputs = self.elapsed(), self._look(leading, document)
                round_.inputs.document = document
                async with self._attempt(one.name):
                    await self.run(one, table, round_, asked)
                document = await leading.read(self.clock())

    async def _read_requests(self) -> Mapping[str, Request]:
        async with self._attempt(REQUESTS):
            return await read_requests(self.natty, pipelines_name(self.config))
        return {}

    def _look(self, leading: PipelineLeading, document: Pipelines) -> PipelineInputs:
        return PipelineInputs(self.natty, self.config, leading, document)

    async def run(self, pipeline: Pipeline, table: PipelineTable, round_: Round, asked: Request | None = None) -> bool:
        """Run a pipeline once, if there is anything new; return whether it ran.

        A failure is committed as the record of a run, and raised again. FencedError; CaptureError; NattyError.
        """
        began, leading = self.clock(), round_.leading
        anew = asked is not None and asked.what == "rerun"
        if asked:
            table = msgspec.structs.replace(table, asked=asked.id)
        if asked and anew:
            table = msgspec.structs.replace(table, since_ns=asked.since_ns)
        why: Literal["new", "rerun", "asked"] = "new" if not asked else "rerun" if anew else "asked"
        run = Run(
            number=0,
            began=began,
            ended=began,
            token=leading.pointer.token,
            leader=self.node,
            why=why,
            asked=asked.id if asked else "",
        )
        try:
            done = await self._compute(pipeline, table, round_, run, anew=anew)
        except (FencedError, LeadershipLostError):
            raise
        except Exception as error:
            if not isinstance(error, CaptureError | NattyError):  # a fault of ours: other pipelines run all the same
                log.exception("the run of pipeline %s failed", pipeline.name, extra={"action": "pipeline_failed"})
            failure = _explain(pipeline.name, error)
            before = round_.inputs.document.tables.get(pipeline.name) or table
            before = msgspec.structs.replace(before, asked=table.asked)
            run = msgspec.structs.replace(run, ended=self.clock())
            self._count(pipeline.name, msgspec.structs.replace(run, error=failure))
            await self._record(leading, fail(before, pipeline.name, run, failure, getattr(error, "plan", "")))
            raise PipelineError(failure) from error
        if asked and not done:
            await leading.commit(Change(tables={pipeline.name: table}), self.clock())
        self._looked[pipeline.name] = began
        return done

    def _count(self, name: str, run: Run) -> None:
        figures = {one: getattr(run, one) for one in ("rows_in", "rows_out", "bytes_in", "bytes_out")}
        took = max(0, round(1000 * (run.ended - run.began)))
        self.counts.setdefault(name, Counter()).update(runs=1, failed=bool(run.error), milliseconds=took, **figures)

    async def _record(self, leading: PipelineLeading, change: Change) -> None:
        """Commit the record of a failed run, if the store can be written."""
        try:
            await leading.commit(change, self.clock())
        except FencedError:
            raise
        except (CaptureError, NattyError) as error:
            log.warning("the failed run is not recorded: %s", error, extra={"action": "pipeline_failed"})

    async def _compute(self, pipeline: Pipeline, table: PipelineTable, round_: Round, run: Run, *, anew: bool) -> bool:
        leading, inputs = round_.leading, round_.inputs
        if table.number and table.definition != pipeline.definition and not anew:
            raise PipelineError(explain_change(pipeline.name))
        method = choose_method(pipeline, {one.name: one for one in round_.pipelines})
        gathered = await inputs.gather(pipeline, method, table, anew=anew)
        if not gathered.is_new:
            return False
        files = await leading.list_files(pipeline.name)
        folder = run_folder(pipeline.name, leading.pointer.token, new_name())
        asked = make_derivation(
            pipeline, method, table, gathered, files, store=opening_url(leading.store), folder=folder
        )
        try:
            async with asyncio.timeout(pipeline.time_limit):
                derived = await round_.deriver.derive(asked)
        except TimeoutError:
            raise PipelineError(
                f"pipeline {pipeline.name}: its run took longer than its time_limit of {pipeline.time_limit:g} s, and"
                " was ended"
            ) from None
        leading.pointer.check()
        why = "rerun" if gathered.anew and table.number else run.why
        run = msgspec.structs.replace(run, ended=self.clock(), why=why)
        quarantine = inputs.document.tables.get(QUARANTINE.format(name=pipeline.name))
        change = conclude(pipeline, table, gathered, derived, files, run, quarantine)
        await leading.commit(change, self.clock())
        self._count(pipeline.name, change.tables[pipeline.name].runs[-1])
        log.info(
            "%s ran pipeline %s: %s in, %s out",
            self.node,
            pipeline.name,
            write_count(derived.rows_in, "row"),
            write_count(derived.rows_out, "row"),
            extra={"action": "pipeline_ran"},
        )
        return True

    def _time_to_next(self) -> float:
        """Return the seconds until a pipeline may be due, or until the next look."""
        now = self.clock()
        try:
            following = [one.times().next(now) for one in self.config.pipeline]
        except CaptureError:  # it was reported by the last look
            following = []
        return max(SOON, min([now + LOOK, *following]) - now)

    def _is_due(self, pipeline: Pipeline, table: PipelineTable) -> bool:
        """Return whether a slot has begun since the last run, and the time after failures is over.

        A paused pipeline is not due. Nor is one whose definition was changed: that is noted as a failure.
        """
        if table.paused:
            self.failing.pop(pipeline.name, None)
            return False
        if table.number and table.definition != pipeline.definition:
            self._note(pipeline.name, explain_change(pipeline.name))
            return False
        now, runs = self.clock(), table.runs
        times = [self._looked.get(pipeline.name, 0.0), *(one.began for one in runs[-1:])]
        began = max((one for one in times if one <= now + FAST), default=0.0)  # others are of a clock that was wrong
        if began and began >= pipeline.times().last(now):
            return False
        failures = 0
        for one in reversed(runs):
            if not one.error:
                break
            failures += 1
        wait = min(LONGEST_RETRY, RETRY * 2 ** min(failures - 1, 20)) if failures else 0.0
        return not failures or not runs[-1].ended - FAST <= now < runs[-1].ended + wait

    def _note(self, what: str, failure: str) -> None:
        """Keep a failure, and log it once while it lasts."""
        if self.failing.get(what) != failure:
            log.error("%s", failure, extra={"action": "pipeline_failed"})
        self.failing[what] = failure

    @contextlib.asynccontextmanager
    async def _attempt(self, what: str) -> AsyncIterator[None]:
        """Run the body; a failure is logged once while it lasts, and kept in `failing`."""
        try:
            yield
        except FencedError as error:
            raise LeadershipLostError(str(error)) from error
        except LeadershipLostError:
            raise
        except (CaptureError, NattyError) as error:
            self._note(what, str(error))
        else:
            self.failing.pop(what, None)


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
