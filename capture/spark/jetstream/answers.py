"""Turns the answers of batched direct gets into columns, and removes the headers that the server added."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import pyarrow as pa

from capture.ingest.record import Records
from natty import Batch
from natty.wire.message import RawMessage

_MARK = b"\r\nNats-Stream: "
"""The start of the headers that the server appends to a message's own; the last occurrence is the server's."""

_NO_HEADERS = len(b"NATS/1.0")
_LINES = 7
"""Stream, Subject, Sequence, Time-Stamp, Num-Pending and Last-Sequence, and the empty line after them."""

_SUBJECT, _SEQUENCE = len(b"Nats-Subject: "), len(b"Nats-Sequence: ")
_TIME, _LAST = len(b"Nats-Time-Stamp: "), len(b"Nats-Last-Sequence: ")


class Broken(Exception):
    """A message of the answer is missing: routes between servers may drop some."""


class Mirrored(Exception):
    """A mirror has answered, which may hold less than the stream does."""


@dataclass
class Messages:
    """Messages of a stream as columns, in order of their sequences."""

    sequences: list[int]
    times_ns: list[int]
    subjects: list[bytes]
    header_blocks: list[bytes]
    payloads: list[bytes]

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        return f"Messages({self.sequences[0]}–{self.sequences[-1]}, {len(self)})" if self.sequences else "Messages()"

    @property
    def bytes(self) -> int:
        """The size of payloads and headers."""
        return sum(map(len, self.payloads)) + sum(map(len, self.header_blocks))

    def extend(self, other: Messages) -> None:
        """Append messages that follow."""
        self.sequences += other.sequences
        self.times_ns += other.times_ns
        self.subjects += other.subjects
        self.header_blocks += other.header_blocks
        self.payloads += other.payloads

    def until(self, last: int) -> Messages:
        """Return those up to this sequence."""
        if not self.sequences or self.sequences[-1] <= last:
            return self
        end = bisect_right(self.sequences, last)
        return Messages(
            self.sequences[:end],
            self.times_ns[:end],
            self.subjects[:end],
            self.header_blocks[:end],
            self.payloads[:end],
        )

    def records(self, stream: str) -> Records[None]:
        """Return them as records for writers. Each counts as delivered for the first time."""
        count = len(self)
        return Records(
            stream=stream,
            sequences=self.sequences,
            times_ns=self.times_ns,
            subjects=self.subjects,
            header_blocks=self.header_blocks,
            payloads=self.payloads,
            deliveries=[1] * count,
        )


def is_message(raw: RawMessage) -> bool:
    """Return whether it is a message of the stream, and not the status that ends an answer."""
    return _MARK in raw[2]


def of_batch(batch: Batch) -> Messages:
    """Return the messages that a consumer has delivered."""
    return Messages(batch.sequences, batch.times_ns, batch.subjects, batch.header_blocks, batch.payloads)


def of_answer(raw: list[RawMessage], stream: str, last: int) -> Messages:
    """Return a direct get's messages, whose last sequence is `last` according to the server.

    Broken unless each names the sequence of the one before it as last sent; Mirrored if they are another stream's.
    """
    blocks = [message[2] for message in raw]
    marks = [block.rfind(_MARK) for block in blocks]
    added = b"".join([block[mark + 2 :] for block, mark in zip(blocks, marks, strict=True)])
    lines = added.split(b"\r\n")
    if lines[0:-1:_LINES].count(b"Nats-Stream: " + stream.encode()) != len(raw):
        raise Mirrored
    sequences = [int(line[_SEQUENCE:]) for line in lines[2::_LINES]]
    sent_before = [int(line[_LAST:]) for line in lines[5::_LINES]]
    if sent_before != [0, *sequences[:-1]] or sequences[-1] != last:
        raise Broken
    return Messages(
        sequences,
        _nanoseconds([line[_TIME:] for line in lines[3::_LINES]]),
        [line[_SUBJECT:] for line in lines[1::_LINES]],
        [block[:mark] + b"\r\n\r\n" if mark > _NO_HEADERS else b"" for block, mark in zip(blocks, marks, strict=True)],
        [message[3] for message in raw],
    )


def _nanoseconds(times: list[bytes]) -> list[int]:
    """Return these times, RFC 3339 in UTC, as Unix nanoseconds."""
    parsed = pa.array(times, pa.binary()).cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
    return list(parsed.cast(pa.int64()).to_pylist())
