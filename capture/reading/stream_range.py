"""Reads a range of a stream's sequences to its end: what the stream's leader holds of it, in order.

Batched direct gets read it where stream and server allow them: no consumer is made, any replica answers. Otherwise an
ordered consumer reads it, and of a work queue, which takes no second consumer, requests for single messages.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from capture.errors import CaptureError, DataLossError
from capture.formats.envelope import SCHEMA, to_table
from capture.ingest.record import Records
from capture.reading.direct_answers import Unsuitable
from capture.reading.direct_get import AT_ONCE, GIVE_UP, REQUEST_BYTES, REQUEST_MESSAGES, RETRY_DELAY, DirectGet
from natty import Batch, Natty
from natty.config.units import parse_time
from natty.jetstream import StoredMessage
from natty.names import check_name
from natty.pulling.ordered import Began, CaughtUp, Ordered, OrderedOptions
from natty.streams import led_info
from natty.wire.servers import NEEDS

BATCHES = NEEDS["several direct gets at once"]
WORK_QUEUE = "workqueue"
log = logging.getLogger("capture.stream_range")


@dataclass(frozen=True)
class StreamFacts:
    """The facts that the stream's leader reports: which stream of this name it is, and which sequences it holds."""

    name: str
    created: str
    first: int
    last: int
    direct: bool
    """Whether it is read by direct get."""
    work_queue: bool = False
    messages: int = 0

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> StreamFacts:
        """Return them from the answer to `STREAM.INFO`. An empty stream's first sequence is the next one's."""
        config, state = info["config"], info["state"]
        first = state["first_seq"] if state["messages"] else state["last_seq"] + 1
        direct, work_queue = bool(config.get("allow_direct")), config.get("retention") == WORK_QUEUE
        return cls(config["name"], info["created"], first, state["last_seq"], direct, work_queue, state["messages"])


@dataclass(frozen=True)
class StreamRange:
    """The messages of a stream from one sequence to another, both included."""

    stream: StreamFacts
    first: int
    last: int

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream.name}, {self.first}–{self.last})"


async def stream_facts(natty: Natty, stream: str, *, created: str = "", least: int = 0) -> StreamFacts:
    """Return the facts that the stream's leader reports; the options are those of `led_info`. StreamNotFoundError."""
    name = check_name("stream", stream)
    return StreamFacts.of(await led_info(natty.jetstream, name, created=created, least=least))


