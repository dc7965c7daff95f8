"""JetStream's API on one connection: requests, publishing with an ack, reading one message, compare-and-set."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from natty.config.options import check_numbers
from natty.config.units import check_seconds
from natty.errors import (
    UNREADABLE,
    BadSubjectError,
    BucketNotFoundError,
    ConsumerNotFoundError,
    DomainUnreachableError,
    JetStreamError,
    JetStreamNotEnabledError,
    NoRespondersError,
    NotConnectedError,
    PublishError,
    RequestTimeoutError,
    StreamNotFoundError,
    UnsupportedError,
    WrongLastSequenceError,
    legible,
    name_missing,
)
from natty.names import check_subject, decode, delivered_subject
from natty.wire import tracing
from natty.wire.connection import Connection
from natty.wire.counters import PUBLISHER
from natty.wire.message import MESSAGE_ID, TTL, Headers, encode_headers, parse_headers
from natty.wire.servers import NEEDS, Need, text_of

OWN_API = "$JS.API"  # of our own domain and account
UNAVAILABLE = 503  # a status: there is no responder
NO_LEADER, NO_MESSAGE, TTL_DISABLED, STREAM_EXISTS = 10008, 10037, 10166, 10058
IN_PROCESS = 10158  # a message with the same id is being stored; the outcome is open
IN_FLIGHT = 10164  # the server is handling another write of the subject: try again; only 10071 is decisive
_ERRORS: dict[int, type[JetStreamError]] = {
    10014: ConsumerNotFoundError,
    10039: JetStreamNotEnabledError,
    10059: StreamNotFoundError,
    10071: WrongLastSequenceError,
    10076: JetStreamNotEnabledError,
    IN_FLIGHT: WrongLastSequenceError,
}
RETRY_DELAY = 0.1  # seconds between two tries while a stream has no leader
_NOT_ENABLED = "JetStream is not enabled on this server or account; put `jetstream {}` into the server's configuration"
_LEADERLESS = "the cluster's JetStream has no leader: try again, and check that more than half of its servers run"
SEND_AGAIN, ASK_AGAIN = 1.0, 1.0  # seconds without an ack before a message with an id, or a question, is sent again
UNKNOWN = ""  # the stream of a publish without an ack: subjects do not say
_ABOUT_ALL = ("INFO", "STREAM.NAMES", "STREAM.LIST")
_QUESTIONS = (*_ABOUT_ALL, "STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.INFO.", "CONSUMER.NAMES.", "CONSUMER.LIST.")


class PubAck(msgspec.Struct, frozen=True):
    """The stream's answer to a stored message."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    schedule: str = ""  # the subject that holds a message until it is published later


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class PubAnswer(PubAck, frozen=True):
    """An answer to a publish: an ack, or a refusal."""

    error: _Refusal | None = None


_decode_answer = msgspec.json.Decoder(PubAnswer).decode


@dataclass(eq=False, slots=True)
class _Outcomes:
    """The outcomes of awaited publishes to one stream."""

    stored: int = 0
    failed: int = 0
    duplicates: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the stream holds it, read by its leader."""

    subject: str
    sequence: int
    data: bytes
    header_block: bytes
    time: str

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers."""
        return parse_headers(self.header_block) if self.header_block else {}

    @property
    def is_marker(self) -> bool:
        """Whether it is a marker that the key is gone: deleted, purged or expired."""
        headers = self.headers
        return "Nats-Marker-Reason" in headers or headers.get("KV-Operation", ["PUT"])[0] in ("DEL", "PURGE")


