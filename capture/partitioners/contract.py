from __future__ import annotations

from collections.abc import Callable

from capture.decoders.contract import BY_BATCH, reason
from capture.record import Record, Records

Partitioner = Callable[[Records], list[str]]
"""Returns one key a record; records of one key share blocks. Undecodable ones have their own, whatever it returns."""

NONE = "_none"
"""The key of a record that has none."""


def by_batch(function: Partitioner) -> Partitioner:
    """Mark `function` as one that takes all records of a batch, so that `module:attribute` does not wrap it."""
    setattr(function, BY_BATCH, True)
    return function


def per_record(function: Callable[[Record], object]) -> Partitioner:
    """Return a partitioner that calls `function` with each record.

    An exception makes that record undecodable, with the exception as the reason; None stands for "no key".
    """

    def partition(records: Records) -> list[str]:
        return [NONE if index in records.errors else _key(function, records, index) for index in range(len(records))]

    return by_batch(partition)


def key_text(value: object) -> str:
    """Return the text of a key: None and "" are "_none", true and false as JSON writes them."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _key(function: Callable[[Record], object], records: Records, index: int) -> str:
    try:
        return key_text(function(records[index]))
    except Exception as error:
        records.errors[index] = f"no key: {reason(error)}"
        return NONE
