"""Messages as they are on the wire: headers, batches, and the message that a handler gets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import chain
from math import ceil
from typing import Any, Protocol

from natty.config.units import check_ttl, seconds_of
from natty.errors import NotConnectedError
from natty.names import MAX_LINE, check_line, decode, encode
from natty.wire.ack import ACK, IN_PROGRESS, Acks, ack_tokens, are_acks, nak, term

RawMessage = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply, header block, payload), as the parser delivers them; the header block is `b""` if there is none."""

Outgoing = tuple[bytes, bytes, bytes, bytes]
"""(subject, reply, header block, payload) of a message to publish."""

Sink = Callable[["Batch"], None]
"""Receives the messages of one subscription straight from the parser: never blocks, never raises."""

Headers = Mapping[str, str | list[str]]
"""Headers to send: a value, or several for a repeated name."""

MESSAGE_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"
SHORT = MAX_LINE - 64  # bytes of subjects: with less, no line is too long
_HEADER_NAME = re.compile(r"[^\x00-\x20:\x7f]+")


def as_payload(data: object, what: str = "the data of a message") -> bytes:
    """Return data to be published as bytes: a bytearray or a memoryview as a copy. TypeError for anything else."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    kind = type(data).__name__
    raise TypeError(f"{what} must be bytes and is of type {kind}: encode it, a text with .encode()")


def check(message: Outgoing) -> Outgoing:
    """Return a message to publish with its payload as bytes.

    TypeError names what is of another type; BadSubjectError if the subjects are longer than a server reads.
    """
    subject, reply, headers, data = message
    if not (isinstance(subject, bytes) and isinstance(reply, bytes) and isinstance(headers, bytes)):
        raise _type_error(message)
    if not isinstance(data, bytes):
        message = (subject, reply, headers, data := as_payload(data))
    if len(subject) + len(reply) > SHORT:
        size = len(headers) + len(data)
        check_line(subject, reply, *([b"%d" % len(headers)] if headers else []), b"%d" % size)
    return message


def _type_error(message: Outgoing) -> TypeError:
    named = zip(("subject", "reply", "header block"), message, strict=False)
    what, kind = next((what, type(value).__name__) for what, value in named if not isinstance(value, bytes))
    return TypeError(f"the {what} of a message on the wire must be bytes and is of type {kind}")


def parse_headers(block: bytes) -> dict[str, list[str]]:
    """Return the headers of a raw block (`NATS/1.0…`), every value of a repeated name kept in order."""
    headers: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            headers.setdefault(decode(name), []).append(decode(value.strip(b" \t")))
    return headers


def status_of(block: bytes) -> tuple[int, str]:
    """Return (status, description) of a header block's first line; (0, "") if it carries none, of three digits."""
    code, _, text = block[8 : block.find(b"\r\n")].strip().partition(b" ")
    known = len(code) == 3 and code.isdigit()
    return (int(code), text.decode("utf-8", "replace").strip()) if known else (0, "")


def encode_headers(headers: Headers) -> bytes:
    """Return the raw block of these headers.

    TypeError for a name or value that is not text; ValueError for a colon in a name, a line break in a name or value.
    """
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if not (isinstance(name, str) and isinstance(one, str)):
                kinds = f"{type(name).__name__} and {type(one).__name__}"
                raise TypeError(f"header {name!r}: its name and its value must be str and are {kinds}")
            if "\r" in name + one or "\n" in name + one:
                raise ValueError(f"header {name!r} has a line break in its name or value")
            if ":" in name:
                raise ValueError(f"header {name!r} has a colon in its name: the rest would be read as its value")
            lines.append(f"{name}: {one}")
    block = "\r\n".join(lines) + "\r\n\r\n"
    return block.encode() if block.isascii() else encode(block)


def publish_headers(
    headers: Headers | None,
    *,
    msg_id: str = "",
    expect_last_sequence: int | None = None,
    expect_last_subject_sequence: int | None = None,
    ttl: float | str | None = None,
) -> dict[str, str | list[str]]:
    """Return the caller's headers with those of JetStream added (ADR-8, ADR-43); the caller's are not changed.

    `ttl` is in seconds, or text ("7d"), rounded up to whole seconds. ValueError if it is not positive or over 100
    years, or if a header's name is empty or has a blank, a colon or a control character.
    """
    for name in headers or ():
        check_header_name(name)
    if ttl is not None:
        if (ttl := seconds_of("ttl", ttl)) <= 0:
            raise ValueError(f"ttl is {ttl:g} s and must be more than 0; leave it out to keep the message")
        check_ttl(ttl)
    conditions = {
        MESSAGE_ID: msg_id or None,
        "Nats-Expected-Last-Sequence": expect_last_sequence,
        "Nats-Expected-Last-Subject-Sequence": expect_last_subject_sequence,
        TTL: None if ttl is None else ceil(ttl),
    }
    return dict(headers or {}) | {name: str(value) for name, value in conditions.items() if value is not None}