class JetStream:
    """JetStream's API as on the wire: natty is built on it, and you can use it where natty has no method."""

    def __init__(self, connection: Connection) -> None:
        self.connection, config = connection, connection.config
        self.prefix = config.api_prefix or (f"$JS.{config.domain}.API" if config.domain else OWN_API)
        self._outcomes: dict[str, _Outcomes] = {}  # of awaited publishes, by stream

    def __repr__(self) -> str:
        return f"JetStream({self.prefix}, {self.connection!r})"

    def write_subject(self, subject: str) -> str:
        """Return the subject to publish on, for a message that is stored under `subject`.

        Buckets of another domain or account are written through the prefix of its API, because their names are the same
        everywhere; the server removes the prefix.
        """
        return f"{self.prefix}.{subject}" if self.prefix != OWN_API and subject.startswith("$KV.") else subject

    def require(self, feature: str, *version: int) -> None:
        """UnsupportedError if the server is older than `version`, by default the version in `servers.NEEDS`.

        NotConnectedError if no server was reached yet.
        """
        if not self.connection.server_info:
            raise self.connection.no_session()
        need = Need(version, "") if version else NEEDS[feature]
        have = self.connection.server_version
        if not need.is_met_by(have):
            text = f"{feature} needs nats-server {need.text_for(have)} or later and this one is {text_of(have)}"
            raise UnsupportedError(f"{text}: upgrade it")

    async def request(
        self, subject: str, body: Any = None, *, timeout: float | None = None, led: bool = False
    ) -> dict[str, Any]:
        """Call the API, `subject` without the prefix. Raises the error of the answer by its number, see `errors`.

        Requests that only read are sent again until `timeout`: every second, after a reconnect, and while the cluster
        has no leader; with `led`, also while a stream has none and followers answer. ConfigError for a number that a
        server can't hold; BadSubjectError for a name that is not one word; JetStreamNotEnabledError if no server
        answers, DomainUnreachableError if the API is another domain's or account's; RequestTimeoutError.
        """
        check_numbers(body)
        if not all(subject.split(".")):
            raise BadSubjectError(f"{subject} has an empty name of a stream, a consumer or a subject")
        data = b"" if body is None else msgspec.json.encode(body)
        if not subject.startswith(_QUESTIONS):
            return await self._request(subject, data, timeout, None)
        loop, remaining = asyncio.get_running_loop(), self.connection.config.timeout if timeout is None else timeout
        check_seconds(timeout=remaining)
        deadline = loop.time() + remaining
        while True:
            try:
                answer = await self._request(subject, data, remaining, ASK_AGAIN)
                if not led or not (cluster := answer.get("cluster")) or cluster.get("leader"):
                    return answer
                raise _error(_Refusal(UNAVAILABLE, NO_LEADER), subject)
            except (NotConnectedError, JetStreamError) as error:
                remaining = deadline - loop.time() - RETRY_DELAY
                may_pass = isinstance(error, NotConnectedError) or error.err_code == NO_LEADER
                if remaining <= 0 or not may_pass or not self.connection.supervised:
                    raise
            await asyncio.sleep(RETRY_DELAY)

    async def _request(self, subject: str, data: bytes, timeout: float | None, again: float | None) -> dict[str, Any]:
        try:
            raw = await self.connection.request(f"{self.prefix}.{subject}", data, timeout=timeout, again=again)
        except NoRespondersError as error:
            if self.prefix != OWN_API:
                text = f"no server answers on {self.prefix}: check its name, and that it is linked to this server"
                raise DomainUnreachableError(text, code=UNAVAILABLE) from error
            raise JetStreamNotEnabledError(_NOT_ENABLED) from error
        try:
            answer = msgspec.json.decode(raw[3], type=dict[str, Any])
            refused = msgspec.convert(answer.get("error") or None, _Refusal | None)
        except UNREADABLE as error:
            raise JetStreamError(f"{subject}: the answer is not one of JetStream's: {raw[3][:80]!r}") from error
        if refused is not None:
            raise _error(refused, subject)
        return answer

    async def stream_of(self, subject: str) -> str:
        """Return the stream that stores messages on a subject. PublishError if there is none."""
        if not (names := (await self.request("STREAM.NAMES", {"subject": subject})).get("streams")):
            raise PublishError(f"no stream takes {subject!r}: create one whose subjects cover it", subject=subject)
        return str(names[0])

    def publish_and_count(
        self, subject: str, data: bytes, *, headers: Headers, timeout: float | None = None
    ) -> Coroutine[Any, Any, PubAck]:
        """Publish like `publish`, in a span if the application traces, and count it for the metrics."""
        if "opentelemetry.trace" in sys.modules:
            return self._trace_publish(subject, data, headers, timeout)
        return self.count(lambda: self.publish(subject, data, headers=headers, timeout=timeout))

    async def _trace_publish(self, subject: str, data: bytes, headers: Headers, timeout: float | None) -> PubAck:
        with tracing.trace_send(subject) as inject:
            traced = inject(headers)
            return await self.count(lambda: self.publish(subject, data, headers=traced, timeout=timeout))

    async def count(self, publish: Callable[[], Awaitable[PubAck]], messages: int = 1) -> PubAck:
        """Publish and count messages. An error or a cancellation counts as failed, also if the outcome is in doubt."""
        unanswered = self._outcomes.get(UNKNOWN) or self._count_outcomes(UNKNOWN)
        unanswered.waiting += messages
        try:
            ack = await publish()
        except BaseException:
            unanswered.failed += messages
            raise
        finally:
            unanswered.waiting -= messages
        outcomes = self._outcomes.get(ack.stream) or self._count_outcomes(ack.stream)
        outcomes.stored += messages
        outcomes.duplicates += ack.duplicate
        return ack

    def count_failed(self) -> None:
        """Count a message that has failed before its stream was known."""
        (self._outcomes.get(UNKNOWN) or self._count_outcomes(UNKNOWN)).failed += 1

    def _count_outcomes(self, stream: str) -> _Outcomes:
        outcomes = self._outcomes[stream] = _Outcomes()
        self.connection.observed.add(outcomes, PUBLISHER, stream)
        return outcomes

    async def publish(
        self,
        subject: str,
        data: bytes,
        *,
        headers: Headers | None = None,
        timeout: float | None = None,
        stream: str = "",
        verbatim: bool = False,
    ) -> PubAck:
        """Publish and return the stream's ack.

        While no stream listens (a leader is being elected), retries until `timeout`. PublishError after that, and if
        the server refuses the message; WrongLastSequenceError for an expectation that does not hold. After
        RequestTimeoutError and NotConnectedError the message may be stored or not; with a `Nats-Msg-Id` it is first
        sent again until `timeout`, also while a cluster is still storing an earlier try. With `stream`,
        StreamNotFoundError at once if it is missing. `verbatim`: the subject is that of a delivered message, with any
        characters.
        """
        if timeout is not None:
            check_seconds(timeout=timeout)
        delivered_subject(subject) if verbatim else check_subject(subject)
        wire = self.write_subject(subject)
        if headers and TTL in headers:  # an older server would store it forever
            self.require("a message's ttl")
        repeatable = bool(headers and MESSAGE_ID in headers)
        loop, timeout = asyncio.get_running_loop(), self.connection.config.timeout if timeout is None else timeout
        deadline = loop.time() + timeout
        block = encode_headers(headers) if headers else b""
        while True:
            remaining = max(0.001, deadline - loop.time())
            try:
                once = min(remaining, SEND_AGAIN) if repeatable else remaining
                return read_ack((await self.connection.request(wire, data, headers=block, timeout=once))[3], subject)
            except (RequestTimeoutError, NotConnectedError):
                if not repeatable or loop.time() + RETRY_DELAY >= deadline or not self.connection.supervised:
                    raise
                await asyncio.sleep(RETRY_DELAY)
            except NoRespondersError:
                if loop.time() + RETRY_DELAY >= deadline:
                    text = f"no stream takes {subject!r}: create one whose subjects cover it"
                    raise PublishError(text, subject=subject) from None
                if stream:
                    await self.request(f"STREAM.INFO.{stream}", timeout=remaining)
                await asyncio.sleep(RETRY_DELAY)
            except PublishError as error:
                if not is_in_process(error):
                    raise
                if loop.time() + RETRY_DELAY >= deadline:
                    text = f"{subject}: a message with the same id was still being stored after {timeout:g} s"
                    raise RequestTimeoutError(text) from error
                await asyncio.sleep(RETRY_DELAY)

    async def read(
        self, stream: str, *, sequence: int = 0, subject: str = "", timeout: float | None = None
    ) -> StoredMessage | None:
        """Return the message at a sequence, or the last one on a subject, from the stream's leader; None if none.

        With both, the first one on the subject from the sequence on; then the subject may have wildcards.
        A hint: only a conditional publish shows whether it is still the last one. A byte of its subject that is not
        UTF-8 reads as U+FFFD, because the answer is JSON. BadSubjectError for a subject that JSON can't hold.
        """
        if legible(subject) != subject:
            raise BadSubjectError(f"subject {subject!r} is not UTF-8: the server's API can't look it up")
        body: dict[str, Any] = {"seq": sequence} if sequence or not subject else {}
        if subject:
            body["next_by_subj" if sequence else "last_by_subj"] = subject
        try:
            answer = await self.request(f"STREAM.MSG.GET.{stream}", body, timeout=timeout)
        except JetStreamError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        return StoredMessage(
            subject=message["subject"],
            sequence=message["seq"],
            data=base64.b64decode(message.get("data", "")),
            header_block=base64.b64decode(message.get("hdrs", "")),
            time=message["time"],
        )

    async def compare_and_set(
        self,
        stream: str,
        subject: str,
        data: bytes,
        *,
        expected: int,
        nonce: str,
        headers: Headers | None = None,
        timeout: float,
    ) -> int:
        """Store `data` if the subject's last sequence is `expected` (0: none); return the new sequence.

        `nonce` must be unique to this write: after an ambiguous answer the last message is read back, and it is ours if
        it has the nonce. WrongLastSequenceError if another writer was first; RequestTimeoutError if it stays in doubt.
        Protocol: ADR-8 (`Nats-Expected-Last-Subject-Sequence`).
        """
        deadline = (loop := asyncio.get_running_loop()).time() + timeout
        all_headers = {"Nats-Expected-Last-Subject-Sequence": str(expected), "Natty-Nonce": nonce, **(headers or {})}
        while True:
            remaining = max(0.001, deadline - loop.time())
            try:
                return (await self.publish(subject, data, headers=all_headers, timeout=remaining, stream=stream)).seq
            except WrongLastSequenceError as error:
                if error.err_code != IN_FLIGHT:
                    last = await self.read(stream, subject=subject, timeout=max(0.001, deadline - loop.time()))
                    if last is not None and last.headers.get("Natty-Nonce") == [nonce]:
                        return last.sequence
                    raise
            except (RequestTimeoutError, NotConnectedError):
                if loop.time() >= deadline or not self.connection.supervised:
                    raise
            if loop.time() + RETRY_DELAY / 4 >= deadline:
                raise RequestTimeoutError(f"the write of {subject} is still in doubt after {timeout:g} s")
            await asyncio.sleep(RETRY_DELAY / 4)


