"""Turns the answers of batched direct gets into columns, and removes the headers that the server added."""

from __future__ import annotations

from bisect import bisect_right

import pyarrow as pa

from capture.ingest.record import Records
from natty.wire.message import RawMessage

_MARK = b"\r\nNats-Stream: "
"""The start of the headers that the server appends to a message's own; the last occurrence is the server's."""

_NO_HEADERS = len(b"NATS/1.0")
_LINES = 7
"""Stream, Subject, Sequence, Time-Stamp, Num-Pending and Last-Sequence, and the empty line after them."""


class Broken(Exception):
    """A message of the answer is missing: routes between servers may drop some."""


class Mirrored(Exception):
    """A mirror has answered, which may hold less than the stream does."""


class Unbatched(Exception):
    """A server before 2.11 has answered, with one message and without an end."""


def count_bytes(records: Records[None]) -> int:
    """Return the size of payloads and headers."""
    return sum(map(len, records.payloads)) + sum(map(len, records.header_blocks))


def take_until(records: Records[None], last: int) -> Records[None]:
    """Return the records up to this sequence."""
    if not records.sequences or records.sequences[-1] <= last:
        return records
    return records.select(range(bisect_right(records.sequences, last)))


def is_message(raw: RawMessage) -> bool:
    """Return whether it is a message of the stream, and not the status that ends an answer."""
    return _MARK in raw[2]


def is_batched(raw: RawMessage) -> bool:
    """Return whether a message of the stream is part of an answer with several, which says how many follow."""
    return b"\r\nNats-Num-Pending: " in raw[2]


def of_answer(raw: list[RawMessage], stream: str, last: int) -> Records[None]:
    """Return a direct get's messages, whose last sequence is `last` according to the server.

    Broken unless each names the sequence of the one before it as last sent; Mirrored if they are another stream's.
    """
    blocks = [message[2] for message in raw]
    marks = [block.rfind(_MARK) for block in blocks]
    added = b"".join([block[mark + 2 :] for block, mark in zip(blocks, marks, strict=True)])
    lines = added.split(b"\r\n")
    if lines[0:-1:_LINES].count(b"Nats-Stream: " + stream.encode()) != len(raw):
        raise Mirrored
    sequences = list(map(int, _values(lines, 2, b"Nats-Sequence: ")))
    sent_before = list(map(int, _values(lines, 5, b"Nats-Last-Sequence: ")))
    if sent_before != [0, *sequences[:-1]] or sequences[-1] != last:
        raise Broken
    return Records(
        stream=stream,
        sequences=sequences,
        times_ns=_nanoseconds(_values(lines, 3, b"Nats-Time-Stamp: ")),
        subjects=_values(lines, 1, b"Nats-Subject: "),
        header_blocks=[
            block[:mark] + b"\r\n\r\n" if mark > _NO_HEADERS else b"" for block, mark in zip(blocks, marks, strict=True)
        ],
        payloads=[message[3] for message in raw],
        deliveries=[1] * len(raw),
    )


def _values(lines: list[bytes], place: int, name: bytes) -> list[bytes]:
    """Return the values of a header, which is at this place in each message. They have no blanks."""
    return b"\n".join(lines[place::_LINES]).replace(name, b"").split(b"\n")


def _nanoseconds(times: list[bytes]) -> list[int]:
    """Return these times, RFC 3339 in UTC, as Unix nanoseconds."""
    parsed = pa.array(times, pa.binary()).cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
    return list(parsed.cast(pa.int64()).to_pylist())