@lru_cache(maxsize=1024)
def check_header_name(name: str) -> None:
    """ValueError if no header can have this name."""
    if isinstance(name, str) and not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"header name {name!r} is empty, or has a blank, a colon or a control character")


class Numbered(Protocol):
    """A message to publish whose reply subject ends with its number; see `Connection.send_numbered`."""

    subject: bytes
    headers: bytes  # a raw block
    data: bytes


Withdraw = Callable[[], bool]  # has what was kept without a connection not be sent; whether it was kept until now


class Sender(Protocol):
    """Sends the acks of messages: a connection."""

    def send(self, subject: bytes, data: bytes) -> Withdraw | None:
        """Publish. Without a connection, return what makes sure that it is not sent later either."""

    def confirm(self, subject: bytes, data: bytes) -> Awaitable[object] | None:
        """Publish as a request; the result, if any, waits for the answer. It need not be awaited."""

    async def flush(self) -> None:
        """Return when the server has received what was sent."""


class Confirmation:
    """What settling a message returns. `await` it until the server has confirmed; it need not be awaited.

    Of an ack: the server has settled the message, and never delivers it to this consumer again. Of `nak` and `term`
    without `confirm`: the server has received it. RequestTimeoutError, or NotConnectedError, if that stays unknown.
    NoRespondersError: the consumer was deleted. What is awaited without a connection is not sent, nor settled, then.
    """

    __slots__ = ("_again", "_asked", "_message", "_withdraw")

    def __init__(
        self, message: Message, again: bytes, asked: Awaitable[object] | None = None, withdraw: Withdraw | None = None
    ) -> None:
        self._message, self._asked, self._withdraw = message, asked, withdraw
        self._again = again  # to be sent as a request when it is awaited; b"" for nothing

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        sender, subject = self._message._sender, self._message.raw[1]
        if self._withdraw is not None:
            self._message.settled = not self._withdraw()
            raise NotConnectedError("the message was settled without a connection: the server has not confirmed it")
        asked = self._asked or (sender.confirm(subject, self._again) if self._again else None)
        await (asyncio.shield(asked) if asked is not None else sender.flush())


class Batch:
    """The messages of one read of the socket, in order of delivery, also as columns.

    The parser makes rows or columns, whichever costs less; the other form is made on first use.
    """

    def __init__(self, raw: list[RawMessage], connection: Sender | None = None) -> None:
        self.raw = raw
        self._connection = connection
        self._count = len(raw)

    @classmethod
    def of_columns(
        cls, subjects: list[bytes], replies: list[bytes], header_blocks: list[bytes], payloads: list[bytes]
    ) -> Batch:
        """Return a batch of these columns, which have an entry for each message."""
        batch = cls.__new__(cls)
        batch.subjects, batch.replies, batch.header_blocks, batch.payloads = subjects, replies, header_blocks, payloads
        batch._connection, batch._count = None, len(replies)
        return batch

    @classmethod
    def join(cls, batches: list[Batch], connection: Sender | None = None) -> Batch:
        """Return the messages of several batches as one, which settles them with `connection`."""
        if len(batches) == 1:
            batches[0]._connection = connection
            return batches[0]
        joined = cls.of_columns(
            *(
                list(chain.from_iterable(getattr(batch, name) for batch in batches))
                for name in ("subjects", "replies", "header_blocks", "payloads")
            )
        )
        joined._connection = connection
        return joined

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        return (Message(raw, self._connection) for raw in self.raw)

    def __repr__(self) -> str:
        if not self._count or not are_acks(self.replies):
            return f"Batch({self._count} messages)"
        return f"Batch({len(self)} messages, sequences {self.sequences[0]}–{self.sequences[-1]})"

    @cached_property
    def raw(self) -> list[RawMessage]:
        """The messages, each as a tuple."""
        return list(zip(self.subjects, self.replies, self.header_blocks, self.payloads, strict=True))

    @cached_property
    def subjects(self) -> list[bytes]:
        """The subjects."""
        return [raw[0] for raw in self.raw]

    @cached_property
    def replies(self) -> list[bytes]:
        """The subjects to acknowledge on."""
        return [raw[1] for raw in self.raw]

    @cached_property
    def header_blocks(self) -> list[bytes]:
        """The raw header blocks, `b""` for a message without headers."""
        return [raw[2] for raw in self.raw]

    @cached_property
    def payloads(self) -> list[bytes]:
        """The payloads."""
        return [raw[3] for raw in self.raw]

    @cached_property
    def _acks(self) -> Acks:
        return Acks(self.replies)

    @property
    def streams(self) -> list[bytes]:
        """The stream each message comes from."""
        return self._acks.column(2)

    @cached_property
    def sequences(self) -> list[int]:
        """The stream sequences."""
        return self._acks.numbers(5)

    @cached_property
    def times_ns(self) -> list[int]:
        """When the stream stored each message, in Unix nanoseconds."""
        return self._acks.numbers(7)

    @cached_property
    def deliveries(self) -> list[int]:
        """How many times each message has been delivered, this time included."""
        return self._acks.numbers(4)

    @cached_property
    def size(self) -> int:
        """The bytes of the messages as the server counts them: subject, ack subject, headers and payload."""
        columns = self.subjects, self.replies, self.header_blocks, self.payloads
        return sum([sum(map(len, column)) for column in columns])