def read_ack(payload: bytes, subject: str | bytes) -> PubAck:
    """Return the ack in an answer to a publish. PublishError or WrongLastSequenceError if it is a refusal."""
    try:
        answer = _decode_answer(payload)
    except UNREADABLE as error:
        raise _not_an_ack(payload, subject) from error
    if answer.error is not None:
        _raise_refusal(answer.error, decode(subject) if isinstance(subject, bytes) else subject)
    if not answer.stream:  # the answer of a subscriber that is not a stream and stores nothing
        raise _not_an_ack(payload, subject)
    return PubAck(answer.stream, answer.seq, answer.duplicate)


def _not_an_ack(payload: bytes, subject: str | bytes) -> PublishError:
    text = decode(subject) if isinstance(subject, bytes) else subject
    return PublishError(f"{text}: the answer is not an ack: {payload[:80]!r}", subject=text)


def _raise_refusal(refusal: _Refusal, subject: str) -> NoReturn:
    refused = _error(refusal, subject)
    if isinstance(refused, WrongLastSequenceError):
        raise refused
    what_to_do = "; set allow_msg_ttl on the stream" if refusal.err_code == TTL_DISABLED else ""
    raise PublishError(f"{subject}: {refusal.description}{what_to_do}", subject=subject) from refused


def is_in_process(error: BaseException) -> bool:
    """Return whether the server refused because it is storing a message with the same id: usually an earlier try."""
    return isinstance(error.__cause__, JetStreamError) and error.__cause__.err_code == IN_PROCESS


def _error(refused: _Refusal, subject: str) -> JetStreamError:
    kind = _ERRORS.get(refused.err_code, JetStreamError)
    if kind is StreamNotFoundError and ".KV_" in subject:
        return BucketNotFoundError(f"there is no bucket {subject.partition('.KV_')[2]}", code=404, err_code=10059)
    said = _LEADERLESS if refused.err_code == NO_LEADER else refused.description
    text = f"{name_missing(kind, subject) or said} ({subject}, error {refused.err_code})"
    return kind(text, code=refused.code, err_code=refused.err_code)
