"""Reads from the archive on into the stream: at the seam no message is left out and none is repeated.

The order of the requests matters. A message that is not in the stream any more was never delivered to capture, or
capture is about to store it, or it is durable in the archive. So the reader queries the stream first, then capture's
consumers, then the archive. It then knows for each message where it is, or that it is nowhere. If a message is gone
when it is read, the reader searches again in the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.config.consumers import Position, consumer_states
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, DataLossError, NotStoredError
from capture.formats.envelope import SCHEMA
from capture.ingest.source import stream_info
from capture.reading.live import check_same, read_live
from capture.reading.merge import GoneError, Look, merge_shares, slice_after
from capture.reading.shares import Selection, Share, narrow, sequences_of, shares
from capture.stores import Store
from natty import Natty

PENDING_WITHIN = 60.0
"""Seconds until a message that was delivered to capture, and has left the stream, must be in the archive."""
RECENT = 300.0
"""Seconds for which a slower node may still fill a gap between archived messages."""
LOOK_AGAIN = 0.2  # seconds
LONG_RUN = 100_000
"""From this many messages without a gap on, they are read from the archive and not from the stream."""
RUNS = 1000  # runs that are searched for a long one

OnGap = Callable[[Sequences], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a stream's messages are: the archive's store and the function that lists its objects, and the server.

    `created` is the creation time of the captured stream, in the server's own text; "" if that is not known.
    """

    store: Store
    look: Look
    natty: Natty
    config: CaptureConfig  # names the consumers
    created: str = ""
    keys: Keys | None = None

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self.config.stream


@dataclass(frozen=True)
class _Sources:
    """The state of the stream, and the archive's objects, which were listed after it."""

    info: dict[str, Any]
    objects: list[Stored]

    def first_unsettled(self, now_ns: int) -> int:
        """Return the first sequence that may have left the stream and not be in the archive yet."""
        recent = [one.first for one in self.objects if one.max_ns > now_ns - RECENT * 1e9]
        return min([int(self.info["state"]["first_seq"]), *recent])


