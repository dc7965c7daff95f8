"""Division of an automatic group's partitions: evenly, and with as few moves as possible. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from natty.groups.partitions import MemberMapping, balance
from natty.groups.records import ElasticRecord

AUTOMATIC = "auto-"  # prefix of the names of automatic members


def shares(owned: Mapping[str, Sequence[int]], members: Iterable[str], partitions: int) -> dict[str, tuple[int, ...]]:
    """Return each member's partitions: their numbers differ by one at most, and the fewest possible change their owner.

    The extra partitions go to the members that own most. With more members than partitions, some have none.
    """
    order = sorted(set(members), key=lambda name: (-len(owned.get(name, ())), name))
    size, more = divmod(partitions, len(order))
    quota = {name: size + (place < more) for place, name in enumerate(order)}
    kept = {name: sorted(owned.get(name, ()))[: quota[name]] for name in order}
    free = sorted(set(range(partitions)).difference(*kept.values()))
    for name in sorted(order):
        missing = quota[name] - len(kept[name])
        kept[name] += free[:missing]
        free = free[missing:]
    return {name: tuple(sorted(kept[name])) for name in sorted(order)}


def count_moved(before: Mapping[str, Sequence[int]], after: Mapping[str, Sequence[int]], members: Iterable[str]) -> int:
    """Return how many partitions of these members move to another member."""
    return sum(len(set(before.get(name, ())) - set(after.get(name, ()))) for name in set(members))


def plan(record: ElasticRecord, members: Iterable[str]) -> ElasticRecord:
    """Return the record with its partitions divided over these members; the same record if they already are.

    It is balanced as in every implementation, so that any client may add members, or mapped if that moves fewer
    partitions. If both move the same number, the record keeps its form, because a change would restart all members.
    Members written in Go can't be mapped in a group with several filters, so such a group is always balanced.
    """
    names = sorted(set(members))
    if not names:
        return record
    owned = record.assignment()
    even, least = balance(names, record.partitions), shares(owned, names, record.partitions)
    for_go = len(record.filters or ()) > 1 and not all(name.startswith(AUTOMATIC) for name in names)
    more = count_moved(owned, even, names) - count_moved(owned, least, names)
    if for_go or more < 0 or (more == 0 and not record.mappings):
        return record if set(record.members) == set(names) else replace(record, members=tuple(names), mappings=())
    if {name: parts for name, parts in least.items() if parts} == {name: p for name, p in owned.items() if p}:
        mapped_already = bool(record.mappings) and set(owned) <= set(names)
        if mapped_already:
            return record
    mappings = tuple(MemberMapping(name, parts) for name, parts in least.items() if parts)
    return replace(record, members=(), mappings=mappings)
