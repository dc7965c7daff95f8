"""The partitions of members, their subjects, and the partition of a message. Pure.

Synadia's pcgroups 0.2: every member computes this itself, in Go, Java, .NET and here, so all must get the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from natty.names import decode, encode
from natty.wire.message import Message

WHOLE_SUBJECT = ">"  # the filter of a group without filters
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619


class PartitionedMessage(Message):
    """A message of a group: `subject` is the subject that it was published on, `partition` the token before it."""

    __slots__ = ()

    @property
    def subject(self) -> str:
        """The subject without the partition token."""
        return decode(self._raw[0].partition(b".")[2] or self._raw[0])

    @property
    def partition(self) -> str:
        """The message's partition."""
        return token_of(self)


def token_of(message: Message) -> str:
    """Return the partition of a group's message."""
    return decode(message.raw[0].partition(b".")[0])


class MemberMapping(msgspec.Struct, frozen=True):
    """The partitions that an administrator assigned to a member."""

    member: str = ""
    partitions: tuple[int, ...] | None = None


class PartitioningFilter(msgspec.Struct, frozen=True):
    """Subjects of an elastic group, and the numbers of the `*` tokens, from 1, whose values are a message's key.

    Without numbers (null or an empty list) the key is the whole subject. The record distinguishes null from empty.
    """

    filter: str = ""
    wildcards: tuple[int, ...] | None = msgspec.field(default=None, name="partitioning_wildcards")


EVERYTHING = PartitioningFilter(WHOLE_SUBJECT)


def balance(members: Iterable[str], partitions: int) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each member, ascending.

    The members, sorted by name, get consecutive blocks of equal size; the remaining partitions go to them one by one.
    With more members than partitions, the first by name get one each, and the others are left out.
    """
    kept = sorted(set(members))[:partitions]
    if not kept:
        return {}
    size = partitions // len(kept)
    dealt = size * len(kept)
    return {
        member: (*range(place * size, (place + 1) * size), *range(dealt + place, partitions, len(kept)))
        for place, member in enumerate(kept)
    }


def assignment(
    members: Sequence[str], mappings: Sequence[MemberMapping], partitions: int
) -> dict[str, tuple[int, ...]]:
    """Return each member's partitions: balanced over the members, otherwise as mapped. Empty for an idle group."""
    if members:
        return balance(members, partitions)
    return {one.member: one.partitions or () for one in mappings}


def assign(members: Sequence[str], mappings: Sequence[MemberMapping], partitions: int, member: str) -> tuple[int, ...]:
    """Return the partitions of one member; none if it is not listed, or if the names before it take all partitions."""
    return assignment(members, mappings, partitions).get(member, ())


def partition_filters(partitions: Sequence[int], filters: Sequence[str], *, mapped: bool) -> list[str]:
    """Return the filters of the consumer that reads these partitions; their order matters.

    Mapped partitions are read whole, without the group's filters. Each has one filter here; Go repeats it for each of
    the group's filters.
    """
    if mapped:
        return [f"{partition}.{WHOLE_SUBJECT}" for partition in partitions]
    return [f"{partition}.{one}" for one in filters or (WHOLE_SUBJECT,) for partition in partitions]


def destination(one: PartitioningFilter, partitions: int) -> str:
    """Return the destination of the work queue's subject transform: a partition token before the unchanged subject."""
    indexes = "".join(f",{index}" for index in one.wildcards or ())
    return f"{{{{Partition({partitions}{indexes})}}}}.{'.'.join(_number_wildcards(one.filter.split('.')))}"


def _number_wildcards(tokens: Iterable[str]) -> Iterator[str]:
    wildcard = 0
    for token in tokens:
        if token == "*":
            wildcard += 1
            token = f"{{{{Wildcard({wildcard})}}}}"
        yield token


def key_of(subject: str, one: PartitioningFilter) -> str:
    """Return the key of a subject that the filter matches: the values of its wildcards joined, or the whole subject.

    The server joins them without a separator, so `a`+`bc` and `ab`+`c` are the same key.
    """
    if not one.wildcards:
        return subject
    tokens = zip(one.filter.split("."), subject.split("."), strict=False)
    values = [value for token, value in tokens if token == "*"]
    return "".join(values[index - 1] for index in one.wildcards)


def fnv1a(data: bytes) -> int:
    """Return the hash that the server's `{{Partition()}}` uses: FNV-1a, 32 bits."""
    digest = _FNV_OFFSET
    for byte in data:
        digest = (digest ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return digest


def partition_of(key: str, partitions: int) -> int:
    """Return the partition in which the server puts a key."""
    return fnv1a(encode(key)) % partitions