class Crossing:
    """Reads one stream, first from the archive, then from the stream. `position` is the last sequence that is done.

    `on_gap` is called with sequences that are neither in the archive nor in the stream. If the stream deleted them
    after the archive's last message, DataLossError is raised, unless `gaps` is "skip".
    """

    def __init__(
        self,
        place: Place,
        selection: Selection,
        *,
        follow: bool = False,
        gaps: Literal["raise", "skip"] = "raise",
        on_gap: OnGap | None = None,
    ) -> None:
        self.position = selection.start_sequence - 1
        self._place = place
        self._selection = selection
        self._follow = follow
        self._gaps = gaps
        self._on_gap = on_gap or (lambda _: None)
        self._target = 0  # the last sequence of the stream when the reading began
        self._gone = ""  # the last object that was deleted before it was read
        self._delivered: deque[tuple[float, int]] = (
            deque()
        )  # up to which sequence messages were delivered to capture, and when
        self._stored = 0  # up to which sequence messages were delivered long enough ago

    def __repr__(self) -> str:
        return f"Crossing({self._place.stream}, at {self.position})"

    async def batches(self, columns: Sequence[str] = SCHEMA.names) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield every selected message in order. Raises as `merge.read_stored` and `live.read_live` do."""
        wanted = [name for name in SCHEMA.names if name in {"sequence", *columns, *self._selection.columns}]
        sources = await self._read_sources()
        await self._begin(sources)
        while not self._is_over():
            async with aclosing(self._next(sources, wanted)) as batches:
                async for batch in batches:
                    if len(some := self._selection.of(batch)):
                        yield some.select(list(columns))
            if not self._is_over():
                sources = await self._read_sources()

    async def _read_sources(self) -> _Sources:
        """Read the state of the stream, then the archive: in this order no message is overlooked."""
        return _Sources(await self._info(), await self._look())

    async def _look(self) -> list[Stored]:
        objects = await self._place.look()
        if self._gone in {one.path for one in objects}:
            raise NotStoredError(f"there is no {self._gone} in {self._place.store.url}, and the archive still names it")
        return objects

    async def _next(self, sources: _Sources, columns: Sequence[str]) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the next messages from the archive, or from the stream if the archive has none."""
        known = sequences_of(sources.objects, replace(self._selection, start_sequence=self.position + 1))
        upto = find_last_complete(known, self.position, sources.first_unsettled(time.time_ns()))
        steps = (
            self._read_archive(sources, known, upto, columns)
            if upto > self.position
            else self._read(sources, known, columns)
        )
        try:
            async with aclosing(steps):
                async for batch in steps:
                    yield batch
        except GoneError as gone:
            self._gone = gone.path

    async def _info(self) -> dict[str, Any]:
        info = await stream_info(self._place.natty, self._place.stream)
        if self._place.created:
            check_same(self._place.stream, self._place.created, info)
        return info

    async def _begin(self, sources: _Sources) -> None:
        """Record where the stream ends. Sequences before the first message of archive and stream are not a gap."""
        begin, self._target = max(1, sources.info["state"]["first_seq"]), sources.info["state"]["last_seq"]
        if archived := sequences_of(sources.objects):
            begin = min(begin, archived.first)
            if archived.last > self._target:
                self._target = (await self._info())["state"]["last_seq"]
            if archived.last > self._target:
                raise CaptureError(
                    f"the archive holds {self._place.stream} up to {archived.last:,}, but the stream ends at"
                    f" {self._target:,}: it was restored to an earlier state"
                )
        self.position = max(self.position, begin - 1)

    def _is_over(self) -> bool:
        end = self._selection.end_sequence
        return self.position >= (end if self._follow else min(end, self._target))

    # --- the archive -------------------------------------------------------------------------------------------------

    async def _read_archive(
        self, sources: _Sources, known: Sequences, upto: int, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read the archive up to the sequence `upto`."""
        selection = replace(self._selection, start_sequence=self.position + 1, end_sequence=upto)
        if missing := Sequences.from_range(self.position + 1, upto) - known:
            self._on_gap(missing)
        async for batch in self._merge(shares(sources.objects, selection), columns):
            yield batch
        self.position = upto

    async def _merge(
        self, plan: Sequence[Share], columns: Sequence[str], also: pa.RecordBatch | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        place = self._place
        if not plan:  # the stream has all messages
            if also:
                yield also
            return
        async with aclosing(merge_shares(place.store, plan, keys=place.keys, columns=columns, also=also)) as batches:
            async for batch in batches:
                yield batch
                self.position = batch.column("sequence")[-1].as_py()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _read(
        self, sources: _Sources, known: Sequences, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read the stream, up to a long run of messages in the archive."""
        place, last = self._place, self._selection.end_sequence
        if run := long_run(known):
            last = min(last, run - 1)
        async with aclosing(
            read_live(place.natty, place.stream, sources.info, self.position, follow=self._follow)
        ) as steps:
            async for seen in steps:
                rows = seen.rows.select(list(columns)) if seen.rows else None
                async for batch in self._fill_holes(rows, min(seen.upto, last), columns):
                    yield batch
                if self.position >= last:
                    return

    async def _fill_holes(
        self, rows: pa.RecordBatch | None, upto: int, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages up to this sequence: the stream's rows, and those that left it from the archive."""
        while self.position < upto:
            rows = slice_after(rows, self.position, upto)
            there = Sequences.from_iterable(rows.column("sequence").to_pylist() if rows else ())
            holes = Sequences.from_range(self.position + 1, upto) - there
            plan = await self._locate(holes) if holes else []
            try:
                async for batch in self._merge(plan, columns, rows):
                    yield batch
            except GoneError as gone:
                self._gone = gone.path
                continue
            self.position = upto

    async def _locate(self, holes: Sequences) -> list[Share]:
        """Return which objects give the messages that left the stream. Report those that are nowhere.

        A message that was purged or expired, and that was delivered to capture, may be stored soon: wait for it.
        DataLossError if it is nowhere, and the archive holds no later message.
        """
        while True:
            first = (await self._info())["state"]["first_seq"]
            doubtful = await self._find_doubtful()
            objects = await self._look()
            plan = narrow(shares(objects, _span(holes)), holes)
            missing = holes - Sequences.union_of(share.given for share in plan)
            gone = missing.within(holes.first, first - 1)
            if not gone or gone.isdisjoint(doubtful):
                break
            await asyncio.sleep(LOOK_AGAIN)
        archived = sequences_of(objects)
        lost = gone - Sequences.from_range(1, archived.last if archived else 0)
        if lost and self._gaps == "raise":
            raise DataLossError(
                f"{len(lost):,} messages of {self._place.stream} ({lost.describe()}) are neither in the archive nor in"
                f" the stream, which begins at {first:,}: they were purged, deleted, or expired before they were"
                f" captured. To continue after them, skip gaps"
            )
        if missing:
            self._on_gap(missing)
        return plan

    async def _find_doubtful(self) -> Sequences:
        """Return the sequences that were delivered to running nodes lately, and that they may be about to store."""
        now = asyncio.get_running_loop().time()
        given, furthest = await self._read_delivered()
        if not self._delivered or given > self._delivered[-1][1]:
            self._delivered.append((now, given))
        while self._delivered and self._delivered[0][0] <= now - PENDING_WITHIN:
            self._stored = self._delivered.popleft()[1]
        return Sequences.from_range(self._stored + 1, furthest)

    async def _read_delivered(self) -> tuple[int, int]:
        """Return up to which sequence all, and up to which any, messages were delivered to running nodes."""
        states = await consumer_states(self._place.natty, self._place.config)
        at_work = [one for one in states if one["num_waiting"] or one["num_ack_pending"]]
        if not at_work:
            return 0, 0
        return Position.of(at_work).delivered, max(int(one["delivered"]["stream_seq"]) for one in at_work)


def find_last_complete(archived: Sequences, position: int, stream_first: int) -> int:
    """Return up to which sequence the archive is complete after `position`. Pure.

    Before the stream's first sequence only the archive can have messages, so it is complete there. From that sequence
    on it is complete up to its first gap.
    """
    before = archived.within(position + 1, stream_first - 1)
    upto = before.last if before else position
    rest = archived - before
    if not rest:
        return upto
    first, last = next(rest.runs())
    return last if first <= max(upto + 1, stream_first) else upto


def long_run(archived: Sequences) -> int | None:
    """Return the start of the first run of LONG_RUN messages among the next RUNS runs; None if there is none."""
    for _, (first, last) in zip(range(RUNS), archived.runs(), strict=False):
        if last - first + 1 >= LONG_RUN:
            return first
    return None


def _span(holes: Sequences) -> Selection:
    return Selection(start_sequence=holes.first, end_sequence=holes.last)
