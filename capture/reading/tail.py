"""One answer over archive and stream: a snapshot of the archive's objects, and the messages that only the stream holds.

The stream's last sequence is read first, then the archive's objects. The exact sets of the objects say which sequences
the archive gives; the stream gives the others, up to its last one. If a message has left the stream when it is read, it
is searched for in the archive again: capture may have stored it in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from capture.archive.identity import STREAMS, archive_name, list_claimed
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.archive.trust import Trust
from capture.config.settings import CaptureConfig
from capture.errors import ManifestError
from capture.formats.envelope import SCHEMA
from capture.reading.direct_answers import list_sequences
from capture.reading.live import check_end, check_unchanged, deleted_error
from capture.reading.merge import GoneError, Look, make_look, merge_shares
from capture.reading.search import CapturedStream, Search
from capture.reading.shares import narrow, sequences_of
from capture.reading.stream_range import StreamFacts, StreamRange, read_range
from capture.stores import Store
from natty import Natty, StreamNotFoundError
from natty.wire.background import cancel_all

GAP = 256
"""Sequences that the archive gives, between two that it does not: up to this many are read again and dropped, since
another request costs more."""
PIECE = 4096
"""Messages of a range that is read by itself: rows are made of one while the server sends the next."""
AT_ONCE = 2  # ranges of a stream that are read concurrently

OnMissing = Callable[[str], None]
OnGap = Callable[[str, Sequences], None]
"""Called with a stream and its messages that left it during the reading and that the archive does not hold."""


@dataclass(frozen=True)
class Tail:
    """The messages that only the stream held when the snapshot was taken: these sequences of it."""

    captured: CapturedStream
    stream: StreamFacts
    wanted: Sequences
    search: Search


@dataclass(frozen=True)
class Snapshot:
    """The archive's objects, and for each stream the messages that follow them. Together: each message once."""

    objects: list[Stored]
    tails: list[Tail]

    async def read_tails(self, on_gap: OnGap) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the messages of all tails, with all columns. Raises as `read_tail`."""
        for tail in self.tails:
            async with aclosing(read_tail(tail, on_gap=on_gap)) as batches:
                async for batch in batches:
                    yield batch


async def list_captured(config: CaptureConfig, store: Store, natty: Natty, trust: Trust) -> list[CapturedStream]:
    """Return each stream of the archive, or the configured one.

    ConfigError; ManifestError if the archive does not say which streams it holds.
    """
    name, keys, claimed = await archive_name(store), config.keys(), await list_claimed(store)
    if not claimed:
        raise ManifestError(
            f"the archive in {store.url} does not say which streams it holds: it has no records in {STREAMS}"
        )
    return [
        CapturedStream(
            store=store,
            look=make_look(store, one.stream, natty=natty, archive=name, trust=trust),
            natty=natty,
            config=msgspec.structs.replace(config, stream=one.stream),
            created=one.created,
            keys=keys,
        )
        for one in claimed
        if config.stream in ("", one.stream)
    ]


async def take_snapshot(streams: Sequence[CapturedStream], look: Look, on_missing: OnMissing) -> Snapshot:
    """Return where the messages of these streams are now; `look` lists the archive's objects of all of them.

    Every message that a stream acknowledged before the call is in it, unless it was removed without being captured. Of
    a stream that does not exist any more there are the archive's messages, and `on_missing` is called with its name.
    CaptureError if a stream was created again, or restored to an earlier state.
    """
    begun = []
    for captured in streams:
        try:
            begun.append(await _begin(captured))
        except StreamNotFoundError:
            on_missing(captured.stream)
    objects = await look()
    return Snapshot(objects, [await _follow_on(objects, *one) for one in begun])


async def _begin(captured: CapturedStream) -> tuple[Search, StreamFacts]:
    search = Search(captured)
    await search.settle()
    return search, StreamFacts.of(await captured.info())


async def _follow_on(objects: list[Stored], search: Search, stream: StreamFacts) -> Tail:
    captured = search.captured
    held = sequences_of(one for one in objects if one.stream == captured.stream)
    if held and held.last > stream.last:  # they were stored after the stream's state was read
        stream = replace(stream, last=StreamFacts.of(await captured.info(held.last)).last)
        check_end(captured.stream, held, stream.last)
        stream = replace(stream, last=held.last)
    return Tail(captured, stream, Sequences.from_range(stream.first, stream.last) - held, search)


async def read_tail(
    tail: Tail, *, columns: Sequence[str] = SCHEMA.names, on_gap: OnGap = lambda *_: None
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of a tail, each once and in any order, with these columns.

    Raises as `stream_range.read_range` and `merge.merge_shares` do. CaptureError at the end if the stream was created
    again, or restored to an earlier state, meanwhile: the rows that were yielded are not an answer then.
    StreamNotFoundError if it was deleted.
    """
    left = tail.wanted
    try:
        async with aclosing(_read_stream(tail, columns)) as each:
            async for rows in each:
                if mine := _sequences_in(rows) & left:
                    left -= mine
                    yield _pick(rows, mine).select(list(columns))
        await check_unchanged(tail.captured.natty, tail.stream)
        async with aclosing(_read_archive(tail, left, columns, on_gap)) as found:
            async for batch in found:
                yield batch
    except StreamNotFoundError as error:
        raise deleted_error(tail.captured.stream) from error


