"""Which member has which partition, under which subjects, and which partition a message is in. Pure.

Synadia's pcgroups 0.2: every member works this out for itself, in Go, Java, .NET and here, so it must come out alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from natty.names import decode, encode
from natty.wire.message import Message

WHOLE_SUBJECT = ">"  # the filter of a group that names none
_FNV_OFFSET = 2166136261
_FNV_PRIME = 16777619


class PartitionedMessage(Message):
    """A message of a group: its subject is the one that it was published on, its `partition` the token before that."""

    __slots__ = ()

    @property
    def subject(self) -> str:
        """The subject without the partition token."""
        return decode(self._raw[0].partition(b".")[2] or self._raw[0])

    @property
    def partition(self) -> str:
        """The partition that it is in."""
        return token_of(self)


def token_of(message: Message) -> str:
    """Return the partition that a message of a group is in."""
    return decode(message.raw[0].partition(b".")[0])


class MemberMapping(msgspec.Struct, frozen=True):
    """The partitions that a member was given by hand."""

    member: str = ""
    partitions: tuple[int, ...] | None = None


class PartitioningFilter(msgspec.Struct, frozen=True):
    """Subjects of an elastic group, and the numbers of the `*` tokens, from 1, whose values are a message's key.

    No numbers, null as well as none: the key is the whole subject. The record tells the two apart.
    """

    filter: str = ""
    wildcards: tuple[int, ...] | None = msgspec.field(default=None, name="partitioning_wildcards")


EVERYTHING = PartitioningFilter(WHOLE_SUBJECT)


def balanced(members: Iterable[str], partitions: int) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each member, ascending: in order of their names, blocks of equal size, the rest in turn.

    More members than partitions: the first by name have one each, the others are left out.
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
    """Return who has which partitions: balanced over the members, or else as mapped. Empty for an idle group."""
    if members:
        return balanced(members, partitions)
    return {one.member: one.partitions or () for one in mappings}


def assigned(
    members: Sequence[str], mappings: Sequence[MemberMapping], partitions: int, member: str
) -> tuple[int, ...]:
    """Return the partitions of one member; none if it is not listed, or if more names come before it than there are."""
    return assignment(members, mappings, partitions).get(member, ())


def partition_filters(partitions: Sequence[int], filters: Sequence[str], *, mapped: bool) -> list[str]:
    """Return the filters of the consumer that reads these partitions; their order counts.

    Mapped partitions are read whole, whatever the group's filters: once each, where Go writes them once a filter.
    """
    if mapped:
        return [f"{partition}.{WHOLE_SUBJECT}" for partition in partitions]
    return [f"{partition}.{one}" for one in filters or (WHOLE_SUBJECT,) for partition in partitions]


def destination(one: PartitioningFilter, partitions: int) -> str:
    """Return what the work queue's source makes of a subject: a partition token before it, all else as it is."""
    indexes = "".join(f",{index}" for index in one.wildcards or ())
    return f"{{{{Partition({partitions}{indexes})}}}}.{'.'.join(_numbered(one.filter.split('.')))}"


def _numbered(tokens: Iterable[str]) -> Iterator[str]:
    wildcard = 0
    for token in tokens:
        if token == "*":
            wildcard += 1
            token = f"{{{{Wildcard({wildcard})}}}}"
        yield token


def key_of(subject: str, one: PartitioningFilter) -> str:
    """Return the key of a subject that the filter takes: the values of its wildcards joined, or the whole subject.

    The server joins them without anything between, so that `a`+`bc` and `ab`+`c` are the same key.
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
    """Return the partition that the server puts a key into."""
    return fnv1a(encode(key)) % partitions
