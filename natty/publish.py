from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from types import TracebackType
from typing import Self

import msgspec

from natty.connection import Subscription
from natty.errors import NattyError, NotConnectedError, PublishError, WrongLastSequenceError
from natty.jetstream import JetStream, read_ack
from natty.message import RawMessage, check_subject, encode_headers, status_of

logger = logging.getLogger("natty.publish")

_START, _APPEND, _END = 0, 1, 3  # fast ingest's operations: begin, add, end without storing
_WRITE_AHEAD_BYTES = 256 * 1024  # what is written before waiting for the socket
_OUTSTANDING = 4  # flow acks that may be missing before the sender waits
FAST_INGEST = (2, 14)  # server version
RETRY_DELAY = 0.1  # seconds before a refused message is sent again
IDLE = 1.0  # seconds without a new message after which a fast batch is ended: the server drops an idle one after ten
BATCH_UNKNOWN = 10208  # the batch is over: it was idle, or the stream has a new leader


@dataclass(frozen=True, kw_only=True)
class PublisherOptions:
    """How many messages may be on their way, and how long one may take."""

    window: int = 4096
    ack_timeout: float = 5.0  # seconds without any progress before the unacknowledged are sent again
    give_up: float = 30.0  # seconds without any progress before they are reported as errors
    path: str = "auto"  # "fast": fast ingest; "window": an ack a message; "auto": what server and stream offer


class _FastAnswer(msgspec.Struct):
    type: str = ""  # ack, gap, err; "" at the end of a batch
    seq: int = 0
    msgs: int = 0
    count: int = 0
    error: dict[str, object] | None = None


@dataclass(slots=True)
class _Waiting:
    subject: bytes
    headers: bytes
    data: bytes
    message_id: str
    in_doubt: bool = False  # sent, and nobody knows whether it is stored
    refused: str = ""  # why the server did not take it at the last try


