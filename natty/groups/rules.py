"""Rules for the settings of a group.

`check_partitions`, `check_filters` and `check_members` are the rules of pcgroups 0.2, which every record that is read
must follow. The others are ours, for groups created here: they refuse settings that would fail later or have no effect.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

from natty.config.options import check_value
from natty.config.units import write_count
from natty.errors import BadGroupError
from natty.groups.partitions import MemberMapping, PartitioningFilter
from natty.names import overlap

T = TypeVar("T")
MOST_PARTITIONS = 10_000  # of a new group
MOST_PARTITIONS_READ = 1_000_000  # of a group that another program created: their numbers are held in memory
_PARTITION = re.compile(r"\{\{\s*partition\s*\(\s*(\d+)", re.IGNORECASE)
_TOKEN_MADE = re.compile(r"\{\{[^{}]*\}\}|\$\d+")  # a token that a transform writes


def check_partitions(partitions: int) -> None:
    """BadGroupError unless there is at least one, and at most `MOST_PARTITIONS_READ`."""
    check_value("partitions", partitions, int)
    if not 1 <= partitions <= MOST_PARTITIONS_READ:
        raise BadGroupError(f"a group of {partitions} partitions is not possible: write 1 to {MOST_PARTITIONS_READ:,}")


def check_new_partitions(partitions: int) -> None:
    """BadGroupError for more partitions than a new group may have.

    A single member reads them all with one consumer that has a filter for each: they must fit into one request.
    """
    check_value("partitions", partitions, int)
    if partitions > MOST_PARTITIONS:
        raise BadGroupError(
            f"a group of {partitions:,} partitions is not possible: the most is {MOST_PARTITIONS:,};"
            " one for each member that may ever work at the same time is enough"
        )


def check_filters(filters: Iterable[PartitioningFilter]) -> None:
    """BadGroupError for a filter without a wildcard, or with the number of a `*` that it does not have."""
    for one in filters:
        check_value("a filter", one, PartitioningFilter)
        tokens = one.filter.split(".")
        stars, wildcards = tokens.count("*"), one.wildcards or ()
        if not one.filter:
            raise BadGroupError("a filter is empty: leave it out for all of the stream")
        if not stars and tokens[-1] != ">":
            raise BadGroupError(f"filter {one.filter!r} has no wildcard: a `*`, or a last `>`")
        if len(wildcards) > stars:
            raise BadGroupError(f"filter {one.filter!r} has {stars} `*`, too few for a key of {len(wildcards)}")
        if len(set(wildcards)) < len(wildcards):
            raise BadGroupError(f"filter {one.filter!r}: a wildcard is named twice in {list(wildcards)}")
        if wrong := [index for index in wildcards if not 1 <= index <= stars]:
            raise BadGroupError(f"filter {one.filter!r} has no wildcard {wrong[0]}: they count from 1 to {stars}")


def check_members(partitions: int, members: Sequence[str], mappings: Sequence[MemberMapping]) -> None:
    """BadGroupError unless there are members, or mappings that give every partition to exactly one, or neither."""
    if not mappings:
        return
    if members:
        raise BadGroupError("a group has either members or mappings, and this one would have both")
    if len(mappings) > partitions:
        raise BadGroupError(
            f"{write_count(len(mappings), 'member', 'is', 'are')} mapped, more than there are partitions, {partitions}"
        )
    if (name := _find_repeated([one.member for one in mappings])) is not None:
        raise BadGroupError(f"member {name!r} is mapped twice: name it once with all its partitions")
    given = [partition for one in mappings for partition in one.partitions or ()]
    if (partition := _find_repeated(given)) is not None:
        raise BadGroupError(f"partition {partition} is given twice: every partition has one member")
    if wrong := [partition for partition in given if not 0 <= partition < partitions]:
        raise BadGroupError(f"there is no partition {wrong[0]}: they count from 0 to {partitions - 1}")
    if missing := sorted(set(range(partitions)) - set(given)):
        raise BadGroupError(f"no member has partition {', '.join(map(str, missing))}: each needs a member")


def _find_repeated(values: Iterable[T]) -> T | None:
    """Return the first value that occurs more than once, None if there is none."""
    return next((value for value, times in Counter(values).items() if times > 1), None)


def check_subjects(filters: Sequence[str]) -> None:
    """BadGroupError for a filter that servers refuse, or two that match the same subject: it would be read twice."""
    for one in filters:
        check_value("a filter", one, str)
        tokens = one.split(".")
        if not all(tokens) or ">" in tokens[:-1] or any(character.isspace() for character in one):
            raise BadGroupError(
                f"filter {one!r} is not a subject: tokens between single dots, `>` as the last one only"
            )
    for one, other in combinations(filters, 2):
        if overlap(one, other):
            raise BadGroupError(f"filters {one!r} and {other!r} take the same subjects: choose one, or narrower ones")


def check_listing(partitions: int, members: Sequence[str]) -> None:
    """BadGroupError for a member named twice, or for more members than partitions (in static groups none moves)."""
    if (name := _find_repeated(members)) is not None:
        raise BadGroupError(f"member {name!r} is named twice")
    if len(members) > partitions:
        raise BadGroupError(
            f"{len(members)} members can't share {write_count(partitions, 'partition')}: in a static group the last"
            " ones would never get one; a standby is one more process of the same member"
        )


def check_partitioned(stream: str, config: Mapping[str, Any], partitions: int) -> None:
    """BadGroupError if a stream's subjects can't begin with the tokens of so many partitions.

    Streams with sources or a mirror are not checked, since these may add the token.
    """
    transform = (config.get("subject_transform") or {}).get("dest", "")
    counted = _PARTITION.match(transform)
    if counted and int(counted[1]) != partitions:
        raise BadGroupError(
            f"stream {stream} has {write_count(int(counted[1]), 'partition')} and the group would have {partitions}:"
            " name the same number"
        )
    if counted or config.get("sources") or config.get("mirror"):
        return
    stored = [_TOKEN_MADE.sub("*", transform)] if transform else []
    stored += config.get("subjects") or []
    missing = [one for one in range(partitions) if not any(overlap(f"{one}.>", subject) for subject in stored)]
    if missing:
        raise BadGroupError(
            f"stream {stream} holds no subject of partition {missing[0]} ({missing[0]}.>): a static group reads"
            " subjects that begin with the partition; give the stream a subject_transform, or make an elastic group"
        )


def check_limits(max_messages: int, max_bytes: int) -> None:
    """BadGroupError for an invalid limit of the buffer: 0 and -1 both mean no limit, and lower numbers are invalid."""
    for name, limit in (("max_messages", max_messages), ("max_bytes", max_bytes)):
        check_value(name, limit, int)
        if limit < -1:
            raise BadGroupError(f"a {name} of {limit} is not possible: 0 means no limit")


def partitions_all(transforms: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether all transforms of a source put a partition before the subject, as those of groups do."""
    return bool(transforms) and all(_PARTITION.match(one.get("dest", "")) for one in transforms)
