"""All-or-nothing batches: ADR-50, nats-server 2.12, a stream with `allow_atomic`."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from natty.config.units import check_seconds, parse_time, show_time
from natty.errors import (
    AuthorizationError,
    JetStreamError,
    NattyError,
    NoRespondersError,
    NotConnectedError,
    PayloadTooLargeError,
    PublishError,
    RequestTimeoutError,
    UnsupportedError,
    WrongLastSequenceError,
)
from natty.jetstream import NO_MESSAGE, RETRY_DELAY, SEND_AGAIN, JetStream, PubAck, read_ack
from natty.names import check_subject, covers, decode
from natty.pulling.ordered import CaughtUp, Ordered, OrderedOptions, Vanished
from natty.wire import tracing
from natty.wire.connection import Connection
from natty.wire.message import Batch, Headers, Outgoing, as_payload, encode_headers, parse_headers, publish_headers

MAX_MESSAGES = 1000  # of a batch, the server's limit
SKEW = 0.5  # seconds by which the clocks of the servers that led the stream may differ for a batch to be found
DISABLED, INCOMPLETE, DUPLICATE, TOO_MANY = 10174, 10176, 10201, 10210  # the server's numbers


@dataclass(frozen=True, kw_only=True)
class AtomicMessage:
    """One message of a batch. `ttl` in seconds, or text ("7d"), rounded up to whole seconds."""

    subject: str
    data: bytes = b""
    headers: Headers | None = None
    msg_id: str = ""
    expect_last_subject_sequence: int | None = None
    ttl: float | str | None = None


async def publish_atomic(
    jetstream: JetStream,
    messages: Sequence[AtomicMessage | tuple[str, bytes]],
    *,
    expect_last_sequence: int | None = None,
    timeout: float | None = None,
) -> PubAck:
    """Store all of the messages as `store_batch` does, and count them for the metrics."""
    expected = expect_last_sequence
    return await jetstream.count(
        lambda: store_batch(jetstream, messages, expect_last_sequence=expected, timeout=timeout), len(messages)
    )


async def store_batch(
    jetstream: JetStream,
    messages: Sequence[AtomicMessage | tuple[str, bytes]],
    *,
    expect_last_sequence: int | None = None,
    timeout: float | None = None,
    settle: bool = True,
) -> PubAck:
    """Store all of the messages, one after the other in one stream, or none; return the ack of the last.

    PublishError or WrongLastSequenceError: nothing was stored, and why. When the answer to the commit is lost, that is
    sent again, which can't store a batch twice, and the batch is looked for in the stream until `timeout`, unless
    `settle` is False; after that PublishError with `in_doubt`: it may have been stored. Publish it again with the same
    message ids: the server refuses those that it has. NotConnectedError, RequestTimeoutError: it was not sent whole,
    and nothing was stored. UnsupportedError from a server before 2.12; PayloadTooLargeError, BadSubjectError,
    AuthorizationError; TypeError for data that is not bytes.
    """
    jetstream.require("an atomic batch")
    check_seconds(timeout=timeout)
    batch = [one if isinstance(one, AtomicMessage) else AtomicMessage(subject=one[0], data=one[1]) for one in messages]
    _check(batch)
    with tracing.trace_send(batch[0].subject, messages=len(batch)) as traced:
        wire = _encode(jetstream, batch, expect_last_sequence, traced)
        _check_sizes(wire, int(jetstream.connection.server_info["max_payload"]))
        timeout = jetstream.connection.config.timeout if timeout is None else timeout
        return await _store(jetstream, batch, wire, timeout, settle=settle)


async def _store(
    jetstream: JetStream, batch: list[AtomicMessage], wire: list[Outgoing], timeout: float, *, settle: bool
) -> PubAck:
    began = asyncio.get_running_loop().time()
    deadline = began + timeout
    refusals: list[str] = []
    note = refusals.append
    jetstream.connection.refusals.listeners.append(note)
    try:
        if len(wire) > 1:
            await _begin(jetstream.connection, wire[0], deadline)
        try:
            again = SEND_AGAIN if len(wire) > 1 and settle else None
            return await _commit(jetstream.connection, wire[1:] or wire, deadline, again)
        except PublishError as error:
            if not (error.in_doubt and settle):
                raise
            if (ack := await _resolve(jetstream, batch, wire, began, deadline)) is None:
                raise
            return ack
    except (PublishError, WrongLastSequenceError) as error:
        raise await _explain(jetstream, batch, error, refusals) from error
    finally:
        jetstream.connection.refusals.listeners.remove(note)


def _check(batch: list[AtomicMessage]) -> None:
    if not 1 <= len(batch) <= MAX_MESSAGES:
        raise PublishError(f"a batch of {len(batch)} messages: a batch has 1 to {MAX_MESSAGES}; nothing was sent")
    written: dict[str, int] = {}
    for place, one in enumerate(batch, start=1):
        if one.expect_last_subject_sequence is not None and one.subject in written:
            raise PublishError(
                f"message {place} expects a last sequence of {one.subject}, and message {written[one.subject]} of the"
                " same batch is on that subject: put the expectation on that message",
                subject=one.subject,
            )
        written.setdefault(one.subject, place)


def _encode(
    jetstream: JetStream, batch: list[AtomicMessage], expect_last_sequence: int | None, traced: tracing.Inject
) -> list[Outgoing]:
    name, wire = secrets.token_hex(16), []
    for place, one in enumerate(batch, start=1):
        headers = publish_headers(
            traced(one.headers or {}),
            msg_id=one.msg_id,
            expect_last_sequence=expect_last_sequence if place == 1 else None,
            expect_last_subject_sequence=one.expect_last_subject_sequence,
            ttl=one.ttl,
        )
        headers |= {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(place)}
        if place == len(batch):
            headers["Nats-Batch-Commit"] = "1"
        subject = check_subject(jetstream.write_subject(one.subject))
        data = as_payload(one.data, f"the data of message {place} of the batch")
        wire.append((subject, b"", encode_headers(headers), data))
    return wire


def _check_sizes(wire: list[Outgoing], limit: int) -> None:
    for place, (subject, _, headers, data) in enumerate(wire, start=1):
        if len(headers) + len(data) > limit:
            raise PayloadTooLargeError(
                f"message {place} of the batch, {len(headers) + len(data)} bytes on {decode(subject)}, is over the"
                f" server's max_payload of {limit}; nothing was sent"
            )


async def _begin(connection: Connection, first: Outgoing, deadline: float) -> None:
    """Send the first message alone: its answer says whether the stream accepts a batch now."""
    subject = decode(first[0])
    while True:
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            answer = await connection.request(subject, first[3], headers=first[2], timeout=max(0.001, remaining))
            if not answer[3]:
                return
            ack = read_ack(answer[3], subject)
        except NoRespondersError as error:
            if remaining < RETRY_DELAY:
                raise PublishError(f"no stream takes {subject!r}: create one whose subjects cover it") from error
        except PublishError as error:
            if _code(error) != TOO_MANY or remaining < RETRY_DELAY:
                raise
        else:
            raise UnsupportedError(
                f"the leader of stream {ack.stream} is an older server: it stored the first message by itself, at"
                f" sequence {ack.seq}, and no other was sent; upgrade it"
            )
        await asyncio.sleep(RETRY_DELAY)


async def _commit(connection: Connection, rest: list[Outgoing], deadline: float, again: float | None) -> PubAck:
    """Send what is left, whose last message commits; that one `again` after so many seconds without an answer.

    PublishError with `in_doubt` if no answer says whether the batch was stored; NotConnectedError: nothing was sent.
    """
    *others, last = rest
    subject, loop = decode(last[0]), asyncio.get_running_loop()
    if others:
        connection.send_many(others)
    sent_at = loop.time()
    try:
        answer = await connection.request(
            subject, last[3], headers=last[2], timeout=max(0.001, deadline - sent_at), again=again
        )
        return read_ack(answer[3], subject)
    except (NoRespondersError, PublishError) as error:
        sent_once = again is None or loop.time() - sent_at < again
        if sent_once and isinstance(error, NoRespondersError):
            raise PublishError(f"no stream takes {subject!r}", subject=subject) from error
        if sent_once or _code(error) not in (0, INCOMPLETE):
            raise
        raise _doubt_error(subject, error) from error
    except (NotConnectedError, RequestTimeoutError) as error:
        raise _doubt_error(subject, error) from error


def _doubt_error(subject: str, error: Exception) -> PublishError:
    return PublishError(f"the server may have stored the batch or not: {error}", subject=subject, in_doubt=True)


async def _resolve(
    jetstream: JetStream, batch: list[AtomicMessage], wire: list[Outgoing], began: float, deadline: float
) -> PubAck | None:
    """Return the ack of a batch whose commit was not answered; None if it is not found before the deadline.

    The commit is sent again until it is answered. The server stores a batch that is open, or refuses it for a reason:
    both are certain. It does not know any other batch: that was stored before, or never will be. Only the stream shows
    which, if the batch was not deleted since; in a cluster a new leader may have it a little later. A batch of one
    message is not sent again: it would be stored twice.
    """
    connection, loop = jetstream.connection, asyncio.get_running_loop()
    subject, several, unknown, delay = batch[-1].subject, len(wire) > 1, False, RETRY_DELAY
    while loop.time() + delay < deadline and connection.state != "closed":
        await asyncio.sleep(delay)
        try:
            if several and not unknown:
                return await _commit(connection, wire[-1:], deadline, SEND_AGAIN)
        except PublishError as error:
            if _code(error) not in (0, INCOMPLETE):
                raise
            unknown = _code(error) == INCOMPLETE
        try:
            async with asyncio.timeout_at(deadline):
                info = await jetstream.request(f"STREAM.INFO.{await jetstream.stream_of(subject)}")
                ack = await _find(jetstream, info, subject, wire, loop.time() - began + SKEW)
        except AuthorizationError:
            return None
        except (NattyError, TimeoutError):  # no connection, no leader: ask again
            continue
        if ack is not None or (unknown and info["config"]["num_replicas"] == 1):
            return ack
        delay *= 2  # of a cluster, until its leader has it: each look reads what has come since the batch began
    return None


async def _find(
    jetstream: JetStream, info: dict[str, Any], subject: str, wire: list[Outgoing], seconds: float
) -> PubAck | None:
    """Look for the batch among the messages that the stream got on its last subject within so many seconds."""
    stream, since = info["config"]["name"], parse_time(info["ts"]) - round(seconds * 1e9)
    try:
        first = await jetstream.request(f"STREAM.MSG.GET.{stream}", {"start_time": show_time(since)})
    except JetStreamError as error:
        if error.err_code == NO_MESSAGE:
            return None
        raise
    (name,) = parse_headers(wire[-1][2])["Nats-Batch-Id"]
    options = OrderedOptions(filters=(subject,), start=first["message"]["seq"], headers_only=True)
    async with aclosing(Ordered(jetstream, stream, options).__aiter__()) as steps:
        async for step in steps:
            if isinstance(step, CaughtUp | Vanished):
                break
            for message in step if isinstance(step, Batch) else ():
                if name.encode() in message.raw[2]:
                    place = int(message.headers["Nats-Batch-Sequence"][0])
                    return PubAck(stream, message.sequence + len(wire) - place)
    return None


def _code(error: BaseException | None) -> int:
    """Return the server's number of a refusal, or 0 for another error."""
    cause = error if isinstance(error, JetStreamError) else error and error.__cause__
    return cause.err_code if isinstance(cause, JetStreamError) else 0


