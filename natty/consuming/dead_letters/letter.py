"""A dead letter on the wire: its subject names the original, its headers say what happened, its payload is the same.

Subject: `$NATTY.<letters' stream>.<stream>.<consumer>.<sequence>.<original subject>`. The part after the sequence is
missing if the original no longer existed. It is also missing if the original subject is very long or not UTF-8, or has
characters that no client publishes on: then the header `Natty-Dead-Subject` has it. Each letter has a unique subject,
so that a conditional write stores it once.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from natty.errors import UNREADABLE, BadSubjectError, NattyError, legible
from natty.jetstream import StoredMessage
from natty.names import check_name, check_subject, encode
from natty.wire.message import Message, encode_headers

FACT = "Natty-Dead-"  # begins our own headers
ORIGINAL = "Natty-Original-"  # begins the original's headers: under their own names, `Nats-TTL` would act on the letter
MESSAGE_ID = "Nats-Msg-Id"
MAX_HEADER_BYTES = 65_535  # of one message in a stream; the server refuses more with any max_payload
MAX_SUBJECT_BYTES = 2048  # of a letter; the server ends the session of a client that sends a line of more than 4096
REPLACED = "\ufffd"  # in the server's JSON, it replaces a byte that is not UTF-8
REASON_CHARACTERS = 500
TRACEBACK_LINES = 8
TRACEBACK_CHARACTERS = 2000


class BadLetterError(NattyError):
    """A message among the dead letters is not a letter."""


@dataclass(frozen=True, slots=True)
class Original:
    """A message as its stream holds it, or as an advisory describes it: then there is no subject and no payload."""

    stream: str
    sequence: int
    subject: str = ""
    headers: Mapping[str, list[str]] | None = None
    data: bytes = b""
    time_ns: int = 0
    deliveries: int = 0
    subject_known: bool = True  # False: as the server's API returns it, which differs from the real subject

    @classmethod
    def of(cls, message: Message) -> Original:
        """Return the original of a delivered message."""
        return cls(
            stream=message.stream,
            sequence=message.sequence,
            subject=message.subject,
            headers=message.headers,
            data=message.data,
            time_ns=message.time_ns,
            deliveries=message.deliveries,
        )


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as its stream holds it."""

    sequence: int  # in the letters' stream
    stream: str
    consumer: str
    original_sequence: int
    subject: str  # "" if the original no longer existed; bytes that are not UTF-8 as in `Message.subject`
    subject_known: bool  # whether it has the original's exact bytes: the server's API returns only UTF-8
    has_payload: bool  # whether the original still existed when the letter was written
    time: str  # when the stream stored the original, RFC 3339; "" if unknown
    buried: str  # when the letter was stored
    deliveries: int
    reason: str
    error: str
    digest: str
    traceback: list[str]
    headers: dict[str, list[str]]
    data: bytes
    complete: bool  # whether there was room for all headers


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterFilter:
    """Selects letters: all, or those of a stream, of a consumer, or whose reason contains a text. BadNameError."""

    stream: str = ""
    consumer: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.stream:
            check_name("stream", self.stream)
        if self.consumer:
            check_name("consumer", self.consumer)

    def subject(self, prefix: str) -> str:
        """Return the subject filter, for the server."""
        return f"{prefix}.{self.stream or '*'}.{self.consumer or '*'}.>"

    def takes(self, letter: Letter) -> bool:
        """Return whether the letter's reason contains the text; case is ignored."""
        return self.reason.lower() in letter.reason.lower()


def prefix_of(letters: str) -> str:
    """Return the prefix of the subjects of a stream of letters; `$` separates them from the users' subjects."""
    return f"$NATTY.{letters}"


def subject_of(prefix: str, original: Original, consumer: str) -> str:
    """Return the subject of the letter about an original."""
    short = f"{prefix}.{original.stream}.{consumer}.{original.sequence}"
    whole = f"{short}.{original.subject}"
    return whole if _says_all(original) and len(encode(whole)) <= MAX_SUBJECT_BYTES else short


def _says_all(original: Original) -> bool:
    """Return whether a letter's subject can end with the original's, and can be used in a request."""
    subject = original.subject
    try:
        check_subject(subject)
    except BadSubjectError:
        return False
    return legible(subject) == subject and (REPLACED not in subject or not original.subject_known)


def identity_of(original: Original, consumer: str) -> str:
    """Return an id that two letters share only if they are about the same failure.

    Its time distinguishes a stream from a later one of the same name.
    """
    return f"{original.stream}.{consumer}.{original.sequence}.{original.time_ns}"


