"""Many messages to one stream, each with an outcome: by an ack for each message, or by fast ingest (ADR-50)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import takewhile
from threading import get_ident
from types import TracebackType
from typing import Self

import msgspec

from natty.errors import (
    UNREADABLE,
    ConnectionClosedError,
    JetStreamError,
    NotConnectedError,
    PayloadTooLargeError,
    PublishError,
    WrongLastSequenceError,
)
from natty.jetstream import JetStream, PubAnswer, is_in_process, read_ack
from natty.names import check_line, check_subject, covers, decode
from natty.publishing.options import PublisherOptions
from natty.publishing.reporting import Reporter, Waiting
from natty.wire import tracing
from natty.wire.counters import PUBLISHER
from natty.wire.message import Batch, Headers, as_payload, encode_headers, publish_headers, status_of
from natty.wire.servers import NEEDS
from natty.wire.session import Subscription

logger = logging.getLogger("natty.publish")

_WRITE_AHEAD_BYTES = 64 * 1024  # what is written before waiting for the socket: measured, see docs/architecture.md
_OVERHEAD = 64  # bytes that a message counts for beside its headers and payload
_MOST_ADDRESSES = 4096  # subjects that are remembered as checked
_REPLY_AND_SIZES = 96  # bytes at most of what follows a subject and our inbox on a line of the protocol
_OUTSTANDING = 8  # flow acks that may be missing before the sender waits; the server gives one every 500 at most
RETRY_DELAY = 0.1  # seconds before a refused message is sent again
LOOK = 0.1  # seconds between two looks at how many messages come
LOOKS = 5  # that count together: messages may come in bursts
FEW = 2500  # messages of these looks: with fewer, the next ack of a fast batch is far off, and each gets its own ack
MANY = 5000  # messages of these looks: with so many, fast ingest is worth it again
IDLE = 1.0  # seconds between two looks if nothing but fast ingest may be used: each end of a batch costs a round trip
TOO_MANY_REQUESTS = 429  # the server's queue is full: it takes the message later
EXPECTED_STREAM = "Nats-Expected-Stream"
START, APPEND, END = 0, 1, 3  # of fast ingest: begin a batch, add to it, end it and store no more
BATCHES_DISABLED = 10205  # the stream's `allow_batched` was switched off
BATCH_UNKNOWN = 10208  # the fast batch is over: it was idle, or the stream has a new leader


class _FastAnswer(msgspec.Struct):
    """What the server says on a batch's inbox. `type`: ack, gap or err, and empty at the end of the batch."""

    type: str = ""
    seq: int = 0
    msgs: int = 0  # the next ack comes after so many more; the server may have lowered it
    count: int = 0
    stream: str = ""
    error: dict[str, object] | None = None


_read_answer = msgspec.json.Decoder(_FastAnswer).decode
_read_answers = msgspec.json.Decoder(list[PubAnswer]).decode
_read_numbers = msgspec.json.Decoder(list[int]).decode


