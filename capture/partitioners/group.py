from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

from capture.block import INTERVAL, Groups
from capture.partitioners.contract import NONE, Partitioner
from capture.record import Records

UNDECODABLE = "_undecodable"
"""The key of every record that could not be decoded, whatever the partitioner."""

LONGEST_KEY = 200  # bytes of UTF-8: every entry and manifest repeats it
NANOSECONDS = 1_000_000_000


def grouped(partitioner: Partitioner, *, interval: float = INTERVAL) -> Callable[[Records], Groups]:
    """Return the function that groups records by the partitioner's key and the interval of their time.

    `interval` in seconds. Undecodable records are grouped under UNDECODABLE. Groups are in order of their first record,
    and inside a group the order stays.
    """
    whole = int(interval)

    def partition(records: Records) -> Groups:
        keys = partitioner(records)
        for index in records.errors:
            keys[index] = UNDECODABLE
        starts = _starts(records.times_ns, whole)
        if len(set(starts)) == 1 and keys.count(keys[0]) == len(keys):
            return [(bounded(keys[0]), starts[0], records)]
        members: dict[tuple[str, int], list[int]] = {}
        for index, where in enumerate(zip(keys, starts, strict=True)):
            if where in members:
                members[where].append(index)
            else:
                members[where] = [index]
        return [(bounded(key), start, records.select(indices)) for (key, start), indices in members.items()]

    return partition


@lru_cache(maxsize=4096)
def bounded(key: str) -> str:
    """Return the key as text that can be written anywhere: never empty, UTF-8, cut and ended by a hash if too long."""
    data = (key or NONE).encode("utf-8", "replace")
    if len(data) <= LONGEST_KEY:
        return data.decode()
    return f"{data[:LONGEST_KEY].decode('utf-8', 'ignore')}~{sha256(data).hexdigest()[:16]}"


def _starts(times_ns: list[int], interval: int) -> list[int]:
    width = interval * NANOSECONDS
    if times_ns and min(times_ns) // width == (last := max(times_ns) // width):
        return [last * interval] * len(times_ns)
    return [time_ns // width * interval for time_ns in times_ns]
