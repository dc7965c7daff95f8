"""Defines what a partitioner is, and makes one of a user's function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from capture.decoders.contract import by_batch, reason
from capture.ingest.keys import NONE
from capture.ingest.record import Record, Records, V
from capture.stores.plugin import FAULTS
from natty.config.units import write_count

Partitioner = Callable[[Records[V]], Sequence[Hashable]]
"""Returns one key per record; records with the same key share blocks. Undecodable ones always have their own key."""


def per_record(function: Callable[[Record[V]], Hashable]) -> Partitioner[V]:
    """Return a partitioner that calls `function` with each record.

    The key is any hashable object; None stands for "no key". An exception makes that record undecodable, with the
    exception as the reason.
    """

    def partition(records: Records[V]) -> list[Hashable]:
        return [NONE if index in records.errors else _key(function, records, index) for index in range(len(records))]

    return by_batch(partition)


def guard(partitioner: Partitioner[V]) -> Partitioner[V]:
    """Return `partitioner` so that it is called record by record if it fails for a batch: the bad ones are undecodable.

    It fails if it raises, or does not return one hashable key per record.
    """

    def careful(records: Records[V]) -> Sequence[Hashable]:
        try:
            keys = partitioner(records)
            if len(keys) != len(records):
                raise ValueError(
                    f"{write_count(len(keys), 'key', 'was', 'were')} returned for {write_count(len(records), 'record')}"
                )
            hash(tuple(keys))
            return keys
        except FAULTS as error:
            if len(records) == 1:
                records.errors[0] = f"no key: {reason(error)}"
                return [NONE]
        return [_alone(careful, records, index) for index in range(len(records))]

    return by_batch(careful)


def _alone(partitioner: Partitioner[V], records: Records[V], index: int) -> Hashable:
    one = records.select([index])
    [key] = partitioner(one)
    if one.errors:
        records.errors[index] = one.errors[0]
    return key


def _key(function: Callable[[Record[V]], Hashable], records: Records[V], index: int) -> Hashable:
    try:
        key = function(records[index])
        hash(key)
        return key
    except FAULTS as error:
        records.errors[index] = f"no key: {reason(error)}"
        return NONE
