from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from capture.ingest.block import INTERVAL, Groups
from capture.ingest.record import Records, V
from capture.partitioners.contract import Partitioner, Reserved
from capture.partitioners.keys import key_text

UNDECODABLE = Reserved.UNDECODABLE.value
"""The key's text of every record that could not be decoded, whatever the partitioner; no other record has it."""

NANOSECONDS = 1_000_000_000

K = TypeVar("K", bound=Hashable)


def grouped(partitioner: Partitioner[V], *, interval: float = INTERVAL) -> Callable[[Records[V]], Groups]:
    """Return the function that groups records by the partitioner's key and the interval of their time.

    `interval` in seconds. Undecodable records are grouped under UNDECODABLE. Groups are in order of their first record,
    and inside a group the order stays.
    """
    whole = int(interval)

    def partition(records: Records[V]) -> Groups:
        keys = partitioner(records)
        if records.errors:
            keys = [Reserved.UNDECODABLE if index in records.errors else key for index, key in enumerate(keys)]
        start = _start(records.times_ns, whole)
        if start is None:
            starts = [time_ns // (whole * NANOSECONDS) * whole for time_ns in records.times_ns]
            members = _members(zip(keys, starts, strict=True))
        elif keys.count(keys[0]) == len(keys):
            return [(key_text(keys[0]), start, records)]
        else:
            members = {(key, start): indices for key, indices in _members(keys).items()}
        return [(key, start, records.select(indices)) for (key, start), indices in _named(members).items()]

    return partition


def _members(keys: Iterable[K]) -> dict[K, list[int]]:
    """Return the places of each key, in order of the first ones."""
    members: dict[K, list[int]] = {}
    for index, key in enumerate(keys):
        if key in members:
            members[key].append(index)
        else:
            members[key] = [index]
    return members


def _named(members: dict[tuple[Hashable, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Return the groups by the texts of their keys: 1 and "1" are one."""
    named: dict[tuple[str, int], list[int]] = {}
    for (key, start), indices in members.items():
        where = key_text(key), start
        named[where] = sorted(named[where] + indices) if where in named else indices
    return named


def _start(times_ns: list[int], interval: int) -> int | None:
    """Return the start of the one interval that all of these times are in; None if there is none."""
    if not times_ns:
        return None
    width = interval * NANOSECONDS
    first = min(times_ns) // width
    return first * interval if first == max(times_ns) // width else None
