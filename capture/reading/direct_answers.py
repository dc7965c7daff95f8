"""Turns the answers of batched direct gets into rows of the envelope, and removes the headers that the server added.

Arrow's kernels parse the headers of all messages of an answer together: there is no Python object for each of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from capture.formats.envelope import FROM_HEADERS, SCHEMA, spread_header_columns, subject_columns
from natty import Batch
from natty.wire.ack import ack_subjects
from natty.wire.message import RawMessage

_MARK = b"Nats-Stream: "
"""The start of the headers that the server appends to a message's own. The last occurrence is the server's: what
follows has no blanks but the server's own, whoever has published the message."""

_BREAK = b"\r\n"
_NO_HEADERS, _END = b"NATS/1.0", b"\r\n\r\n"
_LINES = (b"Nats-Subject: ", b"Nats-Sequence: ", b"Nats-Time-Stamp: ", b"Nats-Num-Pending: ", b"Nats-Last-Sequence: ")
"""The headers that follow the one with the stream's name, in the server's order. Their values have no blanks."""
_LONGEST = 1 << 20  # bytes of a line
NO_BLOCKS: Mapping[int, bytes] = {}
CONSUMER = "direct"  # in the ack subjects of messages that no consumer delivers


class Broken(Exception):
    """A message of the answer is missing: routes between servers may drop some."""


class Cut(Exception):
    """Header blocks of messages do not end as they should: the server puts its headers in the place of their last two
    bytes. `sequences` are those of the messages."""

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


def is_message(raw: RawMessage) -> bool:
    """Return whether it is a message of the stream, and not the status that ends an answer."""
    return _MARK in raw[2]


def is_batched(raw: RawMessage) -> bool:
    """Return whether a message of the stream is part of an answer with several, which says how many follow."""
    return b"\r\nNats-Num-Pending: " in raw[2].rpartition(_MARK)[2]


def of_answer(
    raw: Sequence[RawMessage],
    stream: str,
    last: int,
    columns: Sequence[str] = SCHEMA.names,
    *,
    blocks: Mapping[int, bytes] = NO_BLOCKS,
) -> pa.RecordBatch:
    """Return a direct get's messages, at least one, as rows with these columns and `sequence`, in SCHEMA's order.

    `last` is the last sequence according to the server. `blocks` are header blocks by sequence, as the stream holds
    them: needed of those that Cut names. Broken unless each message names the sequence of the one before it as last
    sent; Mirrored if they are another stream's; Cut if a column is made from header blocks and some can't be known.
    """
    own, subjects, sequences, times = _split(raw, stream, last)
    rows = len(raw)
    made = {"stream": pa.repeat(pa.scalar(stream, pa.string()), rows)}
    made["sequence"], made["time_ns"] = sequences, times
    made["deliveries"], made["error"] = pa.repeat(pa.scalar(1, pa.int32()), rows), pa.nulls(rows, pa.string())
    made["subject"], made["subject_raw"] = subject_columns(subjects)
    if "payload" in columns:
        made["payload"] = _binary([message[3] for message in raw])
    if not FROM_HEADERS.isdisjoint(columns):
        made |= _make_header_columns(own, sequences, blocks)
    fields = [field for field in SCHEMA if field.name == "sequence" or field.name in columns]
    return pa.RecordBatch.from_arrays([made[field.name] for field in fields], schema=pa.schema(fields))


def make_batch(raw: Sequence[RawMessage], stream: str, last: int, *, blocks: Mapping[int, bytes] = NO_BLOCKS) -> Batch:
    """Return a direct get's messages, at least one, as a consumer would have delivered them for the first time.

    Raises as `of_answer` does. Nobody can acknowledge them: `CONSUMER` is not the name of a consumer.
    """
    own, subjects, sequences, times = _split(raw, stream, last)
    _find_cut(own, sequences, blocks)
    numbers, none = sequences.to_pylist(), _NO_HEADERS + _BREAK
    headers = [b"" if block == none else block + _BREAK for block in own.to_pylist()]
    if blocks:
        headers = [blocks.get(number, block) for number, block in zip(numbers, headers, strict=True)]
    replies = ack_subjects(stream, CONSUMER, numbers, times.to_pylist())
    payloads = [message[3] for message in raw]
    return Batch(list(zip(subjects.to_pylist(), replies, headers, payloads, strict=True)))


def _split(raw: Sequence[RawMessage], stream: str, last: int) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Return the messages' own header blocks without their end, their subjects, sequences and times. Broken; Mirrored.

    Times are in nanoseconds.
    """
    try:
        own, added = _parts(
            pc.split_pattern(_binary([message[2] for message in raw]), _MARK, max_splits=1, reverse=True)
        )
        streams, *lines = _parts(pc.split_pattern(added, _BREAK), 1 + len(_LINES))
        if not pc.all(pc.equal(streams, stream.encode())).as_py():
            raise Mirrored("a mirror answers")
        subjects, sequences, times, _, sent_before = map(_value, lines, _LINES)
        sequences, sent_before = (_text(each).cast(pa.int64()) for each in (sequences, sent_before))
        times = _text(times).cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise Broken from error
    if sent_before[0].as_py() or not sent_before[1:].equals(sequences[:-1]) or sequences[-1].as_py() != last:
        raise Broken
    return own, subjects, sequences, times


def _make_header_columns(own: pa.Array, sequences: pa.Array, known: Mapping[int, bytes]) -> dict[str, pa.Array]:
    """Return the columns of a message's own headers, given the blocks without their last two bytes. Cut."""
    _find_cut(own, sequences, known)
    own = pc.binary_slice(own, 0, -len(_BREAK))
    if not known:
        present = pc.not_equal(own, _NO_HEADERS)
        return spread_header_columns([block + _END for block in own.filter(present).to_pylist()], present)
    blocks = [b"" if block == _NO_HEADERS else block + _END for block in own.to_pylist()]
    for at, sequence in enumerate(sequences.to_pylist()):
        blocks[at] = known.get(sequence, blocks[at])
    return spread_header_columns([block for block in blocks if block], pa.array(map(bool, blocks), pa.bool_()))


def _find_cut(own: pa.Array, sequences: pa.Array, known: Mapping[int, bytes]) -> None:
    """Raise Cut if header blocks do not end as they should, and are not known."""
    ended = pc.ends_with(own, _BREAK)
    if cut := [one for one in sequences.filter(pc.invert(ended)).to_pylist() if one not in known]:
        raise Cut(cut)


def _parts(lists: pa.Array, count: int = 2) -> list[pa.Array]:
    """Return the first elements of these lists, in columns. ArrowInvalid if a list has fewer."""
    return [pc.list_element(lists, number) for number in range(count)]


def _value(lines: pa.Array, name: bytes) -> pa.Array:
    """Return the values of a header, which each of these lines must have. ArrowInvalid if one has another."""
    if not pc.all(pc.starts_with(lines, name)).as_py():
        raise pa.ArrowInvalid(f"not a line of {name!r}")
    return pc.binary_slice(lines, len(name), _LONGEST)


def _binary(values: list[bytes]) -> pa.Array:
    return pa.array(values, pa.binary())


def _text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())