class Publisher:
    """Publishes many messages to one stream with a bounded window: `async with natty.publisher("ORDERS") as publisher`.

    Each message is stored, or becomes a PublishError that names it. `flush` (and the end of the block) raises an error
    for the first of them, `failures` holds all. With `options.on_error`, that is called with each instead;
    `failures` then holds those with which it failed. A message with a `msg_id` that is in doubt (lost ack, lost
    connection) is sent again and stored once; one without becomes an error, because sending it again might store it
    twice. No other stream stores them: `Nats-Expected-Stream` is on the first message of a fast batch, and on each
    message that the stream's subjects did not cover when the publisher was opened. Fast ingest: ADR-50 (nats-server
    2.14, a stream with `allow_batched`).
    """

    def __init__(self, jetstream: JetStream, stream: str, options: PublisherOptions | None = None) -> None:
        self.stream, self.options = stream, options or PublisherOptions()
        self.stored = self.failed = self.duplicates = 0
        self.failures: list[PublishError] = []
        self.subjects: tuple[str, ...] = ()  # of the stream, as it was when this publisher was opened
        self._reporter: Reporter | None = None
        if (on_error := self.options.on_error) is not None:
            self._reporter = Reporter(on_error, self.failures.append, f"on_error of {stream}", "in publisher.failures")
        self._on_failure = self._reporter.report if self._reporter else self.failures.append
        self._traced = tracing.trace_create(stream)
        self._jetstream, self._connection = jetstream, jetstream.connection
        self._offered = self._fast = False
        self._many = True  # whether messages come quickly, as it seems; see `_look_after`
        self._taken = deque[int](maxlen=LOOKS)  # messages of the last looks
        self._settling = False  # what was in doubt is sent again, each message with an ack of its own
        self._returning = False  # to fast ingest, when nothing waits
        self._waiting: dict[int, Waiting] = {}
        self._waiting_bytes = self._unwritten = 0
        self._number = 0  # of the last message taken
        self._base = 0  # the message number before the current fast batch
        self._inbox = self._flow_prefix = self._numbered_reply = b""
        self._thread = 0  # of the loop that it was opened on
        self._addresses: dict[str, tuple[bytes, bool]] = {}  # by subject, as `_address` returns them
        self._look_again_at = 0  # of `_unwritten`: up to there, `publish` looks at nothing else
        self._unsent: list[Waiting] = []  # the last of `_waiting`, to be written together
        self._subscription: Subscription | None = None
        self._ended = False  # the fast batch: nothing more may be added to it
        self._end_place = 0  # in the fast batch, of the last END that was sent; 0: none
        self._look: asyncio.TimerHandle | None = None
        self._pause = IDLE if self.options.path == "fast" else LOOK  # seconds between two looks
        self._healing: asyncio.Future[None] | None = None
        self._progress = asyncio.Event()
        self._repairing = asyncio.Lock()
        self._flushing = 0
        self._broken = ""
        self._room = self.options.window  # lowered where the server slows fast ingest down
        self._most_bytes = self.options.window_bytes

    def __repr__(self) -> str:
        path = "fast ingest" if self._fast else "window"
        return f"Publisher({self.stream}, {path}, {self.stored} stored, {len(self._waiting)} waiting)"

    @property
    def counts(self) -> dict[str, int]:
        """Counts of messages: `stored`, `failed`, and `duplicates`, which were stored before (0 with fast ingest)."""
        return {"stored": self.stored, "failed": self.failed, "duplicates": self.duplicates}

    @property
    def waiting(self) -> int:
        """How many messages were taken and are neither stored nor failed yet."""
        return len(self._waiting)

    async def __aenter__(self) -> Self:
        """Choose the path. StreamNotFoundError; UnsupportedError if fast ingest is forced and not offered."""
        config = (await self._jetstream.request(f"STREAM.INFO.{self.stream}"))["config"]
        offered = bool(config.get("allow_batched")) and NEEDS["fast ingest"].is_met_by(self._connection.server_version)
        if self.options.path == "fast" and not offered:
            self._jetstream.require("fast ingest")
            raise PublishError(f"stream {self.stream} does not offer fast ingest: set allow_batched on it")
        self._offered = self._fast = offered and self.options.path != "window"
        self.subjects = tuple(config.get("subjects") or ())
        self._connection.listeners.append(self._on_event)
        self._connection.refusals.listeners.append(self._on_refusal)
        self._connection.observed.add(self, PUBLISHER, self.stream)
        self._thread = get_ident()
        self._open_inbox()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                await self.flush()
        finally:
            self.abandon()

    def _address(self, subject: str) -> tuple[bytes, bool]:
        """Return the subject as it goes over the wire, and whether the stream's subjects cover it. BadSubjectError."""
        word = check_subject(subject)
        check_line(word, self._inbox, more=_REPLY_AND_SIZES)
        if len(self._addresses) >= _MOST_ADDRESSES:
            self._addresses.clear()
        self._addresses[subject] = address = word, covers(self.subjects, subject)
        return address

    def abandon(self) -> None:
        """Stop at once; what has no outcome is reported as an error. Idempotent."""
        if self._subscription is None:
            return
        self._subscription.close()
        self._subscription = None
        self._connection.listeners.remove(self._on_event)
        self._connection.refusals.listeners.remove(self._on_refusal)
        for pending in (self._look, self._healing):
            if pending is not None:
                pending.cancel()
        self._give_up("when its publisher was closed", "no ack yet")
        self._connection.observed.retire(self)

    async def publish(self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None) -> None:
        """Take one message; waits while the window is full or the connection is lost. `flush` raises its error.

        TypeError, ValueError, BadSubjectError: it can't be published, and was not taken; nor after the client was
        closed: ConnectionClosedError.
        """
        if type(data) is not bytes:
            data = as_payload(data)
        wire_subject, ours = self._addresses.get(subject) or self._address(subject)
        if self._traced is not None:
            headers = self._traced(subject, headers)
        block = encode_headers(publish_headers(headers, msg_id=msg_id)) if headers or msg_id else b""
        if not ours:
            block = expect_stream(self.stream, block)  # it may belong to another stream, which must not take it
        size, alone = len(block) + len(data), False
        self._unwritten = unwritten = self._unwritten + size + _OVERHEAD
        if unwritten > self._look_again_at or get_ident() != self._thread:
            alone = await self._make_room(size)
        self._number = number = self._number + 1
        self._waiting[number] = message = Waiting(wire_subject, block, data, msg_id)
        self._waiting_bytes += len(data)
        if alone:
            message.in_doubt = False
            self._try_to_send(number, message)
        else:
            self._unsent.append(message)

    async def _make_room(self, size: int) -> bool:
        """Wait until a message of this size can be taken; return whether it is too large, or the first of a batch.

        Messages that follow in the same turn of the loop are taken without waiting, up to `_look_again_at`.
        """
        self._connection.check_loop()
        if self._unwritten > _WRITE_AHEAD_BYTES:
            self._unwritten = 0
            self._send()
            await self._write()
        if not self._may_send() and self._connection.state != "closed":
            await self._until(self._may_send)
        if self._subscription is None or self._connection.state == "closed":
            raise ConnectionClosedError("the publisher or its client is closed: it publishes nothing more")
        loop, largest = asyncio.get_running_loop(), self._connection.max_payload
        if self._look is None:
            self._look = loop.call_later(self._pause, self._look_after, self._number, self.stored, self.failed)
        if self._fast and self._ended:  # the batch was ended, and all of it is stored
            self._begin()
        if not self._unsent:
            loop.call_soon(self._send)
        others = self._room - len(self._waiting) - 1
        room = min(others * _OVERHEAD, self._most_bytes - self._waiting_bytes - size, largest)
        self._look_again_at = min(self._unwritten + room, _WRITE_AHEAD_BYTES)
        return not self._broken and (size > largest or self._number == self._base)

    def _send(self) -> None:
        """Write what `publish` has taken since the last time, at the end of the turn at the latest."""
        messages, self._unsent = self._unsent, []
        first = self._number - len(messages) + 1 - (self._base if self._fast else 0)
        self._look_again_at = 0
        try:
            if messages and not self._broken:
                self._connection.send_numbered(messages, self._numbered_reply, first)
        except NotConnectedError as error:
            self._broken = str(error)
        if self._broken:
            for message in messages:
                message.in_doubt = False

    def _may_send(self) -> bool:
        """Whether the next message can be sent: there is room, and no message before it is in doubt."""
        full = len(self._waiting) >= self._room or self._waiting_bytes >= self._most_bytes
        held = full or self._broken or self._ended or self._settling or self._returning
        return not self._flushing and (not held or not self._waiting)

    async def flush(self) -> None:
        """Return when every message taken so far is stored. PublishError: some are not; it names the first of them."""
        self._connection.check_loop()
        self._flushing += 1
        try:
            await self._until(lambda: not self._waiting, ending=True)
        finally:
            self._flushing -= 1
            self._progress.set()
        self._be_fast_again()
        if self._reporter is not None:
            await self._reporter.settle()
        if self.failures:
            first, count = self.failures[0], len(self.failures)
            text = f"{count} of {count + self.stored} messages were not stored; the first: {first}"
            raise PublishError(text, subject=first.subject, msg_id=first.msg_id)

    @property
    def _wants_fast(self) -> bool:
        return self._offered and (self._many or self.options.path == "fast")

    def _be_fast_again(self) -> None:
        """Use fast ingest again if it is worth it, once the messages before have their outcome."""
        if not self._fast and not self._waiting:
            self._settling = self._returning = False
            if self._wants_fast:
                self._begin()

    def _begin(self) -> None:
        """Begin with the protocol that suits; nothing waits."""
        self._send()
        self._fast = self._wants_fast
        self._open_inbox()

    async def _write(self) -> None:
        try:
            await self._connection.drain()
            await asyncio.sleep(0)  # acks are read between two writes
        except NotConnectedError as error:
            self._broken = str(error)

    async def _until(self, done: Callable[[], bool], *, ending: bool = False) -> None:
        """Wait for acks until `done`; send messages without an ack again, and give up after `give_up` seconds."""
        loop = asyncio.get_running_loop()
        last_change, settled = loop.time(), self.stored + self.failed
        while not done():
            full = self._waiting_bytes >= self._most_bytes  # the server's next ack may be far off
            if (ending or full) and self._fast and not self._broken and self._waiting:
                self._end_batch()
            self._progress.clear()
            try:
                if not self._broken:
                    async with asyncio.timeout(self.options.ack_timeout):
                        await self._progress.wait()
            except TimeoutError:
                self._broken = f"no ack within {self.options.ack_timeout:g} s"
            if self.stored + self.failed > settled:
                last_change, settled = loop.time(), self.stored + self.failed
            if loop.time() - last_change >= self.options.give_up:
                self._give_up(f"after {self.options.give_up:g} s", self._broken or "no progress")
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
            self._send()  # sends nothing, as long as it is broken
            if self._subscription is None:  # it was abandoned meanwhile
                return
            reason, self._broken = self._broken, ""
            if self._fast and any(message.in_doubt for message in self._waiting.values()):
                self._fast, self._settling = False, True  # a fast batch takes a message that is being stored for stored
            self._open_inbox()
            for number, message in list(self._waiting.items()):
                if message.in_doubt and not message.msg_id:
                    self._fail(number, f"in doubt, and can't be sent again safely without a message id: {reason}")
            self._renumber()
            for number, message in list(self._waiting.items()):
                if not self._broken:
                    self._try_to_send(number, message)
            await self._write()
            if self._broken:  # a dead socket may not have been noticed yet: let the loop read from it
                await asyncio.sleep(RETRY_DELAY)

    def _renumber(self) -> None:
        """Number what waits from here on, so that a fast batch counts from 1 without a gap."""
        self._base = self._number
        self._waiting = dict(enumerate(self._waiting.values(), start=self._number + 1))
        self._number += len(self._waiting)

    def _open_inbox(self) -> None:
        if self._subscription is not None:
            self._subscription.close()
        self._inbox = self._connection.new_inbox()
        self._base, self._ended, self._end_place = self._number, False, 0
        self._look_again_at = 0
        if not self._fast:
            self._room = self.options.window
        sink, inbox = self._take_fast_answers if self._fast else self._take_window_answers, self._inbox
        flow = max(1, self.options.window // _OUTSTANDING)  # an ack for every so many messages at least
        self._flow_prefix = b"%b.%d.fail." % (inbox, flow)  # a gap makes the server end the batch
        start, rest = (self._flow_prefix, b".%d.$FI" % APPEND) if self._fast else (inbox + b".", b"")
        self._numbered_reply = start.replace(b"%", b"%%") + b"%d" + rest
        self._subscription = self._connection.subscribe(inbox.decode() + ".>", lambda batch: sink(inbox, batch))

    def _try_to_send(self, number: int, message: Waiting) -> None:
        headers = message.headers
        if self._fast:
            place, operation = number - self._base, APPEND
            if place == 1:  # the whole batch goes where its first message does
                headers, operation = expect_stream(self.stream, headers), START
            reply = b"%b%d.%d.$FI" % (self._flow_prefix, place, operation)
        else:
            reply = b"%b.%d" % (self._inbox, number)
        try:
            self._connection.put((message.subject, reply, headers, message.data))
            message.in_doubt = True
        except NotConnectedError as error:
            self._broken = str(error)
        except PayloadTooLargeError as error:
            if headers is not message.headers:  # no room for the stream's name: it gets an ack of its own, if it fits
                self._fast, self._returning = False, True
                self._open_inbox()
                self._try_to_send(number, message)
                self._be_fast_again()
                return
            self._fail(number, str(error))
            self._number -= number == self._number  # what follows takes its place
            self._look_again_at = 0

    def _look_after(self, number: int, stored: int, failed: int) -> None:
        """Choose the protocol by how many messages came since the last look, when these were the counts.

        Few messages get an ack each: a fast batch would have them wait for the next one, in doubt if the link breaks.
        """
        self._look = None
        self._taken.append(self._number - number)
        taken = sum(self._taken)
        self._many = self._many if FEW <= taken < MANY else taken >= MANY
        if not self._waiting:
            self._be_fast_again()
            if number == self._number:
                self._ended = self._fast  # the server drops an idle batch after ten seconds
                return
        loop, counts = asyncio.get_running_loop(), (self.stored, self.failed)
        self._look = loop.call_later(self._pause, self._look_after, self._number, *counts)
        if not self._waiting:
            return
        is_due = number in self._waiting if self.options.path == "fast" else not self._many
        if self._fast and is_due and not self._broken:
            self._end_batch()
        elif not self._fast and self._wants_fast and self.failed == failed:
            self._returning = not any(one.refused for one in self._waiting.values())
        if counts == (stored, failed) and (self._healing is None or self._healing.done()):
            self._healing = asyncio.ensure_future(self._until(lambda: not self._waiting))

    def _end_batch(self) -> None:
        if not self._ended:
            self._ended = True
            self._send_end(next(reversed(self._waiting.values())).subject, self._number - self._base + 1)

    def _send_end(self, subject: bytes, place: int) -> None:
        """Ask for the acks of all before this place: end the batch without storing anything more."""
        self._end_place = place
        self._send()
        try:
            self._connection.put((subject, b"%b%d.%d.$FI" % (self._flow_prefix, place, END), b"", b""))
        except NotConnectedError as error:
            self._broken = str(error)

    def _take_fast_answers(self, inbox: bytes, batch: Batch) -> None:
        if inbox != self._inbox:
            return
        for subject, _, block, payload in batch.raw:
            # the place in the batch of the message that it answers, and whether that was the last END
            place, operation = map(int, subject[len(inbox) + 1 :].split(b".")[2:4])
            ending = operation == END and place == self._end_place
            if not payload and status_of(block)[0] == 503:
                if ending:
                    asyncio.get_running_loop().call_later(RETRY_DELAY, self._send_end_again, inbox, place)
                else:
                    self._refuse(place, "no stream takes this subject at the moment")
                continue
            answer = _read_answer(payload)
            if answer.type == "ack":
                self._room = min(self.options.window, _OUTSTANDING * max(1, answer.msgs))
                self._mark_stored(self._base + answer.seq)
            elif answer.error is not None:
                code, reason = answer.error.get("err_code"), str(answer.error.get("description", ""))
                self._offered = self._offered and code != BATCHES_DISABLED
                unknown = code == BATCH_UNKNOWN and answer.stream == self.stream
                self._refuse(answer.seq or place, reason, batch_unknown=unknown, doubt_stays=ending)
            elif answer.type == "":
                self._close_batch(answer.count)
        self._progress.set()

    def _send_end_again(self, inbox: bytes, place: int) -> None:
        if inbox == self._inbox and self._waiting and not self._broken and place == self._end_place:
            self._send_end(next(iter(self._waiting.values())).subject, place)

    def _refuse(self, place: int, reason: str, *, batch_unknown: bool = False, doubt_stays: bool = False) -> None:
        """Take a refusal into account: with gap `fail`, nothing from this place on can have been stored."""
        self._ended = True
        doubtful = b""
        for number, message in self._waiting.items():
            if number >= self._base + place:
                message.in_doubt = False
            elif message.in_doubt and not doubtful:
                doubtful = message.subject
        if self._waiting and (batch_unknown or doubt_stays or not doubtful):
            self._begin_anew(reason, fast=batch_unknown)
        elif doubtful and not 0 < self._end_place <= place:  # stored or not: the end of the batch will show it
            self._send_end(doubtful, place)

    def _close_batch(self, count: int) -> None:
        """The server has closed the batch: the first `count` are stored, and the others are not."""
        self._mark_stored(self._base + count)
        if self._waiting:
            for message in self._waiting.values():
                message.in_doubt = False
            self._begin_anew(f"the server ended a batch after {count} messages", fast=False)

    def _begin_anew(self, reason: str, *, fast: bool) -> None:
        """Send all that waits again; with an ack for each message if it must show which one is refused."""
        self._broken = self._broken or reason
        self._fast = self._fast and fast

    def _mark_stored(self, number: int) -> None:
        done = list(takewhile(number.__ge__, self._waiting))
        self._waiting_bytes -= sum([len(self._waiting.pop(one).data) for one in done])
        self.stored += len(done)

    def _take_window_answers(self, inbox: bytes, batch: Batch) -> None:
        if inbox != self._inbox:
            return
        numbers = _read_numbers(b"[%b]" % b",".join(batch.subjects).replace(b"%b." % inbox, b""))
        if _are_acks(batch.payloads, self.stream):
            stored = [one for number in numbers if (one := self._waiting.pop(number, None)) is not None]
            self._waiting_bytes -= sum([len(one.data) for one in stored])
            self.stored += len(stored)
        else:
            for number, block, payload in zip(numbers, batch.header_blocks, batch.payloads, strict=True):
                if number in self._waiting:
                    self._take_window_answer(number, block, payload)
        if self._settling or self._returning:
            self._be_fast_again()
        self._progress.set()

    def _take_window_answer(self, number: int, block: bytes, payload: bytes) -> None:
        if not payload and status_of(block)[0] == 503:  # a leader is being elected, or there is no such subject
            self._send_later(number, "no stream takes this subject: create one whose subjects cover it")
            return
        subject = self._waiting[number].subject
        try:
            ack = read_ack(payload, subject)
        except (PublishError, WrongLastSequenceError) as error:
            reason, cause = str(error).removeprefix(f"{decode(subject)}: "), error.__cause__
            doubtful = is_in_process(error)
            if doubtful or (isinstance(cause, JetStreamError) and cause.code == TOO_MANY_REQUESTS):
                self._send_later(number, reason, in_doubt=doubtful)
            else:
                self._waiting[number].in_doubt = False
                self._fail(number, reason)
            return
        if ack.stream != self.stream:  # the subject has moved since this publisher was opened
            self._fail(number, f"it was stored in stream {ack.stream}, which has this subject now")
            return
        self._waiting_bytes -= len(self._waiting.pop(number).data)
        self.stored += 1
        self.duplicates += ack.duplicate

    def _send_later(self, number: int, reason: str, *, in_doubt: bool = False) -> None:
        message = self._waiting[number]
        message.in_doubt, message.refused = in_doubt, reason
        self._returning = False  # it may be refused for long, and the others need not wait for it
        asyncio.get_running_loop().call_later(RETRY_DELAY, self._send_again, self._inbox, number)

    def _send_again(self, inbox: bytes, number: int) -> None:
        if inbox == self._inbox and number in self._waiting and not self._broken:
            self._try_to_send(number, self._waiting[number])

    def _fail(self, number: int, reason: str) -> None:
        message = self._waiting.pop(number)
        self._waiting_bytes -= len(message.data)
        self.failed += 1
        self._on_failure(message.to_error(reason))
        self._progress.set()

    def _give_up(self, when: str, reason: str) -> None:
        for number, message in list(self._waiting.items()):
            self._fail(number, f"given up {when}: {message.refused or reason}")

    def _on_event(self, event: str) -> None:
        if event == "closed":
            self._broken = "no ack yet"
            self._give_up("because the client was closed", self._broken)
        elif event != "connected" and not self._waiting:
            self._ended = self._fast  # the next message begins a batch
        elif event != "connected" and not self._broken:
            self._broken = "the connection was lost"
        self._progress.set()

    def _on_refusal(self, text: str) -> None:
        """Fail messages that the server does not permit: it names the subject and drops them, a gap in a fast batch."""
        refused = [n for n, one in self._waiting.items() if one.in_doubt and b'to "%b"' % one.subject in text.encode()]
        for number in refused:
            self._waiting[number].in_doubt = False
            self._fail(number, f"not permitted: {text}")
        if refused and self._fast:
            self._refuse(refused[0] - self._base, text)


def _are_acks(payloads: list[bytes], stream: str) -> bool:
    """Return whether each of these answers says that a message is stored in this stream, and was not before.

    The first is parsed; the others are right if they differ from it in the last number alone.
    """
    start = payloads[0][: payloads[0].rfind(b":") + 1]
    rest = b"\n".join([b"", *payloads]).replace(b"\n" + start, b"\0").translate(None, b"0123456789")
    parsed = payloads[:1] if rest == b"\0}" * len(payloads) else payloads
    try:
        answers = _read_answers(b"[%b]" % b",".join(parsed))
    except UNREADABLE:
        return False
    others = [one for one in answers if one.stream != stream or one.error is not None or one.duplicate]
    return len(answers) == len(parsed) and not others


def expect_stream(stream: str, block: bytes) -> bytes:
    """Return a raw header block that no other stream than this one accepts."""
    if f"{EXPECTED_STREAM}:".encode() in block:
        return block
    line = encode_headers({EXPECTED_STREAM: stream})
    return block[:-2] + line.partition(b"\r\n")[2] if block else line
