"""Turns the answers of batched direct gets into rows of the envelope, and removes the headers that the server added."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set

import pyarrow as pa

from capture.formats.envelope import FROM_HEADERS, SCHEMA, payload_column, spread_header_columns, subject_columns
from natty import Batch
from natty.wire.ack import ack_subjects

_MARK = b"Nats-Stream: "
"""The start of the six headers that the server appends to a message's own. The last occurrence is the server's: what
follows has neither blanks nor line breaks but the server's own, whoever has published the message."""

_BREAK = b"\r\n"
_NO_HEADERS, _END = b"NATS/1.0", b"\r\n\r\n"
_PLACES = {b"Nats-Subject: ": 1, b"Nats-Sequence: ": 2, b"Nats-Time-Stamp: ": 3, b"Nats-Last-Sequence: ": 5}
"""Headers of the server that are read, and how many lines they stand after the one with the stream's name."""
NO_BLOCKS: Mapping[int, bytes] = {}
CONSUMER = "direct"  # in the ack subjects of messages that no consumer delivers


class Broken(Exception):
    """A message of the answer is missing: routes between servers may drop some."""


class Cut(Exception):
    """Header blocks of messages do not end as they should: the server puts its headers in the place of their last two
    bytes. `sequences` are those of the messages.

    It can't be seen that a block ended in a line break and two other bytes, or had only one or two bytes: the first is
    read without these two, the second as no headers.
    """

    def __init__(self, sequences: list[int]) -> None:
        super().__init__(f"header blocks without an end: {sequences}")
        self.sequences = sequences


class Unsuitable(Exception):
    """The stream can't be read by batched direct gets; the message says why."""


class Mirrored(Unsuitable):
    """A mirror has answered, which may hold less than the stream does."""


class Unbatched(Unsuitable):
    """A server before 2.11 has answered, with one message and without an end."""


class Disallowed(Unsuitable):
    """The stream's configuration does not allow direct gets."""


def list_sequences(rows: pa.RecordBatch) -> list[int]:
    """Return the sequences of these rows."""
    return list(rows.column("sequence").to_pylist())


def take_until(rows: pa.RecordBatch, last: int) -> pa.RecordBatch:
    """Return the rows up to this sequence; they are in order."""
    if not len(rows) or rows.column("sequence")[-1].as_py() <= last:
        return rows
    return rows.slice(0, bisect_right(list_sequences(rows), last))


def is_message(block: bytes) -> bool:
    """Return whether a message of the stream has this header block, and not the status that ends an answer."""
    return _MARK in block


