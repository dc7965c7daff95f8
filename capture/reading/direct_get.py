"""Batched direct get: `$JS.API.DIRECT.GET` with `batch` (ADR-31). Any replica answers, and no consumer is made."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from capture.errors import CaptureError
from capture.formats.envelope import SCHEMA
from capture.ingest.source import stream_info
from capture.reading.direct_answers import (
    NO_BLOCKS,
    Broken,
    Cut,
    Disallowed,
    Unbatched,
    is_batched,
    is_message,
    make_batch,
    of_answer,
    take_until,
)
from natty import Batch, Natty, NattyError, NotConnectedError, StreamNotFoundError
from natty.wire.background import map_concurrently
from natty.wire.message import RawMessage, parse_headers, status_of

REQUEST_MESSAGES = 8192
REQUEST_BYTES = 8 * 1024 * 1024
"""The size that one request asks for. At most three answers are held, so this bounds a reader's memory."""

SILENCE = 5.0
"""Seconds without data after which a request is repeated."""

GIVE_UP = 60.0
"""Seconds without an answer after which the reading fails. Spark retries the task then."""

DOUBT = 1.0
"""Seconds without a server that takes a request after which the stream's leader is asked for the reason."""

RETRY_DELAY = 0.1
AT_ONCE = 64  # concurrent requests for single messages
_EOB, _NOT_FOUND, _NO_RESPONDERS = 204, 404, 503


Made = TypeVar("Made")


class _Answer(NamedTuple, Generic[Made]):
    """The messages sent, their last sequence, and the number of messages after it."""

    messages: Made
    last: int
    pending: int


