"""The tasks of the elected nodes: one leader sweeps, another compacts. Both stop when their term ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from capture.archive.coverage import Coverage, read_coverage
from capture.archive.heads import COMPACTION, RECORDING, SWEEP, TermHead
from capture.archive.iceberg_state import CatalogState, CompactionRun, CompactionState, FreshState, table_states
from capture.archive.recording import record
from capture.archive.retention import EVERYTHING, removed_sequences
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, FencedError, NotSweptError
from capture.ingest.board import ArchiveState, Board, StreamState, server_time
from capture.ingest.layout import is_outside_blocks
from capture.maintenance.compaction import CompactReport, compact
from capture.maintenance.engine import Engine
from capture.maintenance.fresh import FreshTable
from capture.maintenance.leading import Leading
from capture.maintenance.read_back import read_back
from capture.maintenance.schedule import AT_ONCE, Schedule, is_due
from capture.maintenance.sweep import SweepReport, sweep
from capture.maintenance.table_commits import TableLeading
from capture.node.exposure import LoadedExposure
from capture.node.fresh_keeper import FRESH, FreshKeeper
from capture.node.heal import Healer, StoreMessages, read_held_since
from capture.node.leader_rules import location, policy, read_rule, retention
from capture.node.status.progress import Progress, read_progress
from capture.node.user_catalog import CatalogKeeper, UserCatalog
from capture.reading.remaining import open_position
from capture.spark import SparkDriver
from capture.stores import Store
from natty import LeadershipLostError, Natty, NattyError, Term
from natty.config.units import write_count

Result = TypeVar("Result")

log = logging.getLogger("capture.lead")

RETRY = 300.0  # seconds after which a failed compaction is tried again, unless the next slot begins earlier
SWEPT_WITHIN = 1.0  # seconds between two checks whether the sweep's leader has made a manifest
SWEEPING, RECORDS, COMPACTS = "sweep", "recording of what a restore needs", "compaction"
"""The names of the tasks in messages about failures."""
SHOWN = 20  # paths of each kind that are published
RUNS = 5  # runs of the compaction that are published: the status page shows them
LONGEST_ERROR = 1000  # characters of a published run's error


@dataclass
class Duty:
    """The leaders' tasks on one archive. A task that fails is logged and tried again in the next round.

    `failing` has a sentence for each task whose last run failed, while this node leads it.
    """

    natty: Natty
    store: Store
    config: CaptureConfig
    node: str
    clock: Callable[[], float] = time.time
    spark_log: Path | None = None
    can_compact: bool = False
    failing: dict[str, str] = field(default_factory=dict)
    store_messages: StoreMessages | None = None  # stores messages as this node stores delivered ones
    elapsed: Callable[[], float] = time.monotonic
    catalog: CatalogKeeper | None = None  # of the user, while this node leads the compaction
    compaction: CompactionState | None = None  # while this node leads it
    _exposure: LoadedExposure | None = field(default=None, init=False, repr=False)
    _fresh: FreshKeeper | None = field(default=None, init=False, repr=False)

    @property
    def catalogs(self) -> list[CatalogState]:
        """The entries that this node sets in the user's catalog."""
        return [one for _, one in sorted(self.catalog.states.items())] if self.catalog else []

    @property
    def fresh(self) -> FreshState | None:
        """The state of the fresh table, while this node keeps it."""
        return self._fresh.state if self._fresh else None

    @property
    def location(self) -> str:
        """The archive's URL as this node writes it into the table's metadata."""
        return location(self.store, self.config)

    async def sweep(self, term: Term) -> None:
        """Sweep until the term ends. Raises LeadershipLostError at its end."""
        sweeps, recording = Sweeps(self, term), TermHead(term, RECORDING, self.config.signer())
        async with self._forget_failures_of(SWEEPING, RECORDS):
            recorded = -math.inf
            while True:
                term.check()
                began = self.elapsed()
                await self._attempt(SWEEPING, sweeps.run())
                every, fresh, now = self.config.sweep.every, self.config.table.fresh, self.elapsed()
                if is_due(now - recorded, every, fresh or every):
                    await self._attempt(RECORDS, self.write_recording(recording))
                    recorded = now
                pause = min(every, max(fresh / 2, began + fresh - self.elapsed())) if fresh else every
                await asyncio.sleep(pause)

    async def compact(self, term: Term) -> None:
        """Compact in every slot until the term ends. Raises LeadershipLostError at its end.

        Spark runs under the term: no process of it outlives the deadline, and none is left when this returns.
        """
        options, key_file = self.config.spark.options(), self.config.key_file
        driver = SparkDriver(options, log=self.spark_log, run=term.run_process, key_file=key_file)
        leading = self.lead_compaction(term)
        fresh = self._fresh = self._keep_fresh(leading)
        async with self._forget_failures_of(COMPACTS, FRESH), self.keep_catalog(), driver as engine, fresh.scope():
            while True:
                term.check()
                slots, began, pause = self.config.compaction.schedule(), self.clock(), 0.0
                self._note_compaction()
                try:
                    run = self.compact_once(leading, engine, fresh.schedule(slots))
                    done = await self._attempt(COMPACTS, run)
                except NotSweptError:
                    self._note_compaction(pause=SWEPT_WITHIN)
                    await asyncio.sleep(SWEPT_WITHIN)
                    continue
                if done is None or not done.groups:  # otherwise the slot may have more
                    now = self.clock()
                    pause = slots.next(now) - now
                    if done is None:
                        pause = min(pause, RETRY)
                        self.failing[COMPACTS] += (
                            f"; it runs again at {datetime.fromtimestamp(now + pause, UTC):%H:%M:%S} UTC"
                        )
                self._note_compaction(self._describe_run(began, done), pause)
                if pause:
                    await fresh.pause(pause)

    def _describe_run(self, began: float, done: CompactReport | None) -> CompactionRun | None:
        """Return a run that began at `began`, for the published state; None if it found nothing to do."""
        if done and not (done.groups or done.failed):
            return None
        error = "; ".join(done.failed) if done else self.failing[COMPACTS]
        figures = {"inputs": done.inputs, "outputs": done.outputs, "rows": done.rows_in} if done else {}
        return CompactionRun(
            began=began, seconds=max(0.0, self.clock() - began), error=error[:LONGEST_ERROR], **figures
        )

    def _note_compaction(self, run: CompactionRun | None = None, pause: float = 0.0) -> None:
        """Note a run, if there was one, and that the next check is after `pause` seconds; 0: it begins now."""
        runs = [*(self.compaction.runs if self.compaction else ()), *([run] if run else ())]
        self.compaction = CompactionState(runs=runs[-RUNS:], next=self.clock() + pause if pause else None)

    def lead_compaction(self, term: Term) -> TableLeading:
        """Return what the leader of the compaction works with during this term."""
        head, manifest = TermHead(term, COMPACTION, self.config.signer()), SWEEP.reader(self.natty, self.config.name)
        return TableLeading(self.store, head, manifest, self.node, self.config.sweep.grace, self.elapsed)

    def _keep_fresh(self, leading: TableLeading) -> FreshKeeper:
        async def lead() -> TableLeading:
            leading.grace, leading.exposure = self.config.sweep.grace, self._exposure or await self._expose()
            return leading

        return FreshKeeper(
            FreshTable(policy(self.config)),
            lead,
            every=lambda: self.config.table.fresh,
            attempt=self._attempt,
            failing=self.failing,
            clock=self.clock,
        )

    @contextlib.asynccontextmanager
    async def keep_catalog(self) -> AsyncIterator[None]:
        """While the body runs, keep the entries in the user's catalog, if there is one, at the committed table."""
        if not self.config.table.catalog.type:
            yield
            return
        self.catalog = CatalogKeeper(UserCatalog(self.store, self.config), self.failing, clock=self.clock)
        async with self.catalog.scope():
            yield

    @contextlib.asynccontextmanager
    async def _forget_failures_of(self, *works: str) -> AsyncIterator[None]:
        """When the body ends, remove these tasks from `failing`."""
        try:
            yield
        finally:
            for what in works:
                self.failing.pop(what, None)
            if COMPACTS in works:
                self.compaction = None

    async def _attempt(self, what: str, work: Awaitable[Result]) -> Result | None:
        """Return the result of a task, None if it failed."""
        try:
            done = await work
        except FencedError as error:
            raise LeadershipLostError(str(error)) from error
        except (LeadershipLostError, NotSweptError):
            raise
        except (CaptureError, NattyError) as error:
            failed = f"the {what} failed: {error}"
            if not self.failing.get(what, "").startswith(failed):  # log it once while it lasts; capture status shows it
                log.error("%s", failed, extra={"action": "duty_failed"})
            self.failing[what] = failed
            return None
        self.failing.pop(what, None)
        return done

    async def write_recording(self, head: TermHead) -> None:
        """Record what a restore needs besides messages. Raises FencedError, CaptureError, NattyError."""
        manifest = await SWEEP.reader(self.natty, self.config.name)()
        await record(
            self.store,
            head,
            self.natty,
            archive=self.config.name,
            now=self.clock(),
            grace=self.config.sweep.grace,
            node=self.node,
            of_manifest=manifest.number if manifest else 0,
        )

    async def compact_once(self, leading: TableLeading, engine: Engine, slots: Schedule = AT_ONCE) -> CompactReport:
        """Compact what is due. Raises FencedError, NotSweptError, CaptureError, NattyError."""
        leading.grace, leading.exposure = self.config.sweep.grace, await self._expose()
        done = await compact(
            leading,
            engine,
            policy(self.config),
            now=await self._earlier_time() if self.config.retention else self.clock(),
            retention=retention(self.config),
            schedule=slots,
            check=partial(read_back, keys=self.config.keys()),
        )
        if done.expired:
            log.info(
                "%s: retention removes %s",
                self.node,
                write_count(done.expired, "table file"),
                extra={"action": "retention"},
            )
        if done.outputs:
            log.info("%s compacted %s into %d", self.node, write_count(done.inputs, "file"), done.outputs)
        for failed in done.failed:
            log.error("%s", failed, extra={"action": "merge_failed"})
        if done.conflicts:
            text = "values did not fit the table's columns, the payloads keep them: %s"
            log.warning(text, done.conflicts, extra={"action": "schema"})
        return done

    async def _expose(self) -> LoadedExposure:
        """Return the last run's exposure, which has Iceberg's recent files in memory, unless the rule has changed."""
        rule = await read_rule(self.natty, self.store, self.config, self.node)
        if self._exposure is None or self._exposure.rule != rule:
            self._exposure = LoadedExposure(self.store, rule, self.node)
        self._exposure.catalog = self.catalog
        return self._exposure

    async def _earlier_time(self) -> float:
        """Return the earlier of our time and the server's, so that nothing expires early because one clock is ahead."""
        info = await self.natty.jetstream.request(f"STREAM.INFO.{self.config.stream}")
        return min(self.clock(), server_time(info))