async def _read_archive(
    tail: Tail, left: Sequences, columns: Sequence[str], on_gap: OnGap
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages that have left the stream: capture may have stored them since the objects were listed."""
    while left:
        found = await tail.search.find(left)
        if found.gone:
            on_gap(tail.captured.stream, found.gone)
        left -= found.missing
        plan = narrow(found.plan, left)
        if not plan:
            return
        try:
            async with aclosing(
                merge_shares(tail.captured.store, plan, keys=tail.captured.keys, columns=_with_sequence(columns))
            ) as batches:
                async for batch in batches:
                    left -= Sequences.from_iterable(batch.column("sequence").to_pylist())
                    yield batch.select(list(columns))
        except GoneError as gone:
            tail.search.note_deleted(gone.path)


def _with_sequence(columns: Sequence[str]) -> list[str]:
    return [name for name in SCHEMA.names if name == "sequence" or name in columns]


def _sequences_in(rows: pa.RecordBatch) -> Sequences:
    """Return the sequences of rows in order."""
    column = rows.column("sequence")
    first, last = column[0].as_py(), column[-1].as_py()
    if last - first + 1 == len(rows):
        return Sequences.from_range(first, last)
    return Sequences.from_iterable(list_sequences(rows))


def _pick(rows: pa.RecordBatch, mine: Sequences) -> pa.RecordBatch:
    if len(mine) == len(rows):
        return rows
    return rows.take(pa.array([at for at, one in enumerate(list_sequences(rows)) if one in mine]))


async def _read_stream(tail: Tail, columns: Sequence[str]) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of the ranges that hold the tail; AT_ONCE ranges are read concurrently."""
    ranges = cut(cover(tail.wanted), count_sequences(tail.stream))
    arrived: asyncio.Queue[pa.RecordBatch | BaseException | None] = asyncio.Queue()  # None: a reader has ended
    room = asyncio.Semaphore(AT_ONCE)  # for answers that were not yielded yet

    async def read() -> None:
        try:
            for span in ranges:
                wanted = StreamRange(tail.stream, *span)
                async with aclosing(read_range(tail.captured.natty, wanted, columns=columns)) as each:
                    async for rows in each:
                        await room.acquire()
                        arrived.put_nowait(rows)
            arrived.put_nowait(None)
        except BaseException as error:
            arrived.put_nowait(error)
            raise

    readers = [asyncio.create_task(read()) for _ in range(AT_ONCE)]
    try:
        reading = AT_ONCE
        while reading:
            match await arrived.get():
                case None:
                    reading -= 1
                case BaseException() as error:
                    raise error
                case rows:
                    room.release()
                    yield rows
    finally:
        await cancel_all(readers)


def cover(wanted: Sequences) -> Iterator[tuple[int, int]]:
    """Yield ranges that hold all of these sequences, and between them at most GAP others in one place. Pure."""
    span: tuple[int, int] | None = None
    for first, last in wanted.runs():
        if span is not None and first - span[1] - 1 <= GAP:
            span = span[0], last
            continue
        if span is not None:
            yield span
        span = first, last
    if span is not None:
        yield span


def cut(ranges: Iterable[tuple[int, int]], piece: int) -> Iterator[tuple[int, int]]:
    """Yield these ranges in pieces of at most `piece` sequences. Pure."""
    for first, last in ranges:
        for begin in range(first, last + 1, piece):
            yield begin, min(begin + piece - 1, last)


def count_sequences(stream: StreamFacts) -> int:
    """Return how many sequences hold about PIECE messages: many more, if most messages of the stream are deleted."""
    return max(PIECE, PIECE * (stream.last - stream.first + 1) // max(1, stream.messages))
