from __future__ import annotations

from collections.abc import Callable, Hashable

from capture.block import INTERVAL, Groups
from capture.partitioners.contract import Partitioner
from capture.partitioners.keys import key_text
from capture.record import Records, V

UNDECODABLE = "_undecodable"
"""The key of every record that could not be decoded, whatever the partitioner."""

NANOSECONDS = 1_000_000_000


def grouped(partitioner: Partitioner[V], *, interval: float = INTERVAL) -> Callable[[Records[V]], Groups]:
    """Return the function that groups records by the partitioner's key and the interval of their time.

    `interval` in seconds. Undecodable records are grouped under UNDECODABLE. Groups are in order of their first record,
    and inside a group the order stays.
    """
    whole = int(interval)

    def partition(records: Records[V]) -> Groups:
        keys = partitioner(records)
        if records.errors:
            keys = [UNDECODABLE if index in records.errors else key for index, key in enumerate(keys)]
        starts = _starts(records.times_ns, whole)
        if len(set(starts)) == 1 and keys.count(keys[0]) == len(keys):
            return [(key_text(keys[0]), starts[0], records)]
        members: dict[tuple[Hashable, int], list[int]] = {}
        for index, where in enumerate(zip(keys, starts, strict=True)):
            if where in members:
                members[where].append(index)
            else:
                members[where] = [index]
        return [(key, start, records.select(indices)) for (key, start), indices in _named(members).items()]

    return partition


def _named(members: dict[tuple[Hashable, int], list[int]]) -> dict[tuple[str, int], list[int]]:
    """Return the groups by the texts of their keys: 1 and "1" are one."""
    named: dict[tuple[str, int], list[int]] = {}
    for (key, start), indices in members.items():
        where = key_text(key), start
        named[where] = sorted(named[where] + indices) if where in named else indices
    return named


def _starts(times_ns: list[int], interval: int) -> list[int]:
    width = interval * NANOSECONDS
    if times_ns and min(times_ns) // width == (last := max(times_ns) // width):
        return [last * interval] * len(times_ns)
    return [time_ns // width * interval for time_ns in times_ns]