class Answer:
    """The messages that an answer has brought so far, in columns. It grows with each read of the socket.

    `own` are the messages' own header blocks without their last four bytes. Those of the sequences in `cut` are not
    known.
    """

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.own: list[bytes] = []
        self.subjects: list[bytes] = []
        self.sequences: list[int] = []
        self.payloads: list[bytes] = []
        self.cut: list[int] = []
        self._times: list[bytes] = []
        self._line = _MARK + stream.encode()
        self._sent = b"0"  # the last sequence, as the server writes it

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        return f"Answer({self.stream!r}, {len(self)} messages)"

    def add(self, batch: Batch) -> None:
        """Append messages, at least one. Unbatched; Mirrored if another stream's; Broken if one before them is missing.

        The lines of a header block are found from its end, since a message's own may look like the server's.
        """
        blocks = batch.header_blocks
        first = blocks[0].rpartition(_MARK)[2]
        if b"\r\nNats-Num-Pending: " not in first:
            raise Unbatched("a server before 2.11 answers")
        added = 1 + first.count(_BREAK)  # lines and ends; a newer server may add some
        rows = [block.rsplit(_BREAK, added) for block in blocks]
        try:
            own, streams = ([row[at] for row in rows] for at in (0, -added))
            subjects, numbers, times, sent_before = (
                _values([row[place - added] for row in rows], name) for name, place in _PLACES.items()
            )
            sequences = list(map(int, numbers))
        except (IndexError, ValueError) as error:
            raise Broken from error
        if streams.count(self._line) != len(rows):
            if not all(each.endswith(self._line) for each in streams):
                raise Mirrored("a mirror answers")
            self.cut += [one for one, line in zip(sequences, streams, strict=True) if line != self._line]
        if sent_before != [self._sent, *numbers[:-1]]:
            raise Broken
        self._sent = numbers[-1]
        self.own += own
        self.subjects += subjects
        self.sequences += sequences
        self._times += times
        self.payloads += batch.payloads

    def leave_out(self, gone: Set[int]) -> None:
        """Remove the messages with these sequences."""
        kept = [at for at, sequence in enumerate(self.sequences) if sequence not in gone]
        self.own, self.subjects, self._times, self.payloads = (
            [column[at] for at in kept] for column in (self.own, self.subjects, self._times, self.payloads)
        )
        self.sequences = [self.sequences[at] for at in kept]
        self.cut = [sequence for sequence in self.cut if sequence not in gone]

    def times_ns(self) -> list[int]:
        """Return the times in nanoseconds. Broken if one is something else."""
        try:
            times = pa.array(self._times, pa.binary()).cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
        except pa.ArrowInvalid as error:
            raise Broken from error
        return list(times.cast(pa.int64()).to_pylist())

    def header_blocks(self, known: Mapping[int, bytes]) -> list[bytes]:
        """Return the messages' own header blocks, b"" for none. Cut unless those that were cut are known."""
        if cut := [sequence for sequence in self.cut if sequence not in known]:
            raise Cut(cut)
        if self.own.count(_NO_HEADERS) == len(self.own):
            blocks = [b""] * len(self.own)
        else:
            blocks = [b"" if block == _NO_HEADERS else block + _END for block in self.own]
        if known:
            blocks = [known.get(sequence, block) for sequence, block in zip(self.sequences, blocks, strict=True)]
        return blocks

    def rows(self, columns: Sequence[str] = SCHEMA.names, known: Mapping[int, bytes] = NO_BLOCKS) -> pa.RecordBatch:
        """Return the messages as rows with these columns and `sequence`, in SCHEMA's order.

        `known` are header blocks by sequence, as the stream holds them. Cut if a column is made from header blocks, and
        some are neither in the answer nor known. Broken if a time is none.
        """
        count = len(self)
        made = {"stream": pa.repeat(pa.scalar(self.stream, pa.string()), count)}
        made["sequence"], made["time_ns"] = (pa.array(each, pa.int64()) for each in (self.sequences, self.times_ns()))
        made["deliveries"], made["error"] = pa.repeat(pa.scalar(1, pa.int32()), count), pa.nulls(count, pa.string())
        made["subject"], made["subject_raw"] = subject_columns(pa.array(self.subjects, pa.binary()))
        if "payload" in columns:
            made["payload"] = payload_column(self.payloads)
        if not FROM_HEADERS.isdisjoint(columns):
            blocks = self.header_blocks(known)
            present = pa.array(map(bool, blocks), pa.bool_())
            made |= spread_header_columns([block for block in blocks if block], present)
        fields = [field for field in SCHEMA if field.name == "sequence" or field.name in columns]
        return pa.RecordBatch.from_arrays([made[field.name] for field in fields], schema=pa.schema(fields))

    def batch(self, known: Mapping[int, bytes] = NO_BLOCKS) -> Batch:
        """Return the messages as a consumer would have delivered them for the first time. Cut, Broken as in `rows`.

        Nobody can acknowledge them: `CONSUMER` is not the name of a consumer.
        """
        times_ns = self.times_ns()
        replies = ack_subjects(self.stream, CONSUMER, self.sequences, times_ns)
        batch = Batch.of_columns(self.subjects, replies, self.header_blocks(known), self.payloads)
        batch.sequences, batch.times_ns, batch.deliveries = self.sequences, times_ns, [1] * len(self)
        return batch


def _values(lines: list[bytes], name: bytes) -> list[bytes]:
    """Return the values of a header, which each of these lines must have. ValueError if one has another."""
    if _BREAK.join([b"", *lines]).count(_BREAK + name) != len(lines):
        raise ValueError(f"not lines of {name!r}")
    return [line[len(name) :] for line in lines]