async def _explain(
    jetstream: JetStream, batch: list[AtomicMessage], error: PublishError | WrongLastSequenceError, refusals: list[str]
) -> PublishError | WrongLastSequenceError:
    """Return the error with its cause in words: the server's answer to the commit names no message."""
    if isinstance(error, WrongLastSequenceError):
        text = f"no message of the batch was stored: {error}"
        return WrongLastSequenceError(text, code=error.code, err_code=error.err_code)
    if error.in_doubt:
        return error
    code, reason = _code(error), str(error)
    if code == DUPLICATE:
        reason = "a message id is in it twice, or in the stream already: an earlier attempt may have stored it"
    elif code == TOO_MANY:
        reason = "the server has too many unfinished batches: try again, or use fewer at a time"
    elif code == DISABLED:
        stream = await jetstream.stream_of(batch[0].subject)
        reason = f"stream {stream} does not accept atomic batches: set allow_atomic"
    elif code == INCOMPLETE or isinstance(error.__cause__, NoRespondersError):
        reason = await _explain_missing(jetstream, batch, refusals)
    return PublishError(f"no message of the batch was stored: {reason}", subject=error.subject or batch[0].subject)


async def _explain_missing(jetstream: JetStream, batch: list[AtomicMessage], refusals: list[str]) -> str:
    if refusals:
        return f"not permitted: {refusals[0]}"
    try:
        stream = await jetstream.stream_of(batch[0].subject)
    except PublishError as error:
        return str(error)
    subjects = (await jetstream.request(f"STREAM.INFO.{stream}"))["config"].get("subjects") or ()
    for place, one in enumerate(batch, start=1):
        if not covers(subjects, one.subject):
            return f"message {place} on {one.subject} is not for stream {stream}: a batch goes to one stream"
    return f"stream {stream} did not get the whole batch: its leader changed, or it took over ten seconds; retry it"
