"""Messages after decoding: a batch of them as parallel columns, or a single one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter, itemgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from capture.archive.envelope_columns import ORIGIN, parse_origin
from natty.wire.ack import ack_tokens
from natty.wire.message import Batch, RawMessage, parse_headers

V = TypeVar("V")


class Delivered(Protocol):
    """Delivered messages of one stream, as far as settling them needs it: a `Batch`, `Records`, a `Part`."""

    @property
    def sequences(self) -> list[int]:
        """The stream sequences."""
        ...

    @property
    def replies(self) -> list[bytes]:
        """The subject that acknowledges each message."""
        ...


class Part(NamedTuple):
    """Some of the delivered messages."""

    sequences: list[int]
    replies: list[bytes]


class Record(NamedTuple, Generic[V]):
    """One message after decoding, for code that works message by message."""

    stream: str
    sequence: int
    time_ns: int
    subject: str
    header_block: bytes
    payload: bytes
    value: V

    @property
    def headers(self) -> dict[str, list[str]]:
        """The headers, every value of a repeated name in order."""
        return parse_headers(self.header_block)


@dataclass(slots=True)
class Records(Generic[V]):
    """Messages of one stream after decoding, as parallel columns: every list has one entry for each message.

    The columns of the envelope (`capture.archive.envelope_columns`) are made from these fields.
    """

    stream: str = ""
    sequences: list[int] = field(default_factory=list)
    times_ns: list[int] = field(default_factory=list)
    subjects: list[bytes] = field(default_factory=list)
    header_blocks: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    deliveries: list[int] = field(default_factory=list)
    replies: list[bytes] = field(default_factory=list)
    """The subject that acknowledges each message."""
    values: list[Any] = field(default_factory=list)
    """The decoder's value for each payload; None for raw ones."""
    errors: dict[int, str] = field(default_factory=dict)
    """Index → why that message could not be decoded."""
    keys: list[Any] | None = None
    """The decoder's key for each message; None if it returns none."""

    @classmethod
    def of(
        cls,
        batch: Batch,
        values: list[Any] | None = None,
        errors: dict[int, str] | None = None,
        keys: list[Any] | None = None,
    ) -> Records[V]:
        """Return the batch as columns. All of its messages are from one stream; an empty batch has no records."""
        return cls(
            stream=ack_tokens(batch.replies[0])[2].decode() if len(batch) else "",
            sequences=batch.sequences,
            times_ns=batch.times_ns,
            subjects=batch.subjects,
            header_blocks=batch.header_blocks,
            payloads=batch.payloads,
            deliveries=batch.deliveries,
            replies=batch.replies,
            values=[None] * len(batch) if values is None else values,
            errors={} if errors is None else errors,
            keys=keys,
        )

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        return f"Records({self.stream!r}, {len(self)} messages, {len(self.errors)} undecodable)"

    def __getitem__(self, index: int) -> Record[V]:
        return Record(
            self.stream,
            self.sequences[index],
            self.times_ns[index],
            self.subjects[index].decode("utf-8", "replace"),
            self.header_blocks[index],
            self.payloads[index],
            self.values[index],
        )

    def raw(self) -> list[RawMessage]:
        """Return the messages as they were delivered, to decode them again."""
        return list(zip(self.subjects, self.replies, self.header_blocks, self.payloads, strict=True))

    def select(self, indices: Sequence[int]) -> Records[V]:
        """Return the records at these indices, in this order. A `range` of step 1 is the cheap case."""
        if isinstance(indices, range) and indices.step == 1:
            return self._slice(indices.start, indices.stop)
        if len(indices) < 2:
            return self._alone(indices[0]) if indices else self._slice(0, 0)
        of = itemgetter(*indices)
        errors = self.errors
        return _records(
            self.stream,
            *map(list, map(of, _lists(self))),
            {new: errors[old] for new, old in enumerate(indices) if old in errors} if errors else {},
            None if self.keys is None else list(of(self.keys)),
        )

    def _slice(self, start: int, stop: int) -> Records[V]:
        errors = self.errors
        return _records(
            self.stream,
            *[column[start:stop] for column in _lists(self)],
            {at - start: errors[at] for at in range(start, stop) if at in errors} if errors else {},
            None if self.keys is None else self.keys[start:stop],
        )

    def _alone(self, index: int) -> Records[V]:
        """Return the records of one message: with thousands of keys, most keys have one message in a batch."""
        return _records(
            self.stream,
            *[[column[index]] for column in _lists(self)],
            {0: self.errors[index]} if index in self.errors else {},
            None if self.keys is None else [self.keys[index]],
        )

    def extend(self, other: Records[V]) -> None:
        """Append the records of `other`, which does not change. An empty one takes over the other's stream."""
        offset = len(self)
        if self.keys is not None or other.keys is not None:
            self.keys = (self.keys or [None] * offset) + (other.keys or [None] * len(other))
        self.stream = self.stream or other.stream
        self.values += other.values
        self.take(other)

    def take(self, other: Records[Any]) -> None:
        """Append the messages of `other` without decoded values and keys: for records that have no values yet."""
        if other.errors:
            offset = len(self)
            self.errors.update((offset + index, reason) for index, reason in other.errors.items())
        for name in TAKEN:
            getattr(self, name).extend(getattr(other, name))


LISTS = tuple(one.name for one in fields(Records) if one.default_factory is list)
"""The fields of `Records` that have an entry for each message, in order."""
TAKEN = tuple(name for name in LISTS if name != "values")
"""The fields that `take` appends, and that a spill keeps."""

_records: Callable[..., Records[Any]] = Records  # takes the lists by position
_lists: Callable[[Records[Any]], tuple[Any, ...]] = attrgetter(*LISTS)


def text_or_none(data: bytes) -> str | None:
    """Return these bytes as text; None if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def header_texts(block: bytes) -> dict[str, list[str]]:
    """Return the headers of a raw block as text that can be written anywhere: bytes that are not UTF-8 are replaced."""
    headers = parse_headers(block)
    if text_or_none(block) is None:
        return {replace_invalid(name): list(map(replace_invalid, values)) for name, values in headers.items()}
    return headers


def origin_of(block: bytes) -> tuple[str, int] | None:
    """Return the stream that a message was sourced from, and its sequence there; None if it was published here.

    The server adds a header with both to messages that a stream takes from its `sources`; messages of a mirror keep
    their sequence.
    """
    if ORIGIN.encode() not in block:
        return None
    stream, sequence = parse_origin(header_texts(block).get(ORIGIN, [""])[0])
    return None if stream is None or sequence is None else (stream, sequence)


def error_texts(records: Records[Any]) -> list[str | None]:
    """Return the error of each message as text that can be written anywhere; None if there is none."""
    errors = {index: reason.encode("utf-8", "replace").decode() for index, reason in records.errors.items()}
    return [errors.get(index) for index in range(len(records))]


def replace_invalid(text: str) -> str:
    """Return the text of a header as text that can be written anywhere: bytes that are not UTF-8 are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


Decoder = Callable[[Batch], Records[V]]
"""Columns in, columns out. It never raises: a message that it can't decode is an entry of `errors`, stored raw."""
