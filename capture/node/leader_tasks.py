"""The tasks of the elected nodes: one leader sweeps, another compacts. Both stop when their term ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from capture.archive import chain
from capture.archive.coverage import Coverage, coverage
from capture.archive.heads import COMPACTION, RECORDING, SWEEP, TermHead
from capture.archive.iceberg_state import Expiry, archive_location, base_location, is_reachable, table_states
from capture.archive.picture import Picture
from capture.archive.recording import record
from capture.archive.retention import EVERYTHING, Retention
from capture.archive.table import Exposure, Table, first_table
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, FencedError, NotSweptError
from capture.ingest.board import ArchiveState, Board, StreamState, disagreement, server_time
from capture.ingest.layout import is_outside_blocks
from capture.maintenance.compaction import CompactReport, compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.engine import Engine
from capture.maintenance.read_back import read_back
from capture.maintenance.schedule import AT_ONCE, Schedule
from capture.maintenance.sweep import SweepReport, sweep
from capture.node.heal import Healer, StoreMessages, read_held_since
from capture.spark import SparkDriver
from capture.status.progress import Progress, read_progress
from capture.stores import Store
from natty import LeadershipLostError, Natty, NattyError, Term
from natty.config.units import write_count

Result = TypeVar("Result")

log = logging.getLogger("capture.lead")

RETRY = 300.0  # seconds after which a failed compaction is tried again, unless the next slot begins earlier
SWEPT_WITHIN = 1.0  # seconds between two checks whether the sweep's leader has made a manifest
SWEEPING, RECORDS, COMPACTS = "sweep", "recording of what a restore needs", "compaction"
"""The names of the tasks in messages about failures."""
SHOWN = 20  # paths of each kind that are published; the others are only counted


def policy(config: CaptureConfig) -> Policy:
    """Return the compaction's rules."""
    wanted = config.compaction
    return Policy(
        target_bytes=wanted.target_bytes,
        min_files=wanted.min_files,
        max_wait=wanted.max_wait,
        max_groups=wanted.max_groups,
        max_bytes=wanted.max_bytes,
        encrypted=config.keys() is not None,
        encrypted_only=config.encrypted_only,
        decrypt=wanted.decrypt,
        distinct=wanted.distinct,
    )


