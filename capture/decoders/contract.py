"""Defines what a decoder is, and makes one of a user's function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from capture.ingest.record import Decoder, Records, V
from capture.stores.plugin import FAULTS
from natty.config.units import write_count
from natty.wire.message import Batch, Message

Flatten = Callable[[V], Iterable[Mapping[str, Any]]]
"""Returns a value as rows of a CSV file: one, several or none, each with its cells by column."""

BY_BATCH = "capture_by_batch"

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Decoding(Generic[V]):
    """A decoder with facts about its values; it is itself a decoder.

    `shape` is the type of the values (a msgspec Struct, dataclass or TypedDict) or a `pyarrow.Schema`: Parquet blocks
    get a column for each field. `is_json` means that each payload that it decodes is valid JSON, of this shape if it
    fits at all. `flatten` turns a value into rows for CSV.
    """

    decode: Decoder[V]
    shape: Any = None
    is_json: bool = False
    flatten: Flatten[V] | None = None

    def __call__(self, batch: Batch) -> Records[V]:
        """Decode the batch."""
        return self.decode(batch)

    @classmethod
    def of(cls, decode: Decoder[V]) -> Decoding[V]:
        """Return the decoder with its facts; a plain function has none."""
        return decode if isinstance(decode, Decoding) else cls(decode)


def by_batch(function: Function) -> Function:
    """Mark `function` as a decoder or partitioner of a whole batch, so that `module:attribute` does not wrap it."""
    setattr(function, BY_BATCH, True)
    return function


def per_message(function: Callable[[Message], V]) -> Decoder[V]:
    """Return a decoder that calls `function` with each message; its exception is that message's error."""

    def decode(batch: Batch) -> Records[V]:
        values, errors = _call(function, batch)
        return Records.of(batch, values, errors)

    return by_batch(decode)


def keyed(function: Callable[[Message], tuple[V, Hashable]]) -> Decoder[V]:
    """Return a decoder whose `function` returns the value of each message and its key; see `partition = "decoder"`.

    The key is any hashable object. A dataclass, Struct or named tuple becomes folders, `region=eu/level=3`.
    """

    def decode(batch: Batch) -> Records[V]:
        pairs, errors = _call(lambda message: _check_key(*function(message)), batch)
        values = [None if pair is None else pair[0] for pair in pairs]
        return Records.of(batch, values, errors, [None if pair is None else pair[1] for pair in pairs])

    return by_batch(decode)


def typed(shape: Any, *, flatten: Flatten[Any] | None = None) -> Callable[[Callable[..., Any]], Decoding[Any]]:
    """Declare the shape of a decoder's values, so that Parquet blocks get their fields as columns.

    It decorates a function of a message, the result of `by_batch` or `keyed`, or a `Decoding`.
    """

    def decorate(function: Callable[..., Any]) -> Decoding[Any]:
        return replace(decoding_of(function), shape=shape, flatten=flatten)

    return decorate


def decoding_of(found: Any) -> Decoding[Any]:
    """Return the decoder for a user's function: by batch if it is marked, otherwise message by message."""
    if isinstance(found, Decoding):
        return found
    decode = guard(found) if hasattr(found, BY_BATCH) else per_message(found)
    return Decoding(decode, flatten=getattr(found, "flatten", None))


def guard(decode: Decoder[V]) -> Decoder[V]:
    """Return `decode` so that a batch on which it fails is decoded message by message: only the bad ones are errors.

    It fails if it raises, or does not return one record per message.
    """

    def careful(batch: Batch) -> Records[V]:
        try:
            records = decode(batch)
            if len(records) != len(batch):
                returned = write_count(len(records), "record", "was", "were")
                raise ValueError(f"{returned} returned for {write_count(len(batch), 'message')}")
            return records
        except FAULTS as error:
            if len(batch) == 1:
                return Records.of(batch, errors={0: reason(error)})
        joined: Records[V] = Records()
        for raw in batch.raw:
            joined.extend(careful(Batch([raw])))
        return joined

    return by_batch(careful)


def reason(error: BaseException) -> str:
    """Return the text that is stored with an undecodable message."""
    return f"{type(error).__name__}: {error}"


def _call(function: Callable[[Message], Any], batch: Batch) -> tuple[list[Any], dict[int, str]]:
    values: list[Any] = []
    errors: dict[int, str] = {}
    for index, message in enumerate(batch):
        try:
            values.append(function(message))
        except FAULTS as error:
            errors[index] = reason(error)
            values.append(None)
    return values, errors


def _check_key(value: V, key: Hashable) -> tuple[V, Hashable]:
    hash(key)
    return value, key


def values_of(records: Records[Any], decoding: Decoding[Any]) -> list[Any]:
    """Return the decoded value of each message; None for the undecodable ones.

    Open blocks keep payloads only, so a format that needs values decodes the messages again.
    """
    if len(records.errors) == len(records):
        return [None] * len(records)
    values = guard(decoding)(Batch(records.raw())).values
    return (
        [None if index in records.errors else value for index, value in enumerate(values)] if records.errors else values
    )