async def read_range(
    natty: Natty, wanted: StreamRange, *, subject: str = "", columns: Sequence[str] = SCHEMA.names
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the messages of a range in order, each once, until the leader holds no more of it.

    They are rows of the envelope with these columns and `sequence`, in SCHEMA's order. With `subject`, only messages
    that match it; it may have wildcards. Messages that the stream does not hold are left out: compare the sequences.
    DataLossError if a consumer reads the stream and it is created again meanwhile; for direct gets the caller compares
    the creation time. StreamNotFoundError if it is deleted; CaptureError if no server answers for GIVE_UP.
    """
    reader = _Reader(natty, wanted, subject, columns)
    async with aclosing(reader.read()) as each:
        async for messages in each:
            yield messages


class _Reader:
    def __init__(self, natty: Natty, wanted: StreamRange, subject: str, columns: Sequence[str]) -> None:
        self._natty, self._stream, self._last = natty, wanted.stream, wanted.last
        self._subject = subject
        self._columns = [name for name in SCHEMA.names if name == "sequence" or name in columns]
        self._position = wanted.first  # the next sequence to read

    def __repr__(self) -> str:
        return f"_Reader({self._stream.name}, at {self._position} of {self._last})"

    async def read(self) -> AsyncGenerator[pa.RecordBatch, None]:
        direct = self._stream.direct and BATCHES.is_met_by(self._natty.connection.server_version)
        if direct:
            try:
                async with aclosing(self._by_direct_get()) as each:
                    async for messages in each:
                        yield messages
            except Unsuitable as error:
                log.warning(
                    "stream %s can't be read by direct gets, %s: other requests read it", self._stream.name, error
                )
                direct = False
        if not direct and self._position <= self._last:
            steps = self._by_message() if self._stream.work_queue else self._by_consumer()
            async with aclosing(steps) as each:
                async for messages in each:
                    yield messages

    async def _by_direct_get(self) -> AsyncGenerator[pa.RecordBatch, None]:
        loop = asyncio.get_running_loop()
        heard = loop.time()
        while self._position <= self._last:
            direct = DirectGet(
                self._natty,
                self._stream.name,
                self._position,
                self._last,
                subject=self._subject,
                columns=self._columns,
            )
            async with aclosing(aiter(direct)) as each:
                async for messages in each:
                    heard = loop.time()
                    if len(messages):
                        self._position = messages.column("sequence")[-1].as_py() + 1
                        yield messages
            if direct.complete or not await self._leader_has_more():
                return
            if loop.time() - heard > GIVE_UP:
                raise CaptureError(
                    f"the replicas of stream {self._stream.name} have been behind their leader for {GIVE_UP:g} s"
                )
            await asyncio.sleep(RETRY_DELAY)

    async def _leader_has_more(self) -> bool:
        """Ask the stream's leader: a server that answers a direct get may be behind it."""
        return await self._next() is not None

    async def _next(self) -> StoredMessage | None:
        """Return the leader's next message of the range; None if there is none."""
        found = await self._natty.jetstream.read(
            self._stream.name, sequence=self._position, subject=self._subject or ">", timeout=GIVE_UP
        )
        return found if found is not None and found.sequence <= self._last else None

    async def _by_consumer(self) -> AsyncGenerator[pa.RecordBatch, None]:
        filters = (self._subject,) if self._subject else ()
        options = OrderedOptions(
            filters=filters, start=self._position, max_messages=REQUEST_MESSAGES, max_bytes=REQUEST_BYTES
        )
        began = caught_up = False
        waiting, size = Records[None](), 0
        async with aclosing(aiter(Ordered(self._natty.jetstream, self._stream.name, options))) as steps:
            async for step in steps:
                match step:
                    case Batch():
                        waiting.extend(self._take(Records.of(step)))
                        size += sum(map(len, step.payloads)) + sum(map(len, step.header_blocks))
                    case CaughtUp():
                        caught_up = True
                    case Began() if not began:
                        began = True
                    case _:
                        raise recreated_error(self._stream.name)
                if self._position > self._last or (caught_up and not await self._leader_has_more()):
                    break
                if len(waiting) >= REQUEST_MESSAGES or size >= REQUEST_BYTES:
                    yield self._rows_of(waiting)
                    waiting, size = Records[None](), 0
        if len(waiting):
            yield self._rows_of(waiting)

    async def _by_message(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if self._subject:
            while (one := await self._next()) is not None:
                yield self._rows_of(self._take(_of_stored(self._stream.name, [one])))
            return
        while self._position <= self._last:
            some = range(self._position, min(self._position + AT_ONCE, self._last + 1))
            found = await asyncio.gather(*map(self._get, some))
            if messages := [one for one in found if one is not None]:
                yield self._rows_of(_of_stored(self._stream.name, messages))
            self._position = some.stop

    async def _get(self, sequence: int) -> StoredMessage | None:
        return await self._natty.jetstream.read(self._stream.name, sequence=sequence)

    def _take(self, came: Records[None]) -> Records[None]:
        """Return the messages of this range."""
        self._position = came.sequences[-1] + 1
        return came.select(range(bisect_right(came.sequences, self._last)))

    def _rows_of(self, records: Records[None]) -> pa.RecordBatch:
        return rows_of(records).select(self._columns)


def rows_of(records: Records[Any]) -> pa.RecordBatch:
    """Return messages, at least one, as rows of the envelope."""
    (batch,) = to_table(records).combine_chunks().to_batches()
    return batch


def recreated_error(stream: str) -> DataLossError:
    """Return the error that a stream is another one now."""
    return DataLossError(f"stream {stream} was deleted and created again while it was being read")


def _of_stored(stream: str, messages: list[StoredMessage]) -> Records[None]:
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
