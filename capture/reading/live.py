"""Reads a stream in order after a sequence: the rest for a reader that has reached the end of an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from capture.archive.sequences import Sequences
from capture.errors import CaptureError
from capture.ingest.record import Records
from capture.ingest.source import stream_info
from capture.reading.direct_get import GIVE_UP
from capture.reading.stream_range import WORK_QUEUE, StreamFacts, StreamRange, read_range, rows_of
from natty import Batch, Natty, StreamNotFoundError
from natty.errors import ConnectionClosedError
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions, Vanished

READ_AHEAD = 8192  # messages
POLL = 0.25  # seconds between two requests for the state of a work queue


@dataclass(frozen=True)
class Seen:
    """One step of the reading, up to the sequence `upto`: rows of the envelope, or None if there are none."""

    upto: int
    rows: pa.RecordBatch | None = None


async def read_live(
    natty: Natty, stream: str, info: dict[str, Any], after: int, *, follow: bool = False
) -> AsyncGenerator[Seen, None]:
    """Yield what the stream holds after a sequence: up to its last one in `info`, or without end with `follow`.

    CaptureError if the stream is created again, or is reset to an earlier state, meanwhile; StreamNotFoundError if it
    is deleted.
    """
    if not follow:
        steps = _read_to_end(natty, info, after)
    elif info["config"]["retention"] == WORK_QUEUE:
        steps = _poll(natty, info, after)
    else:
        steps = _follow(natty, stream, info, after)
    async with aclosing(steps):
        async for seen in steps:
            yield seen


def check_same(stream: str, created: str, info: dict[str, Any]) -> None:
    """Raise CaptureError if the stream in `info` was not created at the time `created`."""
    if info["created"] != created:
        raise CaptureError(
            f"stream {stream} was created at {created}, but the server's was created at {info['created']}: it is"
            f" another stream, with other sequences than the archive's"
        )


def check_end(stream: str, archived: Sequences, last: int) -> None:
    """Raise CaptureError if the archive holds later messages than the stream has ever had; its last one is `last`."""
    if archived and archived.last > last:
        raise CaptureError(
            f"the archive holds {stream} up to {archived.last:,}, but the stream ends at"
            f" {last:,}: it was restored to an earlier state"
        )


async def check_unchanged(natty: Natty, stream: StreamFacts) -> None:
    """Raise CaptureError if the stream was created again, or restored to an earlier state, since these facts.

    Like direct gets it waits GIVE_UP for a server that is restarted.
    """
    info = await stream_info(natty, stream.name, created=stream.created, least=stream.last, timeout=GIVE_UP)
    check_same(stream.name, stream.created, info)
    if (last := info["state"]["last_seq"]) < stream.last:
        raise CaptureError(
            f"stream {stream.name} ends at {last:,}, and it ended at {stream.last:,} before: it was restored to an"
            f" earlier state while it was read"
        )


async def read_checked(natty: Natty, wanted: StreamRange) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of a range, as `read_range`. CaptureError if the stream is not the same one any more.

    That is checked after each answer, so no message of another stream is yielded.
    """
    async with aclosing(read_range(natty, wanted)) as each:
        async for messages in each:
            await check_unchanged(natty, wanted.stream)
            if len(messages):
                yield messages
    await check_unchanged(natty, wanted.stream)


async def _read_to_end(natty: Natty, info: dict[str, Any], after: int) -> AsyncGenerator[Seen, None]:
    stream = StreamFacts.of(info)
    async with aclosing(read_checked(natty, StreamRange(stream, after + 1, stream.last))) as each:
        async for messages in each:
            yield Seen(messages.column("sequence")[-1].as_py(), messages)
    yield Seen(stream.last)


async def _poll(natty: Natty, info: dict[str, Any], after: int) -> AsyncGenerator[Seen, None]:
    """Read a work queue, which allows no second consumer, without end."""
    while True:
        async with aclosing(_read_to_end(natty, info, after)) as steps:
            async for seen in steps:
                yield seen
                after = seen.upto
        await asyncio.sleep(POLL)
        created, stream = info["created"], info["config"]["name"]
        info = await stream_info(natty, stream)
        check_same(stream, created, info)


async def _follow(natty: Natty, stream: str, info: dict[str, Any], after: int) -> AsyncGenerator[Seen, None]:
    reader = Ordered(natty.jetstream, stream, OrderedOptions(start=after + 1, max_messages=READ_AHEAD))
    begun, last = False, info["state"]["last_seq"]
    async with aclosing(reader.__aiter__()) as steps:
        async for step in steps:
            match step:
                case Batch():
                    last = step.sequences[-1]
                    yield Seen(last, rows_of(Records.of(step)))
                case CaughtUp():
                    yield Seen(last)
                case Began() if begun:
                    raise CaptureError(
                        f"stream {stream} was created again, or restored to an earlier state, while it was read"
                    )
                case Began():
                    begun = True
                    check_same(stream, info["created"], await stream_info(natty, stream))
                case Vanished():
                    raise deleted_error(stream)
    raise ConnectionClosedError(f"the connection was closed while stream {stream} was read")


def deleted_error(stream: str) -> StreamNotFoundError:
    """Return the error that a stream does not exist any more."""
    return StreamNotFoundError(f"stream {stream} was deleted while it was read")
