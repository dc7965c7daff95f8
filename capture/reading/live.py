"""Reads a stream in order after a sequence: the rest for a reader that has reached the end of an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from capture.errors import CaptureError
from capture.formats.envelope import to_table
from capture.ingest.record import Records
from capture.ingest.source import stream_info
from natty import Batch, Natty, StreamNotFoundError
from natty.config.units import parse_time
from natty.errors import ConnectionClosedError
from natty.jetstream import StoredMessage
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions, Vanished

READ_AHEAD = 8192  # messages
AT_ONCE = 64  # concurrent requests for messages of a work queue
POLL = 0.25  # seconds between two requests for the state of a work queue
WORK_QUEUE = "workqueue"


@dataclass(frozen=True)
class Seen:
    """One step of the reading, up to the sequence `upto`: rows of the envelope, or None if there are none."""

    upto: int
    rows: pa.RecordBatch | None = None


async def read_live(
    natty: Natty, stream: str, info: dict[str, Any], after: int, *, follow: bool = False
) -> AsyncGenerator[Seen, None]:
    """Yield what the stream holds after a sequence: up to its last one in `info`, or without end with `follow`.

    A work queue allows no second consumer, so its messages are read one by one. CaptureError if the stream is created
    again, or is reset to an earlier state, meanwhile; StreamNotFoundError if it is deleted.
    """
    last = info["state"]["last_seq"]
    if info["config"]["retention"] == WORK_QUEUE:
        steps = _read_one_by_one(natty, stream, info, after, follow)
    else:
        steps = _read(natty, stream, info, after)
    async with aclosing(steps):
        async for seen in steps:
            yield seen
            if not follow and seen.upto >= last:
                return


def check_same(stream: str, created: str, info: dict[str, Any]) -> None:
    """Raise CaptureError if the stream in `info` was not created at the time `created`."""
    if info["created"] != created:
        raise CaptureError(
            f"stream {stream} was created at {created}, but the server's was created at {info['created']}: it is"
            f" another stream, with other sequences than the archive's"
        )


async def _read(natty: Natty, stream: str, info: dict[str, Any], after: int) -> AsyncGenerator[Seen, None]:
    reader = Ordered(natty.jetstream, stream, OrderedOptions(start=after + 1, max_messages=READ_AHEAD))
    begun, last = False, info["state"]["last_seq"]
    async with aclosing(reader.__aiter__()) as steps:
        async for step in steps:
            match step:
                case Batch():
                    last = step.sequences[-1]
                    yield Seen(last, _rows(Records.of(step)))
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
                    raise StreamNotFoundError(f"stream {stream} was deleted while it was read")
    raise ConnectionClosedError(f"the connection was closed while stream {stream} was read")


async def _read_one_by_one(
    natty: Natty, stream: str, info: dict[str, Any], after: int, follow: bool
) -> AsyncGenerator[Seen, None]:
    while True:
        last = info["state"]["last_seq"]
        while after < last:
            upto = min(after + AT_ONCE, last)
            found = await asyncio.gather(
                *(natty.jetstream.read(stream, sequence=one) for one in range(after + 1, upto + 1))
            )
            messages = [one for one in found if one is not None]
            yield Seen(upto, _rows(_records(stream, messages)) if messages else None)
            after = upto
        yield Seen(last)
        await asyncio.sleep(POLL)
        created, info = info["created"], await stream_info(natty, stream)
        check_same(stream, created, info)


def _records(stream: str, messages: list[StoredMessage]) -> Records[Any]:
    return Records(
        stream=stream,
        sequences=[one.sequence for one in messages],
        times_ns=[parse_time(one.time) for one in messages],
        subjects=[one.subject.encode() for one in messages],
        header_blocks=[one.header_block for one in messages],
        payloads=[one.data for one in messages],
        deliveries=[1] * len(messages),
        values=[None] * len(messages),
    )


def _rows(records: Records[Any]) -> pa.RecordBatch:
    (batch,) = to_table(records).combine_chunks().to_batches()
    return batch