class DirectAnswers(ABC, Generic[Made]):
    """The messages of a stream from one sequence to another: `async for messages in direct`.

    Messages yielded together are not a snapshot: messages expire (`max_age`) while the server reads them, so some in
    the middle may be missing. It sends the next request before the caller has the answer to the last one. It ends when
    the answering server has nothing more. A replica may be behind its leader, so that may be before the end.
    """

    def __init__(
        self,
        natty: Natty,
        stream: str,
        first: int,
        last: int,
        *,
        subject: str = "",
    ) -> None:
        self.stream, self.first, self.last = stream, first, last
        self._natty, self._connection = natty, natty.connection
        self._subject = subject
        self._api = f"{natty.jetstream.prefix}.DIRECT.GET.{stream}".encode()
        self._inbox = self._connection.new_inbox()
        self._number = 0
        self._reply = b""
        self._raw: list[RawMessage] = []
        self._ended: asyncio.Future[RawMessage | None] = asyncio.get_running_loop().create_future()
        self._heard = 0.0
        self.complete = False
        """Whether the end of the range was reached: no server has more of it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream}, {self.first}–{self.last}, {self._number} requests)"

    @abstractmethod
    def make(self, raw: list[RawMessage], last: int, blocks: Mapping[int, bytes] = NO_BLOCKS) -> Made:
        """Return the messages of an answer up to the end of the range. Broken; Cut; Mirrored: see `of_answer`."""

    async def __aiter__(self) -> AsyncGenerator[Made, None]:
        """Yield the messages of each answer.

        Unsuitable; CaptureError if the request is refused, or no server answers for GIVE_UP; StreamNotFoundError.
        """
        async with self._subscribe():
            asking = asyncio.create_task(self._ask(self.first))
            try:
                while (answer := await asking) is not None:
                    self.complete = answer.last >= self.last
                    more = answer.pending > 0 and not self.complete
                    if more:
                        asking = asyncio.create_task(self._ask(answer.last + 1))
                    yield answer.messages
                    if not more:
                        return
            finally:
                asking.cancel()

    @asynccontextmanager
    async def _subscribe(self) -> AsyncIterator[None]:
        subscription = self._connection.subscribe(f"{self._inbox.decode()}.*", self._receive)
        self._connection.listeners.append(self._on_event)
        self._connection.refusals.listeners.append(self._on_refusal)
        try:
            yield
        finally:
            self._connection.listeners.remove(self._on_event)
            self._connection.refusals.listeners.remove(self._on_refusal)
            subscription.close()

    async def _ask(self, position: int) -> _Answer[Made] | None:
        """Return the next answer, None if there are no more messages; retry after any failure, until GIVE_UP."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while loop.time() < begun + GIVE_UP:
            ended = await self._once(position)
            status, text = status_of(ended[2]) if ended else (_NO_RESPONDERS, "")
            if status == _NOT_FOUND:
                return None
            if status == _EOB and ended is not None and self._raw:
                said = parse_headers(ended[2])
                last, pending = (int(said.get(name, ["0"])[0]) for name in ("Nats-Last-Sequence", "Nats-Num-Pending"))
                with suppress(Broken):
                    return _Answer(await self._make_whole(self._raw, last), last, pending)
            if status not in (_EOB, _NO_RESPONDERS):
                raise CaptureError(f"stream {self.stream} can't be read by direct get: {status} {text}")
            if status == _NO_RESPONDERS and loop.time() > begun + DOUBT:
                await self._check_stream()
            await asyncio.sleep(RETRY_DELAY)
        raise CaptureError(
            f"no server answered a direct get of stream {self.stream} for {GIVE_UP:g} s: check that a server runs, "
            "that the stream has a leader, and that it allows direct get"
        )

    async def _make_whole(self, raw: list[RawMessage], last: int) -> Made:
        """Return the messages of an answer. The stream's leader is asked for header blocks that it does not have.

        Broken: the answer is incomplete, or a message has left the stream. Mirrored.
        """
        try:
            return self.make(raw, last)
        except Cut as error:
            found = await map_concurrently(error.sequences, self._read_block, at_once=AT_ONCE)
            blocks = dict(zip(error.sequences, found, strict=True))
        return self.make(raw, last, blocks)

    async def _read_block(self, sequence: int) -> bytes:
        found = await self._natty.jetstream.read(self.stream, sequence=sequence, timeout=GIVE_UP)
        if found is None:
            raise Broken
        return found.header_block

    async def _check_stream(self) -> None:
        """Raise StreamNotFoundError or Disallowed if that is why no server takes the request."""
        try:
            info = await stream_info(self._natty, self.stream, timeout=DOUBT)
        except StreamNotFoundError:
            raise
        except NattyError:  # it has no leader, or no server is connected: both may change
            return
        if not info["config"].get("allow_direct"):
            raise Disallowed("its configuration does not allow them")

    async def _once(self, position: int) -> RawMessage | None:
        """Send a request with its own reply subject, and return the end of its answer; None if it did not arrive."""
        loop = asyncio.get_running_loop()
        self._number += 1
        self._reply = b"%b.%d" % (self._inbox, self._number)
        self._raw, self._ended, self._heard = [], loop.create_future(), loop.time()
        wanted = min(REQUEST_MESSAGES, self.last - position + 1)
        body: dict[str, Any] = {"seq": position, "batch": wanted, "max_bytes": REQUEST_BYTES}
        if self._subject:
            body["next_by_subj"] = self._subject
        try:
            self._connection.send(self._api, msgspec.json.encode(body), reply=self._reply)
        except NotConnectedError:
            return None
        while (silent := loop.time() - self._heard) < SILENCE:
            await asyncio.wait({self._ended}, timeout=SILENCE - silent)
            if self._ended.done():
                return self._ended.result()
        return None

    def _receive(self, batch: Batch) -> None:
        mine = [raw for raw in batch.raw if raw[0] == self._reply]
        if not mine:
            return
        self._heard = asyncio.get_running_loop().time()
        if is_message(mine[-1]):
            self._raw += mine
            if not is_batched(mine[-1]) and not self._ended.done():
                self._ended.set_exception(Unbatched("a server before 2.11 answers"))
        else:
            self._raw += mine[:-1]
            self._end(mine[-1])

    def _on_event(self, event: str) -> None:
        if event != "connected":
            self._end(None)

    def _on_refusal(self, text: str) -> None:
        if self._api in text.encode() and not self._ended.done():
            self._ended.set_exception(CaptureError(f"stream {self.stream} can't be read, it is not permitted: {text}"))

    def _end(self, with_: RawMessage | None) -> None:
        if not self._ended.done():
            self._ended.set_result(with_)


class DirectGet(DirectAnswers[pa.RecordBatch]):
    """The messages as rows with these columns and `sequence`."""

    def __init__(
        self,
        natty: Natty,
        stream: str,
        first: int,
        last: int,
        *,
        subject: str = "",
        columns: Sequence[str] = SCHEMA.names,
    ) -> None:
        super().__init__(natty, stream, first, last, subject=subject)
        self._columns = columns

    def make(self, raw: list[RawMessage], last: int, blocks: Mapping[int, bytes] = NO_BLOCKS) -> pa.RecordBatch:
        """Return the rows of an answer up to the end of the range. Broken; Cut; Mirrored: see `of_answer`."""
        return take_until(of_answer(raw, self.stream, last, self._columns, blocks=blocks), self.last)


class DirectBatches(DirectAnswers[Batch]):
    """The messages as a consumer delivers them, with the ack subject that they would have."""

    def make(self, raw: list[RawMessage], last: int, blocks: Mapping[int, bytes] = NO_BLOCKS) -> Batch:
        """Return the messages of an answer up to the end of the range. Broken; Cut; Mirrored: see `of_answer`."""
        batch = make_batch(raw, self.stream, last, blocks=blocks)
        return Batch(batch.raw[: bisect_right(batch.sequences, self.last)])
