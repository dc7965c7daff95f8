"""The subject on which a message of a consumer is settled, and what is published on it.

The server sends each message with its ack subject as the reply. Its nine tokens are
`$JS.ACK.stream.consumer.deliveries.sequence.consumer_sequence.time.pending`; newer servers write a domain and an
account hash behind `$JS.ACK` (ADR-15).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec

from natty.config.units import NANOSECONDS
from natty.errors import UNREADABLE, legible

ACK = b"+ACK"
NAK = b"-NAK"
IN_PROGRESS = b"+WPI"

ACKS = b"$JS.ACK."
"""How every subject begins on which a stored message is settled."""

_read_numbers = msgspec.json.Decoder(list[int]).decode


def ack_subject(stream: str, consumer: str, sequence: int, time_ns: int = 0, *, deliveries: int = 1) -> bytes:
    """Return the ack subject of a message that was not delivered, for code that handles it like a delivered one."""
    return b"%b%b.%b.%d.%d.0.%d.0" % (ACKS, stream.encode(), consumer.encode(), deliveries, sequence, time_ns)


def ack_subjects(stream: str, consumer: str, sequences: Iterable[int], times_ns: Iterable[int]) -> list[bytes]:
    """Return the ack subjects of messages that were not delivered, as if each was delivered once."""
    head = b"%b%b.%b.1." % (ACKS, stream.encode(), consumer.encode())
    return [b"%b%d.0.%d.0" % (head, sequence, at) for sequence, at in zip(sequences, times_ns, strict=True)]


def ack_tokens(reply: bytes) -> list[bytes]:
    """Return the nine tokens of an ack subject, without the domain and the account hash."""
    tokens = reply.split(b".")
    shift = _shift(len(tokens))
    return tokens[:2] + tokens[2 + shift : 9 + shift]


def _shift(tokens: int) -> int:
    """Return how many tokens stand between `$JS.ACK` and the stream."""
    return 0 if tokens < 11 else 2


class Acks:
    """The ack subjects of many messages as columns; tokens are counted as in `ack_tokens`."""

    def __init__(self, replies: list[bytes]) -> None:
        self._replies = replies

    def column(self, index: int) -> list[bytes]:
        """Return the token at this index, from 2 on, of every ack subject."""
        tokens, width, shift = self._tokens
        return tokens[index + shift :: width]

    def numbers(self, index: int) -> list[int]:
        """Return the token at this index, from 4 on, of every ack subject as a number."""
        if (numbers := self._numbers) is not None:
            return numbers[index - 4 :: 5]
        return list(map(int, self.column(index)))

    @cached_property
    def _tokens(self) -> tuple[list[bytes], int, int]:
        """The tokens, how many an ack subject has, and how many stand between `$JS.ACK` and the stream."""
        replies = self._replies
        tokens = b".".join(replies).split(b".") if replies else []
        width = len(tokens) // len(replies) if replies else 9
        starts = [tokens[at::width].count(word) for at, word in enumerate((b"$JS", b"ACK"))]
        if len(tokens) == width * len(replies) and starts == [len(replies)] * 2:
            return tokens, width, _shift(width)
        rows = [ack_tokens(reply) for reply in replies]  # not all of one form
        return [row[index] for row in rows for index in range(9)], 9, 0

    @cached_property
    def _numbers(self) -> list[int] | None:
        """The last five tokens of every ack subject, read together; None if it is not all that differs in them."""
        replies = self._replies
        if not replies or replies[0].count(b".") != 8:
            return None
        start = b".".join(replies[0].split(b".", 4)[:4]) + b"."
        text = b".".join(replies)
        if text.count(start) != len(replies):
            return None
        try:
            numbers = _read_numbers(b"[%b]" % text.replace(start, b"").replace(b".", b","))
        except UNREADABLE:
            return None
        return numbers if len(numbers) == 5 * len(replies) else None


def are_acks(replies: list[bytes]) -> bool:
    """Return whether all of them are ack subjects."""
    return b"\n".join([b"", *replies]).count(b"\n" + ACKS) == len(replies)


def identity_of(reply: bytes) -> bytes:
    """Return what names a message, whichever consumer delivered it: its sequence and the time when it was stored."""
    tokens = ack_tokens(reply)
    return tokens[5] + b"." + tokens[7]


def sequence_of(reply: bytes) -> int:
    """Return the sequence in the stream of the message of an ack subject."""
    return int(ack_tokens(reply)[5])


def delivery_of(reply: bytes) -> int:
    """Return the number of this delivery among all of its consumer, counted from 1."""
    return int(ack_tokens(reply)[6])


def first_delivery(stream: str, consumer: str) -> bytes:
    """Return what the ack subjects of this consumer contain where a message is delivered for the first time."""
    return f".{stream}.{consumer}.1.".encode()


def start_of_first_delivery(reply: bytes) -> bytes:
    """Return how the ack subject begins of a message that the same consumer delivers for the first time."""
    tokens = reply.split(b".")
    return b".".join([*tokens[: 4 + _shift(len(tokens))], b"1", b""])


def line_of_first_deliveries(replies: list[bytes]) -> bytes:
    """Return a line break and the start of ack subjects of first deliveries; b"" if there is no ack subject.

    The line break is the separator of subjects that are joined for counting, so it matches only at their beginning.
    """
    for reply in replies:
        if reply.startswith(ACKS):
            return b"\n" + start_of_first_delivery(reply)
    return b""


def nak(delay: float = 0.0) -> bytes:
    """Return what asks for a message to be delivered again, after `delay` seconds."""
    return b'%b {"delay": %d}' % (NAK, int(delay * NANOSECONDS)) if delay > 0 else NAK


def term(reason: str = "") -> bytes:
    """Return what ends all deliveries of a message; the server's advisory shows the reason.

    TypeError if the reason is not a str.
    """
    if not isinstance(reason, str):
        raise TypeError(f"the reason to terminate a message must be a str and is of type {type(reason).__name__}")
    return b"+TERM " + legible(reason).encode() if reason else b"+TERM"
