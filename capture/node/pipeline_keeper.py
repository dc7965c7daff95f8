"""The task of the pipelines' leader: runs what is due, in the order of the graph, and commits each run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from capture.archive.heads import PIPELINES, TermHead
from capture.archive.iceberg_state import Expiry
from capture.config.pipelines import pipelines_name, pipelines_signer, pipelines_store, read_pipelines
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.node.campaign import campaign
from capture.node.exposure import LoadedExposure
from capture.node.pipeline_follower import Followers
from capture.node.pipeline_inputs import PipelineInputs
from capture.node.pipeline_requests import Request, read_requests
from capture.node.pipeline_runner import PipelineRunner, Troubles, explain_change
from capture.node.user_catalog import CatalogKeeper, UserCatalog
from capture.pipelines.commits import Change, PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Deriver, StreamDeriver
from capture.pipelines.document import FOLDER, Pipelines, PipelineTable
from capture.pipelines.due import is_due, time_to_retry
from capture.pipelines.run import order_by_age
from capture.spark import SparkDriver, unavailable
from capture.spark.connection_options import write_options
from capture.stores import Store, open_store
from capture.stores.open import explain_unopenable
from natty import Natty, NattyError, Term

LOOK, SOON = 5.0, 0.2
"""Seconds between two looks at what is due and what operators ask for: at the most, and at the least."""
KEPT_FOR = 3600.0
"""Seconds that a past snapshot of a table stays: each run of an upsert replaces files."""
KEEPS, FOLLOWS, REQUESTS = "all pipelines", "pipelines that follow a stream", "requests of pipelines"
"""The names in `failing` of what is not about one pipeline: no pipeline has such a name."""

log = logging.getLogger("capture.pipelines")


@dataclass
class PipelineKeeper:
    """The pipelines of a configuration, which may have several streams: while this node leads them, it runs them.

    `failing` has a sentence for each pipeline that does not run as it should. `counts` has for each pipeline what this
    node's runs add up to: `runs`, `failed` ones among them, `rows_in`, `rows_out`, `bytes_in`, `bytes_out`,
    `bytes_packed` and `milliseconds`.
    """

    natty: Natty
    config: CaptureConfig
    node: str
    clock: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic
    failing: dict[str, str] = field(default_factory=dict)
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    _looked: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # when there was nothing new
    _known_runner: PipelineRunner | None = field(default=None, init=False, repr=False)
    _names: set[str] = field(default_factory=set, init=False, repr=False)  # of the pipelines at the last look

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
            await self._admit(driver)
            async with driver, self._keep_catalog(leading), self._follow(leading, driver) as followers:
                while True:
                    term.check()
                    await self._admit(driver)
                    await self.run_due(leading, driver, followers.names)
                    await followers.wait(self._time_to_next())
        finally:
            self.failing.clear()

    async def _admit(self, driver: SparkDriver) -> None:
        """Let Spark connect to NATS if a pipeline follows a stream: with a password only then. It may start again."""
        variables: Mapping[str, str] = {}
        if any(one.follows for one in self.config.pipeline):
            try:
                _, variables = write_options(self.config.nats, self.config.spark.source_options)
            except (CaptureError, NattyError):  # the follower reports it
                return
        if variables != driver.variables:
            driver.variables = variables
            await driver.close()

    @contextlib.asynccontextmanager
    async def _follow(self, leading: PipelineLeading, deriver: StreamDeriver) -> AsyncIterator[Followers]:
        """While the body runs, let pipelines follow their streams, whatever else takes long."""
        runner = self._runner(leading, deriver)
        followers = Followers(lambda: self.config, self.natty, runner, deriver, Troubles(self.failing))
        followers.attended = asyncio.create_task(self._attend(followers))
        try:
            yield followers
        finally:
            await followers.stop()

    async def _attend(self, followers: Followers) -> None:
        """Adjust what is followed to the configuration, and hand over requests, every LOOK seconds."""
        while True:
            async with Troubles(self.failing).attempt(FOLLOWS):
                followers.adjust(read_pipelines(self.config), await self._read_requests())
            await asyncio.sleep(LOOK)

    def _runner(self, leading: PipelineLeading, deriver: Deriver) -> PipelineRunner:
        """Return the runner of this term: it knows which merges of small files have failed."""
        known = self._known_runner
        if known is None or known.leading is not leading or known.deriver is not deriver:
            known = self._known_runner = PipelineRunner(leading, deriver, self.node, self.clock, self.counts)
        return known

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

    async def run_due(self, leading: PipelineLeading, deriver: Deriver, followed: Collection[str] = ()) -> None:
        """Run the pipelines that are due, each after those that it reads. A failure is recorded, and the others run.

        What operators have asked for is done first for each. Those that are `followed`, or will be, are left out.
        FencedError or LeadershipLostError if the term is over.
        """
        troubles = Troubles(self.failing)
        async with troubles.attempt(KEEPS):
            pipelines = read_pipelines(self.config)
            for name in self._names - {one.name for one in pipelines}:
                troubles.clear(name)
            self._names = {one.name for one in pipelines}
            requests = await self._read_requests()
            document = await leading.read(self.clock())
            await leading.clean(self.clock())
            if leading.exposure.is_due(document, self.clock()):
                document = await leading.commit(Change(tables={}), self.clock())
            runner = self._runner(leading, deriver)
            others = {one.name: one for one in pipelines}
            began, inputs = self.elapsed(), self._look(leading, document)
            for one in order_by_age(pipelines, document.tables):
                if one.follows or one.name in followed:
                    continue
                asked = requests.get(one.name)
                table = document.tables.get(one.name) or PipelineTable(definition=one.definition)
                if asked and asked.id == table.asked:
                    asked = None
                if (
                    asked
                    and table.runs
                    and table.runs[-1].asked == asked.id
                    and time_to_retry(table.runs, self.clock())
                ):
                    continue  # it failed, and stays
                if asked and asked.what in ("pause", "resume"):
                    after = msgspec.structs.replace(table, paused=asked.what == "pause", asked=asked.id)
                    document = await leading.commit(Change(tables={one.name: after}), self.clock())
                    table, asked = after, None
                if not asked and not self._is_due(one, table, troubles):
                    continue
                if self.elapsed() > began + leading.grace / 3:  # what was read then may be deleted soon
                    began, inputs = self.elapsed(), self._look(leading, document)
                inputs.document = document
                at = self.clock()
                async with troubles.attempt(one.name):
                    await runner.run(one, others, partial(inputs.gather, one), asked)
                    self._looked[one.name] = at
                document = await leading.read(self.clock())

    async def _read_requests(self) -> Mapping[str, Request]:
        async with Troubles(self.failing).attempt(REQUESTS):
            return await read_requests(self.natty, pipelines_name(self.config))
        return {}

    def _look(self, leading: PipelineLeading, document: Pipelines) -> PipelineInputs:
        return PipelineInputs(self.natty, self.config, leading, document)

    def _time_to_next(self) -> float:
        """Return the seconds until a pipeline may be due, or until the next look."""
        now = self.clock()
        try:
            following = [one.times().next(now) for one in self.config.pipeline if not one.follows]
        except CaptureError:  # it was reported by the last look
            following = []
        return max(SOON, min([now + LOOK, *following]) - now)

    def _is_due(self, pipeline: Pipeline, table: PipelineTable, troubles: Troubles) -> bool:
        """Return whether a slot has begun since the last run, and the time after failures is over.

        A paused pipeline is not due. Nor is one whose definition was changed: that is noted as a failure.
        """
        if table.paused:
            self.failing.pop(pipeline.name, None)
            return False
        if table.number and table.definition != pipeline.definition:
            troubles.note(pipeline.name, explain_change(pipeline.name))
            return False
        return is_due(pipeline.times(), table.runs, self.clock(), self._looked.get(pipeline.name, 0.0))
