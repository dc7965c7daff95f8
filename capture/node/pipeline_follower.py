"""Pipelines that follow their streams: the leader commits each micro-batch that Spark has read.

What the table has is the exact set of its progress, as for runs over the archive, so it does not matter for the rows
where following begins, nor what is read twice. What a batch misses, such as messages that left the stream meanwhile, is
added by a run over the archive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from capture.archive.identity import list_claimed
from capture.archive.sequences import Sequences
from capture.config.pipelines import archives, settle_schema
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, FencedError, PipelineError
from capture.ingest.source import stream_info
from capture.node.pipeline_inputs import PipelineInputs, choose_schema
from capture.node.pipeline_requests import Request
from capture.node.pipeline_runner import PipelineRunner, Troubles, explain_change
from capture.pipelines.commits import Change
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import INFER, Batch, Following, Held, Input, StreamDeriver
from capture.pipelines.document import STREAM, PipelineTable
from capture.pipelines.due import time_to_retry
from capture.pipelines.run import Gathered, Method
from capture.reading.live import check_same
from capture.reading.stream_range import StreamFacts
from capture.spark.connection_options import write_options
from capture.stores import open_store
from natty import LeadershipLostError, Natty, NattyError
from natty.wire.background import cancel_all, wait_until_set

CATCH_UP, CATCH_UP_SOON = 300.0, 30.0
"""Seconds between two runs over the archive: at most, and while messages may be missing."""
DOUBT = 120.0
"""Seconds within which the archive gets what the stream does not have any more."""
WAIT = 5.0
"""Seconds until the next look at the configuration, and for an archive that has not begun."""
PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds until a query that has ended is started again; they double."""
STEADY = 60.0
"""Seconds after which a query that runs without messages is well."""
MOST_BACK = 1_000_000
"""Sequences before the last one of the table in which a missing one is looked for in the stream."""
MOST_MESSAGES = 50_000
"""Messages of a batch: Spark's driver holds it in memory."""
FOLLOWS = {"action": "pipeline_follows"}

log = logging.getLogger("capture.pipelines")