class Received:
    """A message as the parser delivered it."""

    __slots__ = ("_raw",)
    _raw: RawMessage

    @property
    def subject(self) -> str:
        """The subject it was published on; a byte that is not UTF-8 becomes a lone surrogate (see `names`)."""
        return decode(self._raw[0])

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._raw[3]

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers, with all values of a repeated name in order; bytes that are not UTF-8 as in `subject`."""
        return parse_headers(self._raw[2])


class Message(Received):
    """One message of a stream. Settle it once: `ack`, `nak` or `term`.

    Each is sent with the next write, and idempotent. What they return may be awaited: see `Confirmation`. With
    `confirm=True` the ack also requests the server's confirmation; in a thread, the call then returns when it has
    come. An awaited ack without it is sent twice. Without a connection, `ack` and `term` of what `consume`, `join` and
    `pull` deliver are sent when it is back, unless awaited; a `nak` is dropped: `ack_wait` has the same effect.
    """

    __slots__ = ("_connection", "_settled_by", "settled")

    def __init__(self, raw: RawMessage, connection: Sender | None = None) -> None:
        self._raw = raw
        self._connection = connection
        self.settled = False

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, sequence={self.sequence}, {len(self.data)} bytes)"

    @property
    def raw(self) -> RawMessage:
        """The message as the parser delivered it."""
        return self._raw

    @property
    def msg_id(self) -> str | None:
        """The `Nats-Msg-Id` it was published with."""
        return next(iter(self.headers.get(MESSAGE_ID, ())), None)

    @property
    def stream(self) -> str:
        """The stream's name."""
        return decode(ack_tokens(self._raw[1])[2])

    @property
    def sequence(self) -> int:
        """The sequence in the stream."""
        return int(ack_tokens(self._raw[1])[5])

    @property
    def time_ns(self) -> int:
        """When the stream stored it, in Unix nanoseconds."""
        return int(ack_tokens(self._raw[1])[7])

    @property
    def deliveries(self) -> int:
        """How many times it has been delivered, this time included."""
        return int(ack_tokens(self._raw[1])[4])

    def ack(self, *, confirm: bool = False) -> Confirmation:
        """Acknowledge it: the server never delivers it to this consumer again."""
        if confirm or self.settled or self._connection is None:
            return self._settle(ACK, confirm)
        withdraw = self._connection.send(self._raw[1], ACK)  # the common case, without a further call
        self.settled = True
        return Confirmation(self, ACK, None, withdraw)

    def nak(self, delay: float = 0.0, *, confirm: bool = False) -> Confirmation:
        """Ask for it again, after `delay` seconds."""
        return self._settle(nak(delay), confirm)

    def term(self, reason: str = "", *, confirm: bool = False) -> Confirmation:
        """Give it up: the server never delivers it to this consumer again. `reason` goes into the server's advisory."""
        return self._settle(term(reason), confirm)

    def in_progress(self) -> None:
        """Restart its `ack_wait`: it is still being handled. Does nothing without a connection."""
        self._sender.send(self._raw[1], IN_PROGRESS)

    def _settle(self, answer: bytes, confirm: bool) -> Confirmation:
        sender, subject = self._sender, self._raw[1]
        if self.settled:
            return Confirmation(self, ACK if answer == ACK == getattr(self, "_settled_by", ACK) else b"")
        asked = sender.confirm(subject, answer) if confirm else None
        withdraw = None if confirm else sender.send(subject, answer)
        self.settled, self._settled_by = True, answer
        return Confirmation(self, ACK if answer == ACK else b"", asked, withdraw)

    @property
    def _sender(self) -> Sender:
        if self._connection is None:
            text = "this message can't be settled: natty read it from its stream, and messages of read() need no ack"
            raise RuntimeError(text)
        return self._connection