class Publisher:
    """Publishes many messages to one stream with a bounded window: `async with natty.publisher("ORDERS") as publisher`.

    Every message ends in stored, or in a PublishError that names it: raised by `flush` (and on leaving the block), all
    of them in `failures`. A message with a `message_id` that is in doubt (lost ack, lost connection) is sent again and
    stored once; one without ends in an error, because sending it again might store it twice.
    Fast ingest: ADR-50 (nats-server 2.14, a stream with `allow_batched`).
    """

    def __init__(self, jetstream: JetStream, stream: str, options: PublisherOptions | None = None) -> None:
        self.options = options or PublisherOptions()
        self.stream = stream
        self.stored = 0
        self.duplicates = 0
        self.failures: list[PublishError] = []
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._offered = False
        self._fast = False
        self._waiting: dict[int, _Waiting] = {}
        self._number = 0  # of the last message taken
        self._base = 0  # the message number before the current fast batch
        self._inbox = b""
        self._flow_prefix = b""
        self._subscription: Subscription | None = None
        self._ended = False  # the fast batch: nothing more may be added to it
        self._idle: asyncio.TimerHandle | None = None
        self._healing: asyncio.Future[None] | None = None
        self._progress = asyncio.Event()
        self._unwritten = 0
        self._repairing = asyncio.Lock()
        self._broken = ""
        self._room = self.options.window  # lowered where the server slows fast ingest down

    def __repr__(self) -> str:
        path = "fast ingest" if self._fast else "window"
        return f"Publisher({self.stream}, {path}, {self.stored} stored, {len(self._waiting)} waiting)"

    async def __aenter__(self) -> Self:
        """Choose the path. StreamNotFoundError; UnsupportedError if fast ingest is forced and not offered."""
        config = (await self._jetstream.request(f"STREAM.INFO.{self.stream}"))["config"]
        offered = bool(config.get("allow_batched")) and self._connection.server_version >= FAST_INGEST
        if self.options.path == "fast" and not offered:
            self._jetstream.require("fast ingest", *FAST_INGEST)
            raise PublishError(f"stream {self.stream} does not offer fast ingest: set allow_batched on it")
        self._offered = self._fast = offered and self.options.path != "window"
        self._connection.listeners.append(self._on_event)
        self._open_inbox()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self._connection.listeners.remove(self._on_event)
            for pending in (self._idle, self._healing):
                if pending is not None:
                    pending.cancel()
            if self._subscription is not None:
                self._subscription.close()

    async def publish(
        self, subject: str, data: bytes, *, message_id: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Take one message; waits while the window is full, or the connection lost. The outcome shows in `flush`."""
        wire_subject = check_subject(subject)
        block = b""
        if headers or message_id:
            block = encode_headers((headers or {}) | ({"Nats-Msg-Id": message_id} if message_id else {}))
        if not self._may_send():
            await self._until(self._may_send)
        self._number += 1
        message = self._waiting[self._number] = _Waiting(wire_subject, block, data, message_id)
        if self._broken:
            return
        self._try_to_send(self._number, message)
        self._unwritten += len(data) + 64
        if self._unwritten > _WRITE_AHEAD_BYTES:
            self._unwritten = 0
            await self._write()

    @property
    def _settled(self) -> int:
        return self.stored + len(self.failures)

    def _may_send(self) -> bool:
        """Whether the next message can go: there is room, and what was sent before is not in question."""
        return not self._waiting or not (self._broken or self._ended or len(self._waiting) >= self._room)

    async def flush(self) -> None:
        """Return when every message taken so far is stored. PublishError: some are not; it names the first of them."""
        await self._until(lambda: not self._waiting, ending=True)
        if self._offered and not self._fast and not self._waiting:
            self._fast = True  # the refused ones are dealt with
            self._open_inbox()
        if self.failures:
            first, count = self.failures[0], len(self.failures)
            raise PublishError(
                f"{count} of {count + self.stored} messages were not stored; the first: {first}",
                subject=first.subject,
                message_id=first.message_id,
            )

    async def _write(self) -> None:
        try:
            await self._connection.drained()
            await asyncio.sleep(0)  # acks are read between two writes
        except NotConnectedError as error:
            self._broken = str(error)

    async def _until(self, done: Callable[[], bool], *, ending: bool = False) -> None:
        """Wait for acks until `done`; send again what got none; give up at last."""
        loop = asyncio.get_running_loop()
        last_change, settled = loop.time(), self._settled
        while not done():
            if ending and self._fast and not self._broken and self._waiting:
                self._end_batch()
            self._progress.clear()
            try:
                if not self._broken:
                    async with asyncio.timeout(self.options.ack_timeout):
                        await self._progress.wait()
            except TimeoutError:
                self._broken = f"no ack within {self.options.ack_timeout:g} s"
            if self._settled > settled:
                last_change, settled = loop.time(), self._settled
            if loop.time() - last_change >= self.options.give_up:
                self._fail_all(self._broken or "no progress")
            elif self._broken and not done():
                await self._repair()

    async def _repair(self) -> None:
        """Begin anew on a fresh inbox, and send again what is in doubt and has a message id."""
        async with self._repairing:
            if not self._broken:
                return
            logger.warning("publishing to %s again after: %s", self.stream, self._broken, extra={"action": "resend"})
            try:
                await self._connection.ready(self.options.ack_timeout)
            except NotConnectedError as error:
                self._broken = str(error)
                await asyncio.sleep(RETRY_DELAY)
                return
            reason, self._broken = self._broken, ""
            self._open_inbox()
            for number, message in list(self._waiting.items()):
                if message.in_doubt and not message.message_id:
                    self._fail(number, f"in doubt, and it has no message id to send it again safely: {reason}")
            self._renumber()
            for number, message in list(self._waiting.items()):
                if not self._broken:
                    self._try_to_send(number, message)
            await self._write()

    def _renumber(self) -> None:
        """Number what waits from here on, so that a fast batch counts from 1 without a gap."""
        messages = list(self._waiting.values())
        self._base = self._number
        self._waiting = {self._number + place: message for place, message in enumerate(messages, start=1)}
        self._number += len(messages)

    def _open_inbox(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._inbox = self._connection.new_inbox()
        self._base = self._number
        self._ended = False
        sink = self._fast_answers if self._fast else self._window_answers
        inbox = self._inbox
        self._flow_prefix = b"%b.%d.fail." % (inbox, max(1, self.options.window // _OUTSTANDING))
        self._subscription = self._connection.subscribe(inbox.decode() + ".>", lambda raw: sink(inbox, raw))

    def _try_to_send(self, number: int, message: _Waiting) -> None:
        try:
            self._send(number, message)
        except NotConnectedError as error:
            self._broken = str(error)
        except NattyError as error:  # too large: what follows takes its place
            self._fail(number, str(error))
            self._number -= number == self._number

    def _send(self, number: int, message: _Waiting) -> None:
        if self._fast:
            if self._ended:  # a batch was ended, and all of it is stored: this message begins the next one
                self._open_inbox()
                self._base = number - 1
            place = number - self._base
            reply = b"%b%d.%d.$FI" % (self._flow_prefix, place, _START if place == 1 else _APPEND)
            if self._idle is None:
                self._idle = asyncio.get_running_loop().call_later(IDLE, self._when_idle, number)
        else:
            reply = b"%b.%d" % (self._inbox, number)
        self._connection.put((message.subject, reply, message.headers, message.data))
        message.in_doubt = True

    def _when_idle(self, number: int) -> None:
        self._idle = None
        if self._fast and self._waiting and not self._broken:
            if number == self._number:
                self._end_batch()
            else:
                self._idle = asyncio.get_running_loop().call_later(IDLE, self._when_idle, self._number)

    def _end_batch(self) -> None:
        if not self._ended:
            self._ended = True
            self._send_end(next(reversed(self._waiting.values())).subject, self._number - self._base + 1)

    def _send_end(self, subject: bytes, place: int) -> None:
        """Ask for the acks of all before this place: end the batch without storing anything more."""
        try:
            self._connection.put((subject, b"%b%d.%d.$FI" % (self._flow_prefix, place, _END), b"", b""))
        except NotConnectedError as error:
            self._broken = str(error)

    def _fast_answers(self, inbox: bytes, messages: list[RawMessage]) -> None:
        if inbox != self._inbox:
            return
        for subject, _, block, payload in messages:
            place = int(subject[len(inbox) + 1 :].split(b".")[2])
            if not payload and status_of(block)[0] == 503:
                self._refuse(place, "no stream takes this subject at the moment")
                continue
            answer = msgspec.json.decode(payload, type=_FastAnswer)
            if answer.type == "ack":
                self._room = min(self.options.window, _OUTSTANDING * max(1, answer.msgs))
                self._stored_up_to(self._base + answer.seq)
            elif answer.error is not None:
                unknown = answer.error.get("err_code") == BATCH_UNKNOWN
                self._refuse(answer.seq or place, str(answer.error.get("description", "")), batch_unknown=unknown)
            elif answer.type == "":
                self._batch_over(answer.count)
        self._progress.set()

    def _refuse(self, place: int, reason: str, *, batch_unknown: bool = False) -> None:
        """Take a refusal into account: with gap `fail`, nothing from this place on can have been stored."""
        self._ended = True
        doubtful = b""
        for number, message in self._waiting.items():
            if number >= self._base + place:
                message.in_doubt = False
            elif message.in_doubt and not doubtful:
                doubtful = message.subject
        if self._waiting and (batch_unknown or not doubtful):
            self._begin_anew(reason, fast=batch_unknown)
        elif doubtful:  # stored or not: the end of the batch will tell
            self._send_end(doubtful, place)

    def _batch_over(self, count: int) -> None:
        """The server has closed the batch: the first `count` are stored, and the others are not."""
        self._stored_up_to(self._base + count)
        if self._waiting:
            for message in self._waiting.values():
                message.in_doubt = False
            self._begin_anew(f"the server ended a batch after {count} messages", fast=False)

    def _begin_anew(self, reason: str, *, fast: bool) -> None:
        """Have what waits sent again; by acks of its own for each message where it must show which one is refused."""
        self._broken = self._broken or reason
        self._fast = self._fast and fast

    def _stored_up_to(self, number: int) -> None:
        done = list(takewhile(number.__ge__, self._waiting))
        for one in done:
            del self._waiting[one]
        self.stored += len(done)

    def _window_answers(self, inbox: bytes, messages: list[RawMessage]) -> None:
        if inbox != self._inbox:
            return
        prefix = len(inbox) + 1
        for subject, _, block, payload in messages:
            number = int(subject[prefix:])
            if number in self._waiting:
                self._window_answer(number, block, payload)
        self._progress.set()

    def _window_answer(self, number: int, block: bytes, payload: bytes) -> None:
        if not payload and status_of(block)[0] == 503:  # a leader is being elected, or there is no such subject
            message = self._waiting[number]
            message.in_doubt, message.refused = (
                False,
                "no stream takes this subject: create one whose subjects cover it",
            )
            asyncio.get_running_loop().call_later(RETRY_DELAY, self._send_again, self._inbox, number)
            return
        try:
            ack = read_ack(payload, self._waiting[number].subject.decode())
        except (PublishError, WrongLastSequenceError) as error:
            self._fail(number, str(error).removeprefix(f"{self._waiting[number].subject.decode()}: "))
            return
        del self._waiting[number]
        self.stored += 1
        self.duplicates += ack.duplicate

    def _send_again(self, inbox: bytes, number: int) -> None:
        if inbox == self._inbox and number in self._waiting and not self._broken:
            self._try_to_send(number, self._waiting[number])

    def _fail(self, number: int, reason: str) -> None:
        message = self._waiting.pop(number)
        subject = message.subject.decode()
        name = f"message {message.message_id!r}" if message.message_id else f"a message of {len(message.data)} bytes"
        error = PublishError(f"{name} on {subject}: {reason}", subject=subject, message_id=message.message_id)
        self.failures.append(error)
        self._progress.set()

    def _fail_all(self, reason: str) -> None:
        for number in list(self._waiting):
            why = self._waiting[number].refused or reason
            self._fail(number, f"given up after {self.options.give_up:g} s: {why}")

    def _on_event(self, event: str) -> None:
        if event == "connected":
            if self._broken and self._waiting:  # nobody may be waiting in publish or flush to do it
                self._healing = asyncio.ensure_future(self._repair())
        elif not self._broken:
            self._broken = "the connection was lost"
        self._progress.set()