@dataclass
class LoadedExposure:
    """Publishes the table for other engines, as an Iceberg table; loads the code for it with the first file.

    That takes a second of imports and 65 MiB, and most leaders of a compaction do not need it.
    """

    store: Store
    rule: Expiry
    node: str
    _loaded: Exposure | None = None

    def is_due(self, table: Table, now: float) -> bool:
        """Return whether the published table must change. A table that has files was announced before."""
        return self._loaded is not None and self._loaded.is_due(table, now)

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Write the metadata of the table that will be committed next; return the table with pointers to them."""
        loaded = await self._for(table)
        return await loaded.expose(store, table, token=token, now=now) if loaded else table

    async def announce(self, store: Store, table: Table) -> None:
        """Announce a committed table to readers that do not read the head."""
        if loaded := await self._for(table):
            await loaded.announce(store, table)

    async def _for(self, table: Table) -> Exposure | None:
        if self._loaded is None and (table.files or table.iceberg) and is_reachable(self.store, self.rule.location):
            self._loaded = await asyncio.to_thread(_exposer, self.store, self.rule, self.node)
        return self._loaded


def _exposer(store: Store, rule: Expiry, node: str) -> Exposure:
    from capture.iceberg import Exposer  # see LoadedExposure

    return Exposer(store, rule, node=node)


def retention(config: CaptureConfig) -> Retention:
    """Return the retention rules."""
    return Retention(config.retention, config.limits.interval)


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

    @property
    def location(self) -> str:
        """The archive's URL as this node writes it into the table's metadata."""
        return archive_location(self.store, self.config.table.location)

    async def sweep(self, term: Term) -> None:
        """Sweep until the term ends. Raises LeadershipLostError at its end."""
        sweeps, recording = Sweeps(self, term), TermHead(term, RECORDING, self.config.signer())
        async with self._forget_failures_of(SWEEPING, RECORDS):
            while True:
                term.check()
                await self._attempt(SWEEPING, sweeps.run())
                await self._attempt(RECORDS, self.write_recording(recording))
                await asyncio.sleep(self.config.sweep.every)

    async def compact(self, term: Term) -> None:
        """Compact in every slot until the term ends. Raises LeadershipLostError at its end.

        Spark runs under the term: no process of it outlives the deadline, and none is left when this returns.
        """
        head = TermHead(term, COMPACTION, self.config.signer())
        options, key_file = self.config.spark.options(), self.config.key_file
        driver = SparkDriver(options, log=self.spark_log, run=term.run_process, key_file=key_file)
        async with self._forget_failures_of(COMPACTS), driver as engine:
            while True:
                term.check()
                slots = self.config.compaction.schedule()
                try:
                    done = await self._attempt(COMPACTS, self.compact_once(head, engine, slots))
                except NotSweptError:
                    await asyncio.sleep(SWEPT_WITHIN)
                    continue
                if done is None or not done.groups:  # otherwise the slot may have more
                    now = self.clock()
                    pause = slots.next(now) - now
                    await asyncio.sleep(min(pause, RETRY) if done is None else pause)

    @contextlib.asynccontextmanager
    async def _forget_failures_of(self, *works: str) -> AsyncIterator[None]:
        """When the body ends, remove these tasks from `failing`."""
        try:
            yield
        finally:
            for what in works:
                self.failing.pop(what, None)

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
            if self.failing.get(what) != failed:  # log it once while it lasts; capture status shows it
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

    async def compact_once(self, head: TermHead, engine: Engine, slots: Schedule = AT_ONCE) -> CompactReport:
        """Compact what is due. Raises FencedError, NotSweptError, CaptureError, NattyError."""
        done = await compact(
            self.store,
            head,
            SWEEP.reader(self.natty, self.config.name),
            engine,
            policy(self.config),
            now=await self._earlier_time() if self.config.retention else self.clock(),
            grace=self.config.sweep.grace,
            node=self.node,
            retention=retention(self.config),
            exposure=LoadedExposure(self.store, await self._rule(), self.node),
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

    async def _rule(self) -> Expiry:
        """Return `[table]`, with the table's present location while the nodes disagree on it.

        Metadata contain absolute paths: otherwise each new leader would rewrite them all, and the table would lose its
        history.
        """
        differing = await self._find_difference()
        if not differing:
            return self.config.table
        log.error("the table stays where it is: %s", differing, extra={"action": "locations_differ"})
        head = await COMPACTION.reader(self.natty, self.config.name)()
        table = Table() if head is None else await chain.read(self.store, head, Table)
        return msgspec.structs.replace(self.config.table, location=base_location(table.iceberg) or self.location)

    async def _find_difference(self) -> str:
        """Return how the nodes differ in the archive's location, or why that is unknown; "" if they agree."""
        try:
            said = (await Board(self.natty, self.config.name).read()).locations
        except (CaptureError, NattyError) as error:
            return f"its location for other nodes is not known: {error}"
        return disagreement({**said, self.node: self.location})

    async def _earlier_time(self) -> float:
        """Return the earlier of our time and the server's, so that nothing expires early because one clock is ahead."""
        info = await self.natty.jetstream.request(f"STREAM.INFO.{self.config.stream}")
        return min(self.clock(), server_time(info))


class Sweeps:
    """The sweeps of one term, and the state that one sweep leaves to the next."""

    def __init__(self, duty: Duty, term: Term) -> None:
        self._duty = duty
        self._term = term
        self._head = TermHead(term, SWEEP, duty.config.signer())
        self._board = Board(duty.natty, duty.config.name)
        self._since = duty.clock()
        self._streams = {duty.config.stream}
        self._covered: dict[tuple[int, int], dict[str, Coverage]] = {}  # of the last manifest and table
        self._logged: set[str] = set()
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
        asked = [await read_progress(duty.natty, duty.store, one, config) for one in streams]
        progress = [one for one in asked if one]
        now = min([duty.clock(), *(one.now for one in progress)])
        report = await sweep(
            duty.store,
            self._head,
            COMPACTION.reader(duty.natty, config.name),
            now=now,
            grace=config.sweep.grace,
            node=duty.node,
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
        picture = picture_of(report)
        if picture.manifest.of_table > picture.table.number:  # the sweep has read an older table
            return [one.state(None, None) for one in progress]
        numbers = picture.manifest.number, picture.table.number
        if numbers not in self._covered:
            self._covered = {numbers: coverage([*picture.blocks, *picture.files], picture.removed)}
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
        duty, picture = self._duty, picture_of(report)
        table, removed = picture.table, [*picture.manifest.removed, *picture.table.removed]
        return ArchiveState(
            manifest=picture.manifest.number,
            blocks=len(picture.blocks),
            messages=sum(one.count for one in picture.blocks),
            bytes=sum(one.bytes for one in picture.blocks),
            adopted=report.adopted,
            unadopted=len(report.dangling) + len(report.unreadable),
            let_go=report.let_go,
            expired=report.expired,
            deleted=report.removed_entries + report.removed_objects,
            dangling=report.dangling[:SHOWN],
            unreadable=report.unreadable[:SHOWN],
            table=table.number,
            files=len(table.files),
            rows=sum(one.count for one in table.files),
            table_bytes=sum(one.bytes for one in table.files),
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


def picture_of(report: SweepReport) -> Picture:
    """Return the archive after a sweep, with the table that the sweep has read."""
    return Picture(report.manifest, report.table or first_table(report.manifest))
