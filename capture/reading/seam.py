"""Reads from the archive on into the stream: at the seam no message is left out and none is repeated.

The order of the requests matters. A message that is not in the stream any more was never delivered to capture, or
capture is about to store it, or it is durable in the archive. So the reader queries the stream first, then capture's
consumers, then the archive. It then knows for each message where it is, or that it is nowhere. If a message is gone
when it is read, the reader searches again in the same order.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.errors import DataLossError
from capture.formats.envelope import SCHEMA
from capture.reading.live import check_end, read_live
from capture.reading.merge import GoneError, merge_shares, slice_after
from capture.reading.search import CapturedStream, Search
from capture.reading.shares import Selection, Share, sequences_of, shares

RECENT = 300.0
"""Seconds for which a slower node may still fill a gap between archived messages."""
LONG_RUN = 100_000
"""From this many messages without a gap on, they are read from the archive and not from the stream."""
RUNS = 1000  # runs that are searched for a long one

OnGap = Callable[[Sequences], None]


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
        captured: CapturedStream,
        selection: Selection,
        *,
        follow: bool = False,
        gaps: Literal["raise", "skip"] = "raise",
        on_gap: OnGap | None = None,
    ) -> None:
        self.position = selection.start_sequence - 1
        self._captured = captured
        self._selection = selection
        self._follow = follow
        self._gaps = gaps
        self._on_gap = on_gap or (lambda _: None)
        self._target = 0  # the last sequence of the stream when the reading began
        self._search = Search(captured)

    def __repr__(self) -> str:
        return f"Crossing({self._captured.stream}, at {self.position})"

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
        return _Sources(await self._captured.info(), await self._search.look())

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
            self._search.note_deleted(gone.path)

    async def _begin(self, sources: _Sources) -> None:
        """Record where the stream ends. Sequences before the first message of archive and stream are not a gap."""
        begin, self._target = max(1, sources.info["state"]["first_seq"]), sources.info["state"]["last_seq"]
        if archived := sequences_of(sources.objects):
            begin = min(begin, archived.first)
            if archived.last > self._target:
                self._target = (await self._captured.info(archived.last))["state"]["last_seq"]
            check_end(self._captured.stream, archived, self._target)
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
        captured = self._captured
        if not plan:  # the stream has all messages
            if also:
                yield also
            return
        async with aclosing(
            merge_shares(captured.store, plan, keys=captured.keys, columns=columns, also=also)
        ) as batches:
            async for batch in batches:
                yield batch
                self.position = batch.column("sequence")[-1].as_py()

    # --- the stream --------------------------------------------------------------------------------------------------

    async def _read(
        self, sources: _Sources, known: Sequences, columns: Sequence[str]
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Read the stream, up to a long run of messages in the archive."""
        captured, last = self._captured, self._selection.end_sequence
        if run := long_run(known):
            last = min(last, run - 1)
        async with aclosing(
            read_live(captured.natty, captured.stream, sources.info, self.position, follow=self._follow)
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
                self._search.note_deleted(gone.path)
                continue
            self.position = upto

    async def _locate(self, holes: Sequences) -> list[Share]:
        """Return which objects give the messages that left the stream. Report those that are nowhere.

        A message that was purged or expired, and that was delivered to capture, may be stored soon: wait for it.
        DataLossError if it is nowhere, and the archive holds no later message.
        """
        found = await self._search.find(holes)
        lost = found.gone
        if lost and (archived := sequences_of(await self._search.look(lost.last))):
            lost -= Sequences.from_range(1, archived.last)
        if lost and self._gaps == "raise":
            raise DataLossError(
                f"{len(lost):,} messages of {self._captured.stream} ({lost.describe()}) are neither in the archive nor"
                f" in the stream, which begins at {found.first:,}: they were purged, deleted, or expired before they"
                f" were captured. To continue after them, skip gaps"
            )
        if found.missing:
            self._on_gap(found.missing)
        return found.plan


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
