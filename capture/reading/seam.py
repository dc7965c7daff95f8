"""From the archive to the live stream: no message is left out at the seam, and none comes twice.

What is told first decides what can be believed afterwards. A message that is not in the stream any more was never
given to capture, or capture is still about to store it, or it is durable in the archive. So whoever looks at the
stream first, then asks whether capture is at work, and then looks at the archive, knows of each message where it is, or
that it is nowhere. What is gone by the time it is read is looked for in the same order once more.
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
from capture.errors import CaptureError, DataLossError, NotStored
from capture.formats.envelope import SCHEMA
from capture.ingest.source import stream_info
from capture.reading.live import check_same, live
from capture.reading.merge import Gone, Look, after, merged
from capture.reading.shares import Selection, Share, held, shares
from capture.stores import Store
from natty import Natty

PENDING_WITHIN = 60.0
"""Seconds that a message which capture was given, and the stream holds no more, has to appear in the archive."""
RECENT = 300.0
"""Seconds for which a gap between archived messages may be one that a slower node is about to fill."""
LOOK_AGAIN = 0.2  # seconds
LONG_RUN = 100_000
"""So many messages without a gap are read from the archive rather than from the stream."""
RUNS = 1000  # that are looked at for a long one

OnGap = Callable[[Sequences], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a stream's messages are: the archive's store, what tells of its objects, the server, capture's consumers.

    `created` is when the server made the stream that was captured, as it writes that; "" if that is not known.
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
class _View:
    """What was told of the stream, and then of the archive."""

    info: dict[str, Any]
    objects: list[Stored]

    def unsettled(self, now_ns: int) -> int:
        """Return the sequence from which on the archive may not hold yet what the stream holds no more."""
        recent = [one.first for one in self.objects if one.max_ns > now_ns - RECENT * 1e9]
        return min([int(self.info["state"]["first_seq"]), *recent])


class Crossing:
    """Reads one stream, from the archive to what the stream holds. `position` is the last sequence that is settled.

    Sequences that are neither in the archive nor in the stream are told to `on_gap`. If the stream has let go of them
    behind the archive's end, it is a DataLossError unless `gaps` is "skip".
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
        self._gone = ""  # the last object that was not there any more
        self._told: deque[tuple[float, int]] = deque()  # when capture had been given which sequence
        self._stored = 0  # up to which sequence it was given messages so long ago that they are stored

    def __repr__(self) -> str:
        return f"Crossing({self._place.stream}, at {self.position})"

    async def batches(self, columns: Sequence[str] = SCHEMA.names) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield every selected message, ascending. It raises as `reading.merge.stored` and `reading.live.live` do."""
        wanted = [name for name in SCHEMA.names if name in {"sequence", *columns, *self._selection.columns}]
        view = await self._view()
        await self._begin(view)
        while not self._is_over():
            async with aclosing(self._next(view, wanted)) as batches:
                async for batch in batches:
                    if len(some := self._selection.of(batch)):
                        yield some.select(list(columns))
            if not self._is_over():
                view = await self._view()

    async def _view(self) -> _View:
        """Look at both, in the order in which nothing gets lost in between."""
        return _View(await self._info(), await self._look())

    async def _look(self) -> list[Stored]:
        objects = await self._place.look()
        if self._gone in {one.path for one in objects}:
            raise NotStored(f"there is no {self._gone} in {self._place.store.url}, and the archive still names it")
        return objects

    async def _next(self, view: _View, columns: Sequence[str]) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield what the archive settles; where that is nothing, what the stream holds."""
        known = held(view.objects, replace(self._selection, start_sequence=self.position + 1))
        upto = settled(known, self.position, view.unsettled(time.time_ns()))
        steps = self._archived(view, known, upto, columns) if upto > self.position else self._read(view, known, columns)
        try:
            async with aclosing(steps):
                async for batch in steps:
                    yield batch
        except Gone as gone:
            self._gone = gone.path

    async def _info(self) -> dict[str, Any]:
        info = await stream_info(self._place.natty, self._place.stream)
        if self._place.created:
            check_same(self._place.stream, self._place.created, info)
        return info

    async def _begin(self, view: _View) -> None:
        """Note where the stream ends. What is before all that the archive, or else the stream, holds is no gap."""
        begin, self._target = max(1, view.info["state"]["first_seq"]), view.info["state"]["last_seq"]
        if archived := held(view.objects):
            begin = min(begin, archived.first)
            if archived.last > self._target:
                self._target = (await self._info())["state"]["last_seq"]
            if archived.last > self._target:
                raise CaptureError(
                    f"the archive holds {self._place.stream} up to {archived.last:,}, and the stream ends at"
                    f" {self._target:,}: it was put back to an earlier state"
                )
        self.position = max(self.position, begin - 1)

    def _is_over(self) -> bool:
        end = self._selection.end_sequence
        return self.position >= (end if self._follow else min(end, self._target))

    # --- the archive -------------------------------------------------------------------------------------------------

    async def _archived(
        self, view: _View, known: Sequences, upto: int, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read the archive up to where it is settled."""
        selection = replace(self._selection, start_sequence=self.position + 1, end_sequence=upto)
        if missing := Sequences.from_range(self.position + 1, upto) - known:
            self._on_gap(missing)
        async for batch in self._merged(shares(view.objects, selection), columns):
            yield batch
        self.position = upto

    async def _merged(
        self, plan: Sequence[Share], columns: Sequence[str], also: pa.RecordBatch | None = None
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        place = self._place
        if not plan:  # as it is where the stream lacks nothing
            if also:
                yield also
            return
        async with aclosing(merged(place.store, plan, keys=place.keys, columns=columns, also=also)) as batches:
            async for batch in batches:
                yield batch
                self.position = batch.column("sequence")[-1].as_py()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _read(
        self, view: _View, known: Sequences, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read on in the stream, up to where the archive has many messages without a gap."""
        place, last = self._place, self._selection.end_sequence
        if run := long_run(known):
            last = min(last, run - 1)
        async with aclosing(live(place.natty, place.stream, view.info, self.position, follow=self._follow)) as steps:
            async for seen in steps:
                rows = seen.rows.select(list(columns)) if seen.rows else None
                async for batch in self._filled(rows, min(seen.upto, last), columns):
                    yield batch
                if self.position >= last:
                    return

    async def _filled(
        self, rows: pa.RecordBatch | None, upto: int, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield what there is up to this sequence: the stream's rows, and what the archive has of what lacks there."""
        while self.position < upto:
            rows = after(rows, self.position, upto)
            there = Sequences.from_iterable(rows.column("sequence").to_pylist() if rows else ())
            holes = Sequences.from_range(self.position + 1, upto) - there
            plan = await self._found(holes) if holes else []
            try:
                async for batch in self._merged(plan, columns, rows):
                    yield batch
            except Gone as gone:
                self._gone = gone.path
                continue
            self.position = upto

    async def _found(self, holes: Sequences) -> list[Share]:
        """Return which objects give what is not in the stream any more; tell what is nowhere.

        What the stream has let go of from its front, purged or expired, is waited for if capture was given it.
        DataLossError if that is nowhere, and the archive holds nothing behind it.
        """
        while True:
            first = (await self._info())["state"]["first_seq"]
            doubtful = await self._doubtful()
            objects = await self._look()
            plan = [share.only(holes) for share in shares(objects, _spanning(holes))]
            missing = holes - Sequences.union_of(share.given for share in plan)
            gone = missing.within(holes.first, first - 1)
            if not gone or gone.isdisjoint(doubtful):
                break
            await asyncio.sleep(LOOK_AGAIN)
        archived = held(objects)
        lost = gone - Sequences.from_range(1, archived.last if archived else 0)
        if lost and self._gaps == "raise":
            raise DataLossError(
                f"{len(lost):,} messages of {self._place.stream} ({lost.describe()}) are neither in the archive nor in"
                f" the stream, which begins at {first:,}: they were purged, deleted, or expired before they were"
                f" captured. To go on behind them, skip gaps"
            )
        if missing:
            self._on_gap(missing)
        return sorted((share for share in plan if share.given), key=lambda share: share.given.first)

    async def _doubtful(self) -> Sequences:
        """Return what nodes that are at work were given lately, and may be about to store."""
        now = asyncio.get_running_loop().time()
        given, furthest = await self._given()
        if not self._told or given > self._told[-1][1]:
            self._told.append((now, given))
        while self._told and self._told[0][0] <= now - PENDING_WITHIN:
            self._stored = self._told.popleft()[1]
        return Sequences.from_range(self._stored + 1, furthest)

    async def _given(self) -> tuple[int, int]:
        """Return up to which sequence nodes that are at work were given all messages, and up to which they were any."""
        states = await consumer_states(self._place.natty, self._place.config)
        at_work = [one for one in states if one["num_waiting"] or one["num_ack_pending"]]
        if not at_work:
            return 0, 0
        return Position.of(at_work).delivered, max(int(one["delivered"]["stream_seq"]) for one in at_work)


def settled(archived: Sequences, position: int, stream_first: int) -> int:
    """Return up to which sequence the archive tells all after `position`; pure.

    Below the stream's first sequence there is nothing but what the archive holds; from there on all up to its first
    gap. Behind its last message it tells nothing.
    """
    before = archived.within(position + 1, stream_first - 1)
    upto = before.last if before else position
    rest = archived - before
    if not rest:
        return upto
    first, last = next(rest.runs())
    return last if first <= max(upto + 1, stream_first) else upto


def long_run(archived: Sequences) -> int | None:
    """Return where the first run of LONG_RUN messages begins, among the next RUNS ones; None if none does."""
    for _, (first, last) in zip(range(RUNS), archived.runs(), strict=False):
        if last - first + 1 >= LONG_RUN:
            return first
    return None


def _spanning(holes: Sequences) -> Selection:
    return Selection(start_sequence=holes.first, end_sequence=holes.last)