class Followers:
    """The tasks that follow streams, one for each pipeline whose trigger is the stream, during a term."""

    def __init__(
        self,
        config: Callable[[], CaptureConfig],
        natty: Natty,
        runner: PipelineRunner,
        deriver: StreamDeriver,
        troubles: Troubles,
    ) -> None:
        self._make = partial(PipelineFollower, config, natty, runner, deriver, troubles)
        self._running: dict[str, tuple[PipelineFollower, asyncio.Task[None]]] = {}
        self.attended: asyncio.Task[None] | None = None
        """The task that calls `adjust`."""

    def __repr__(self) -> str:
        return f"Followers({', '.join(self._running)})"

    @property
    def names(self) -> set[str]:
        """The pipelines that are followed, or were until now."""
        return set(self._running)

    def adjust(self, pipelines: Sequence[Pipeline], requests: Mapping[str, Request]) -> None:
        """Begin to follow where that is new, hand over requests. Raises what has ended a task."""
        for name, (_, task) in list(self._running.items()):
            if task.done():
                del self._running[name]
                task.result()
        for one in pipelines:
            if one.follows and one.name not in self._running:
                follower = self._make(one.name)
                self._running[one.name] = follower, asyncio.create_task(follower.run())
        for name, (follower, _) in self._running.items():
            follower.wake(requests.get(name))

    async def wait(self, seconds: float) -> None:
        """Wait so long. Raises as soon as a task has failed, as it did: LeadershipLostError if the term is over."""
        assert self.attended is not None
        tasks = [self.attended, *(task for _, task in self._running.values())]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Cancel all tasks: their queries end with Spark."""
        running, self._running = self._running, {}
        await cancel_all([*([self.attended] if self.attended else []), *(task for _, task in running.values())])


@dataclass
class PipelineFollower:
    """Follows the stream of a pipeline, and does all that is to do for it: runs over its archive, requests.

    `config` returns the configuration as it is now.
    """

    config: Callable[[], CaptureConfig]
    natty: Natty
    runner: PipelineRunner
    deriver: StreamDeriver
    troubles: Troubles
    name: str
    elapsed: Callable[[], float] = time.monotonic
    _asked: Request | None = None
    _tried: str = ""  # the last request that was tried: if that fails, it waits as everything else
    _woken: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _failures: int = 0
    _is_well: bool = False  # after the last step
    _began: float = math.inf  # when the query that runs did
    _rests_until: float = -math.inf
    _catches_up_at: float = -math.inf
    _doubts_until: float = -math.inf
    _followed: Pipeline | None = None  # whose query runs
    _created: str = ""  # the time of the stream that was captured
    _after: int = -1  # the last batch that is committed
    _position: int = 0  # the next sequence of the stream
    _is_filtered: bool = False  # it reads one subject: gaps are of others
    _coming: asyncio.Task[Batch] | None = field(default=None, repr=False)

    def wake(self, asked: Request | None) -> None:
        """Look again at the configuration, and at what operators ask for."""
        self._asked = asked
        self._woken.set()

    async def run(self) -> None:
        """Follow until the pipeline is not configured to any more. LeadershipLostError if the term is over."""
        try:
            while (pipeline := self._find()) is not None:
                if rest := await self._time_to_rest(pipeline):
                    await self._end_query()
                    await self._sleep(rest)
                else:
                    await self.step(pipeline)
            await self._end_query()
        finally:
            if self._coming is not None:
                await cancel_all([self._coming])

    async def step(self, pipeline: Pipeline) -> None:
        """Do what is to be done, and commit the next batch if there is one soon. A failure is noted.

        It is over when a batch is committed, when the query has run for STEADY seconds, or if there is nothing to do.
        """
        has_failed = True
        async with self.troubles.attempt(self.name, clears=False):
            await self._step(pipeline)
            has_failed = False
        if has_failed:
            self._failures += 1
            self._rests_until = self.elapsed() + min(LONGEST_PAUSE, PAUSE * 2 ** min(self._failures - 1, 20))
        elif self._is_well or self.elapsed() >= self._began + STEADY:
            self._failures = 0
            self.troubles.clear(self.name)

    def _find(self) -> Pipeline | None:
        return next((one for one in self.config().pipeline if one.name == self.name and one.follows), None)

    async def _read_table(self, pipeline: Pipeline) -> PipelineTable:
        document = await self.runner.leading.read(self.runner.clock())
        return document.tables.get(self.name) or PipelineTable(definition=pipeline.definition)

    async def _time_to_rest(self, pipeline: Pipeline) -> float:
        """Return for how many seconds nothing is to be done: it failed lately. A request is carried out at once."""
        try:
            table = await self._read_table(pipeline)
        except FencedError as error:
            raise LeadershipLostError(str(error)) from error
        except (CaptureError, NattyError) as error:
            self.troubles.note(self.name, str(error))
            return WAIT
        asked = self._find_request(table)
        if asked and asked.id != self._tried:
            return 0.0
        return max(0.0, self._rests_until - self.elapsed(), time_to_retry(table.runs, self.runner.clock()))

    def _find_request(self, table: PipelineTable) -> Request | None:
        return self._asked if self._asked and self._asked.id != table.asked else None

    async def _step(self, pipeline: Pipeline) -> None:
        table, self._is_well = await self._read_table(pipeline), False
        asked = self._find_request(table)
        self._tried = asked.id if asked else self._tried
        if asked and asked.what in ("pause", "resume"):
            table = msgspec.structs.replace(table, paused=asked.what == "pause", asked=asked.id)
            await self.runner.leading.commit(Change(tables={self.name: table}), self.runner.clock())
            asked = None
        if self._followed not in (None, pipeline) or table.paused:
            await self._end_query()
        if not asked and table.paused:
            self._is_well = True
            await self._sleep(WAIT)
            return
        if table.number and table.definition != pipeline.definition and not asked:
            raise PipelineError(explain_change(self.name))
        if asked or self.elapsed() >= self._catches_up_at:
            await self._catch_up(pipeline, asked)
            return
        if self._followed is None and not await self._begin(pipeline, table):
            self._is_well = True
            await self._sleep(WAIT)
            return
        if batch := await self._next():
            await self._apply(pipeline, table, batch)
            self._is_well = True

    async def _catch_up(self, pipeline: Pipeline, asked: Request | None) -> None:
        """Run over the archive, which may have messages that no batch had."""
        leading = self.runner.leading
        inputs = PipelineInputs(self.natty, self.config(), leading, await leading.read(self.runner.clock()))
        gathered = await self.runner.run(pipeline, self._others(), partial(inputs.gather, pipeline), asked)
        now = self.elapsed()
        self._catches_up_at = now + (CATCH_UP_SOON if now < self._doubts_until else CATCH_UP)
        if gathered and gathered.anew:  # the table has less of the stream than before
            await self._end_query()

    def _others(self) -> dict[str, Pipeline]:
        return {one.name: one for one in self.config().pipeline}

    async def _begin(self, pipeline: Pipeline, table: PipelineTable) -> bool:
        """Start the query; return whether that was possible yet.

        It begins with the first message of the stream that the table does not have: see `find_beginning`. CaptureError
        if the stream is not the one that was captured.
        """
        config, leading = self.config(), self.runner.leading
        [stream] = pipeline.reads
        archive = {one.stream: one for one in archives(config)}[stream]
        if settle_schema(pipeline) == INFER and stream not in table.payload_schemas:
            return False  # types are inferred from the first messages of the archive
        created = {one.stream: one.created for one in await list_claimed(open_store(archive.store))}
        if stream not in created:
            return False  # nothing was captured yet
        self._created = created[stream]
        facts = await self._look(stream)
        inputs = PipelineInputs(self.natty, config, leading, await leading.read(self.runner.clock()))
        captured = await inputs.find_first(archive)
        if not captured and archive.start != "all":
            return False  # it is not known yet where capture began
        progress = await leading.read_progress(self.name, stream)
        if progress:
            await self._check_stream(stream, progress.last)
        self._position = find_beginning(progress, max(facts.first, captured))
        self._is_filtered = bool(archive.filter_subjects)
        options, _ = write_options(config.nats, config.spark.source_options)
        options |= {
            "stream": stream,
            "startSequence": str(max(1, self._position)),
            "maxMessagesPerTrigger": str(MOST_MESSAGES),
            "failOnDataLoss": "false",  # a run over the archive adds them; the front of a bucket's stream always moves
            **({"subject": archive.filter_subjects[0]} if archive.filter_subjects else {}),
        }
        await self.deriver.follow(Following(pipeline=self.name, options=options, every=pipeline.times().every))
        self._followed, self._after, self._began = pipeline, -1, self.elapsed()
        log.info("pipeline %s follows stream %s from %d on", self.name, stream, self._position, extra=FOLLOWS)
        self._doubt()
        return True

    async def _look(self, stream: str, least: int = 0) -> StreamFacts:
        """Return the facts of the stream; `least` as for `led_info`. NattyError.

        CaptureError if it is not the stream that was captured.
        """
        info = await stream_info(self.natty, stream, created=self._created, least=least)
        check_same(stream, self._created, info)
        return StreamFacts.of(info)

    async def _next(self) -> Batch | None:
        """Return the next batch; None if there is something else to do first."""
        if self._coming is None:
            self._coming = asyncio.create_task(self.deriver.next_batch(self.name, self._after))
        woken = asyncio.create_task(self._woken.wait())
        try:
            wait = max(0.0, self._catches_up_at - self.elapsed())
            await asyncio.wait([self._coming, woken], timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_all([woken])
        self._woken.clear()
        if not self._coming.done():
            return None
        coming, self._coming = self._coming, None
        try:
            return coming.result()
        except CaptureError:
            await self._end_query()
            raise

    async def _apply(self, pipeline: Pipeline, table: PipelineTable, batch: Batch) -> None:
        """Commit what the table does not have of a batch. CaptureError if the stream is another one by now."""
        [stream] = pipeline.reads
        sequences = Sequences.from_text(batch.sequences)
        progress = await self.runner.leading.read_progress(self.name, stream)
        new = sequences - progress
        try:
            await self._check_stream(stream, max(sequences.last, progress.last if progress else 0))
            if sequences.first < self._position:
                raise CaptureError(
                    f"stream {stream} was read up to {self._position - 1:,}, and now from {sequences.first:,} on again:"
                    " it was restored to an earlier state"
                )
            if new:
                gathered = gather_held(pipeline, table, new, batch)

                async def gather(method: Method, table: PipelineTable, anew: bool) -> Gathered:
                    return gathered

                await self.runner.run(pipeline, self._others(), gather, why=STREAM)
        except CaptureError:
            await self._end_query()
            raise
        has_gap = sequences.first != self._position or sequences.last - sequences.first + 1 != len(sequences)
        if has_gap and not self._is_filtered:
            self._doubt()  # or messages were deleted
        self._position = sequences.last + 1
        self._after = batch.number

    def _doubt(self) -> None:
        """Run over the archive again soon, since messages may have left the stream that only the archive will have."""
        self._doubts_until = self.elapsed() + DOUBT
        self._catches_up_at = min(self._catches_up_at, self.elapsed() + CATCH_UP_SOON)

    async def _check_stream(self, stream: str, last: int) -> None:
        """Raise CaptureError unless the stream is the one that was captured, and has not ended before `last`."""
        facts = await self._look(stream, last)
        if facts.last < last:
            raise CaptureError(
                f"stream {stream} ends at {facts.last:,}, and message {last:,} of it was read: it was restored to an"
                " earlier state"
            )

    async def _end_query(self) -> None:
        """End the query, if it runs. Before the next one, the archive gives what leaves the stream until then."""
        self._catches_up_at = -math.inf
        if self._coming is not None:
            coming, self._coming = self._coming, None
            await cancel_all([coming])
        self._began = math.inf
        if self._followed is not None:
            self._followed = None
            log.info("pipeline %s does not follow its stream for now", self.name, extra=FOLLOWS)
            with contextlib.suppress(CaptureError):  # Spark has ended
                await self.deriver.unfollow(self.name)

    async def _sleep(self, seconds: float) -> None:
        await wait_until_set(self._woken, seconds)
        self._woken.clear()


def find_beginning(progress: Sequences, first: int) -> int:
    """Return the sequence with which a query begins: the first one that a table does not have. Pure.

    Not before `first`, nor more than MOST_BACK before the last one that it has.
    """
    if not progress:
        return first
    first = max(first, progress.last - MOST_BACK)
    for begins, ends in progress.within(first, progress.last).runs():
        if begins > first:
            break
        first = ends + 1
    return first


def gather_held(pipeline: Pipeline, table: PipelineTable, new: Sequences, batch: Batch) -> Gathered:
    """Return what a run reads of the batch that Spark holds. ConfigError if the type of payloads can't be loaded."""
    [stream] = pipeline.reads
    given = "" if len(new) == batch.count else new.to_text()
    held = Input(
        store="",
        held=Held(number=batch.number, count=len(new), bytes=batch.bytes, given=given),
        is_plain=True,
        payload_schema=choose_schema(pipeline, table.payload_schemas, stream),
        since_ns=table.since_ns,
    )
    return Gathered(inputs={stream: held}, new={stream: new}, streamed_bytes=batch.bytes)