class Sweeps:
    """The sweeps of one term, and the state that one sweep leaves to the next."""

    def __init__(self, duty: Duty, term: Term) -> None:
        self._duty = duty
        self._term = term
        self._board = Board(duty.natty, duty.config.name)
        self._since = duty.clock()
        self._streams = {duty.config.stream}
        self._covered: dict[tuple[int, int], dict[str, Coverage]] = {}  # of the last manifest and table
        head, table = TermHead(term, SWEEP, duty.config.signer()), COMPACTION.reader(duty.natty, duty.config.name)
        self._leading = Leading(duty.store, head, table, duty.node, duty.config.sweep.grace, duty.elapsed)
        self._logged: set[str] = set()
        self._position = cache(partial(open_position, duty.natty, duty.config, duty.store, self._leading.indexes))
        self._healer = Healer(
            duty.natty,
            duty.config,
            duty.store_messages,
            check=term.check,
            held_since=partial(read_held_since, self._board, duty.elapsed),
            elapsed=duty.elapsed,
        )

    def __repr__(self) -> str:
        return f"Sweeps({self._term!r})"

    async def run(self) -> SweepReport:
        """Sweep once and publish the archive's state. It reads the progress of streams first: see `Progress`.

        Raises FencedError or LeadershipLostError if the term is over, and CaptureError. A state that can't be published
        is logged.
        """
        duty, config, elapsed = self._duty, self._duty.config, asyncio.get_running_loop().time
        began = elapsed()
        streams = sorted(self._streams)
        asked = [await read_progress(duty.natty, duty.store, one, config, self._position) for one in streams]
        progress = [one for one in asked if one]
        now = min([duty.clock(), *(one.now for one in progress)])
        self._leading.grace = config.sweep.grace
        report = await sweep(
            self._leading,
            now=now,
            retention=retention(config) if progress else EVERYTHING,  # one clock alone expires nothing
            begins={one.stream: one.first for one in progress},
            trust=config.trust(),
            outside=is_outside_blocks(config.layout),
        )
        await duty.store.remove_leftovers(config.sweep.grace, now)
        captured = await self._read_streams(report, progress)
        state = self._state(report, captured, now, elapsed() - began)
        self._log(report, captured, await self._publish(state))
        return report

    async def _read_streams(self, report: SweepReport, progress: list[Progress]) -> list[StreamState]:
        """Return how far each stream is captured, if the server reports it. Store messages that no node has stored."""
        manifest, table, indexes = report.manifest, report.table, self._leading.indexes
        if manifest.of_table > table.number:  # the sweep has read an older table
            return [one.state(None, None) for one in progress]
        numbers = manifest.number, table.number
        if numbers not in self._covered:
            removed = removed_sequences(manifest.removed, table.removed)
            blocks, files = (indexes.blocks, manifest.index), (indexes.files, table.index)
            self._covered = {numbers: await read_coverage(blocks, files, removed)}
        covered = self._covered[numbers]
        self._streams |= set(covered)
        return [await self._healer.state(one, covered.get(one.stream, Coverage())) for one in progress]

    async def _publish(self, state: ArchiveState) -> list[str]:
        """Publish the state; return a sentence for each problem."""
        try:
            published = await self._board.publish(state)
        except NattyError as error:
            return [f"the state is not published: {error}"]
        return [] if published else ["a later term has published its state"]

    def _state(self, report: SweepReport, streams: list[StreamState], swept: float, seconds: float) -> ArchiveState:
        """Return the archive's state after a sweep at `swept` (Unix seconds) that took `seconds`."""
        duty, manifest, table = self._duty, report.manifest, report.table
        removed = [*manifest.removed, *table.removed]
        return ArchiveState(
            manifest=manifest.number,
            blocks=manifest.index.objects,
            messages=manifest.index.messages,
            bytes=manifest.index.stored_bytes,
            adopted=report.adopted,
            unadopted=len(report.dangling) + len(report.unreadable),
            let_go=report.let_go,
            expired=report.expired,
            deleted=report.removed_entries + report.removed_objects,
            dangling=report.dangling[:SHOWN],
            unreadable=report.unreadable[:SHOWN],
            table=table.number,
            files=table.index.objects,
            rows=table.index.messages,
            table_bytes=table.index.stored_bytes,
            compacted=table.created or None,
            compactor=table.leader,
            removed_objects=sum(one.objects for one in removed),
            removed_bytes=sum(one.bytes for one in removed),
            streams=streams,
            archive=duty.config.name,
            leader=duty.node,
            token=self._term.token,
            term=self._term.number,
            since=self._since,
            swept=swept,
            seconds=seconds,
            every=duty.config.sweep.every,
            tables=table_states(table.iceberg, duty.config.table),
            store=duty.store.url,
        )

    def _log(self, report: SweepReport, streams: list[StreamState], unpublished: list[str]) -> None:
        """Log what was done; log each problem once."""
        adopted, expired = report.adopted, report.expired
        if adopted or expired:
            text = "%s swept: %s adopted, %d removed by retention"
            log.info(text, self._duty.node, write_count(adopted, "block"), expired, extra={"action": "swept"})
        errors = [*report.unreadable, *(f"{path} is named by an entry and missing" for path in report.dangling)]
        errors += [missing for one in streams if (missing := one.describe_missing())]
        notes = [note for one in streams for note in (one.describe_gaps(), one.describe_awaited()) if note]
        for level, sentences in ((logging.ERROR, errors), (logging.WARNING, unpublished), (logging.INFO, notes)):
            for sentence in sentences:
                if sentence not in self._logged:
                    log.log(level, "the sweep found: %s", sentence, extra={"action": "sweep_found"})
        self._logged = {*errors, *unpublished, *notes}