def headers_of(
    original: Original, consumer: str, reason: str, error: BaseException | None, room: int
) -> dict[str, str | list[str]]:
    """Return the letter's headers, the most important first, as many as fit into `room` bytes.

    Stream, consumer, sequence and subject are also in the letter's subject, so their headers are the first that are
    left out after the traceback. If the letter's subject can't contain the original's, its header is among the first.
    """
    subject = original.subject if original.subject_known else ""
    only_here = {} if _says_all(original) else {FACT + "Subject": subject}
    facts = {
        FACT + "Reason": one_line(reason, REASON_CHARACTERS),
        FACT + "Deliveries": str(original.deliveries),
        FACT + "Time": rfc3339(original.time_ns) if original.time_ns else "",
    }
    if not original.subject:
        facts[FACT + "Payload"] = "gone: the stream had the message no more"
    kept = {
        ORIGINAL + _no_break(name): [_no_break(one) for one in values]
        for name, values in (original.headers or {}).items()
    }
    origin = {
        FACT + "Stream": original.stream,
        FACT + "Consumer": consumer,
        FACT + "Sequence": str(original.sequence),
        FACT + "Subject": subject,
    }
    failure = _failure(error) if error else {}
    return fit({MESSAGE_ID: identity_of(original, consumer), **only_here, **kept, **facts, **origin, **failure}, room)


def fit(headers: Mapping[str, str | list[str]], room: int) -> dict[str, str | list[str]]:
    """Return the headers that fit into `room` bytes, the first ones first; `Natty-Dead-Left-Out` counts the others."""
    whole = {name: value for name, value in headers.items() if value}
    if len(encode_headers(whole)) <= room:
        return whole
    noted = {FACT + "Left-Out": str(len(whole))}
    used = len(encode_headers(noted))
    fitting: dict[str, str | list[str]] = {}
    for name, value in whole.items():
        size = len(encode_headers({name: value})) - len(encode_headers({}))
        if used + size <= room:
            fitting[name] = value
            used += size
    if not fitting:
        return {}
    return fitting | {FACT + "Left-Out": str(len(whole) - len(fitting))}


def read_letter(stored: StoredMessage) -> Letter:
    """Return the letter that the stream holds. BadLetterError for other messages."""
    try:
        return _read(stored)
    except UNREADABLE as error:
        raise BadLetterError(
            f"message {stored.sequence} of the dead letters, on {stored.subject}, is not a letter: {error}. Delete it"
        ) from error


def _read(stored: StoredMessage) -> Letter:
    _, _, stream, consumer, sequence, *rest = stored.subject.split(".", 5)
    headers = stored.headers

    def fact(name: str) -> str:
        return headers.get(FACT + name, [""])[0]

    return Letter(
        sequence=stored.sequence,
        stream=stream,
        consumer=consumer,
        original_sequence=int(sequence),
        subject=rest[0] if rest else fact("Subject"),
        subject_known=not (rest and REPLACED in rest[0]),
        has_payload=FACT + "Payload" not in headers,
        time=fact("Time"),
        buried=stored.time,
        deliveries=int(fact("Deliveries") or 0),
        reason=fact("Reason"),
        error=fact("Error"),
        digest=fact("Digest"),
        traceback=msgspec.json.decode(fact("Traceback") or "[]", type=list[str]),
        headers={name.removeprefix(ORIGINAL): values for name, values in headers.items() if name.startswith(ORIGINAL)},
        data=stored.data,
        complete=FACT + "Deliveries" in headers and FACT + "Left-Out" not in headers,
    )


def digest_of(error: BaseException) -> str:
    """Return twelve characters that are the same for the same failure on every machine.

    They are made of the types, file names and function names along the traceback and its causes, but not of line
    numbers, folders or the message.
    """
    digest = hashlib.blake2b(digest_size=6)
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = [f"{Path(one.filename).name}:{one.name}" for one in traceback.extract_tb(cause.__traceback__)]
        digest.update("\n".join([type(cause).__qualname__, *frames, ""]).encode("utf-8", "backslashreplace"))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return digest.hexdigest()


def rfc3339(time_ns: int) -> str:
    """Return the time in UTC, to the nanosecond."""
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"


def reason_of(error: BaseException) -> str:
    """Return an error as a reason, `Type: text`, that can be logged even if its `__str__` fails."""
    try:
        return legible(f"{type(error).__name__}: {error}")
    except Exception as fault:
        return f"{type(error).__name__}, whose text can't be had: {type(fault).__name__}"


def one_line(text: str, characters: int) -> str:
    """Return the text as one line that a header can hold, cut to `characters`."""
    line = " ".join(text[: 4 * characters].encode("utf-8", "backslashreplace").decode().split())
    line = "".join(one if one.isprintable() else "?" for one in line)
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _no_break(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")


def _failure(error: BaseException) -> dict[str, str]:
    text = "".join(traceback.format_exception(error)).encode("utf-8", "backslashreplace").decode()
    last_lines = text[-TRACEBACK_CHARACTERS:].rstrip().splitlines()[-TRACEBACK_LINES:]
    return {
        FACT + "Error": one_line(reason_of(error), REASON_CHARACTERS),
        FACT + "Digest": digest_of(error),
        FACT + "Traceback": msgspec.json.encode(last_lines).decode(),
    }
