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
    Answer,
    Broken,
    Cut,
    Disallowed,
    Unsuitable,
    is_message,
    take_until,
)
from natty import Batch, Natty, NattyError, NotConnectedError, StreamNotFoundError
from natty.wire.background import map_concurrently, wait_until_set
from natty.wire.message import parse_headers, status_of

REQUEST_MESSAGES = 8192
REQUEST_BYTES = 8 * 1024 * 1024
"""The size that one request asks for. At most four answers are held, so this bounds a reader's memory."""

SILENCE = 5.0
"""Seconds without data after which a request is repeated."""

GIVE_UP = 60.0
"""Seconds without an answer after which the reading fails. Spark retries the task then."""

DOUBT = 1.0
"""Seconds without a server that takes a request after which the stream's leader is asked for the reason."""

RETRY_DELAY = 0.1
TURNS = 2  # of the loop until a request is written: natty joins what one turn sends, uvloop what its transports write
AT_ONCE = 64  # concurrent requests for single messages
_EOB, _NOT_FOUND, _NO_RESPONDERS = 204, 404, 503


Made = TypeVar("Made")


class _Request:
    """A request that was sent, and what came as its answer."""

    def __init__(self, reply: bytes, stream: str) -> None:
        self.reply = reply
        self.answer = Answer(stream)
        self.heard = asyncio.get_running_loop().time()
        self.ended = asyncio.Event()
        self.end: bytes | Exception | None = None
        """The header block of the answer's end, or what refuses the request; None if the connection was lost."""

    def __repr__(self) -> str:
        return f"_Request({self.reply!r}, {len(self.answer)} messages, ended: {self.ended.is_set()})"

    def receive(self, batch: Batch) -> None:
        """Take what a read of the socket has brought, also the rest of the answer to an earlier request."""
        self.heard = asyncio.get_running_loop().time()
        if batch.subjects.count(self.reply) != len(batch):
            batch = Batch([raw for raw in batch.raw if raw[0] == self.reply])
        if not len(batch) or self.ended.is_set():
            return
        last = batch.header_blocks[-1]
        if ends := not is_message(last):
            batch = Batch(batch.raw[:-1])
        try:
            if len(batch):
                self.answer.add(batch)
            if ends:
                self.finish(last)
        except (Broken, Unsuitable) as error:
            self.finish(error)

    def finish(self, end: bytes | Exception | None) -> None:
        """Note the end, if there is none yet."""
        if not self.ended.is_set():
            self.end = end
            self.ended.set()

    async def wait(self) -> bytes | None:
        """Return the end of the answer; None if it does not arrive, or without some of its messages.

        Raises what refuses the request; Unsuitable.
        """
        loop = asyncio.get_running_loop()
        while not self.ended.is_set() and (silent := loop.time() - self.heard) < SILENCE:
            await wait_until_set(self.ended, SILENCE - silent)
        match self.end:
            case Broken():
                return None
            case Exception() as error:
                raise error
            case end:
                return end


class _Answer(NamedTuple, Generic[Made]):
    """The messages sent, their last sequence, the number of messages after it, and the request for these, if any."""

    messages: Made
    last: int
    pending: int
    following: _Request | None = None


class DirectAnswers(ABC, Generic[Made]):
    """The messages of a stream from one sequence to another: `async for messages in direct`.

    Messages yielded together are not a snapshot: messages expire (`max_age`) while the server reads them, so some in
    the middle may be missing. It sends the next request when the last message of an answer has come, so the server
    reads while the answer is parsed and used. It ends when the answering server has nothing more. A replica may be
    behind its leader, so that may be before the end.
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
        self._request = _Request(b"", stream)
        self.complete = False
        """Whether the end of the range was reached: no server has more of it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.stream}, {self.first}–{self.last}, {self._number} requests)"

    @abstractmethod
    def make(self, answer: Answer, blocks: Mapping[int, bytes] = NO_BLOCKS) -> Made:
        """Return the messages of an answer up to the end of the range. Cut: see `Answer.rows`."""

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
                        asking = asyncio.create_task(self._ask(answer.last + 1, answer.following))
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

    async def _ask(self, position: int, sent: _Request | None = None) -> _Answer[Made] | None:
        """Return the next answer, None if there are no more messages; retry after any failure, until GIVE_UP.

        `sent` is the request for it, if it was sent already.
        """
        loop = asyncio.get_running_loop()
        begun, was_broken = loop.time(), False
        while loop.time() < begun + GIVE_UP:
            request, sent = sent or self._send(position), None
            end = await request.wait() if request else None
            status, text = status_of(end) if end else (_NO_RESPONDERS, "")
            was_broken = status == _EOB or (request is not None and isinstance(request.end, Broken))
            if status == _NOT_FOUND:
                return None
            if status == _EOB and request and end:
                said = parse_headers(end)
                last, pending = (int(said.get(name, ["0"])[0]) for name in ("Nats-Last-Sequence", "Nats-Num-Pending"))
                if request.answer.sequences[-1:] == [last]:  # or messages at its end are missing
                    following = await self._send_ahead(last + 1) if pending and last < self.last else None
                    with suppress(Broken):
                        return _Answer(await self._make_whole(request.answer), last, pending, following)
            if status not in (_EOB, _NO_RESPONDERS):
                raise CaptureError(f"stream {self.stream} can't be read by direct get: {status} {text}")
            if status == _NO_RESPONDERS and loop.time() > begun + DOUBT:
                await self._check_stream()
            await asyncio.sleep(RETRY_DELAY)
        if was_broken:
            raise CaptureError(
                f"for {GIVE_UP:g} s every answer to a direct get of stream {self.stream} lacked messages: check the "
                "servers' logs for routes that are too slow"
            )
        raise CaptureError(
            f"no server answered a direct get of stream {self.stream} for {GIVE_UP:g} s: check that a server runs, "
            "that the stream has a leader, and that it allows direct get"
        )

    async def _send_ahead(self, position: int) -> _Request | None:
        """Send a request as `_send`; return when it is written."""
        request = self._send(position)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return request

    async def _make_whole(self, answer: Answer) -> Made:
        """Return the messages of an answer. The stream's leader is asked for header blocks that it does not have.

        Such a message is left out if it has left the stream. Broken if a time is none.
        """
        try:
            return self.make(answer)
        except Cut as error:
            found = await map_concurrently(error.sequences, self._read_block, at_once=AT_ONCE)
            blocks = {one: block for one, block in zip(error.sequences, found, strict=True) if block is not None}
            answer.leave_out(set(error.sequences) - blocks.keys())
        return self.make(answer, blocks)

    async def _read_block(self, sequence: int) -> bytes | None:
        found = await self._natty.jetstream.read(self.stream, sequence=sequence, timeout=GIVE_UP)
        return None if found is None else found.header_block

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

    def _send(self, position: int) -> _Request | None:
        """Send a request with its own reply subject, and receive its answer from now on; None if it can't be sent."""
        self._number += 1
        request = self._request = _Request(b"%b.%d" % (self._inbox, self._number), self.stream)
        wanted = min(REQUEST_MESSAGES, self.last - position + 1)
        body: dict[str, Any] = {"seq": position, "batch": wanted, "max_bytes": REQUEST_BYTES}
        if self._subject:
            body["next_by_subj"] = self._subject
        try:
            self._connection.send(self._api, msgspec.json.encode(body), reply=request.reply)
        except NotConnectedError:
            return None
        return request

    def _receive(self, batch: Batch) -> None:
        self._request.receive(batch)

    def _on_event(self, event: str) -> None:
        if event != "connected":
            self._request.finish(None)

    def _on_refusal(self, text: str) -> None:
        if b'"%b"' % self._api in text.encode():
            self._request.finish(CaptureError(f"stream {self.stream} can't be read, it is not permitted: {text}"))


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

    def make(self, answer: Answer, blocks: Mapping[int, bytes] = NO_BLOCKS) -> pa.RecordBatch:
        """Return the rows of an answer up to the end of the range. Cut."""
        return take_until(answer.rows(self._columns, blocks), self.last)


class DirectBatches(DirectAnswers[Batch]):
    """The messages as a consumer delivers them, with the ack subject that they would have."""

    def make(self, answer: Answer, blocks: Mapping[int, bytes] = NO_BLOCKS) -> Batch:
        """Return the messages of an answer up to the end of the range. Cut."""
        batch = answer.batch(blocks)
        if not answer.sequences or answer.sequences[-1] <= self.last:
            return batch
        return Batch(batch.raw[: bisect_right(batch.sequences, self.last)])
