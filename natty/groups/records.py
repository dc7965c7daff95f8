"""The records of pcgroups: a group's definition as JSON in its bucket, read and written as Go's library 0.2 does.

Records of 0.1 have one filter: `filter`, and in elastic groups `partitioning_wildcards`, in the record itself. A static
member of 0.1 does not apply it, and 0.2 does not read it: static records of both versions mean the same. An elastic
record of 0.1 is read as one of 0.2 that is `outdated`; written, it is one of 0.2.

Fields that a change does not touch are written back byte by byte. Members written in Go compare every revision with the
one that they started with, and end when `partitioning_filters` changes from null to an empty list or the reverse.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec

from natty.errors import BadGroupError, BadRecordError
from natty.groups import rules
from natty.groups.partitions import (
    EVERYTHING,
    WHOLE_SUBJECT,
    MemberMapping,
    PartitioningFilter,
    assign,
    assignment,
    partition_filters,
)
from natty.kv.json_records import decode

T = TypeVar("T")
_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # as Go's
_FILTER_OF_0_1 = "filter"  # no record of pcgroups 0.2 has it
_WILDCARDS_OF_0_1 = "partitioning_wildcards"
_NEVER_LEFT_OUT = ("max_members", "partitioning_filters")


@dataclass(frozen=True, kw_only=True)
class Record(ABC):
    """The common part of the records of static and elastic groups. The attribute `partitions` is Go's `max_members`."""

    partitions: int
    members: tuple[str, ...] = ()
    mappings: tuple[MemberMapping, ...] = ()
    known: Mapping[str, tuple[Any, bytes]] = field(default_factory=dict, compare=False, repr=False)  # values, as read
    unknown: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)  # unknown fields, as read

    @property
    @abstractmethod
    def subjects(self) -> tuple[str, ...]:
        """The group's filters, without partition tokens; none for the whole stream."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return the record as Go's library writes it."""

    @property
    @abstractmethod
    def fixed(self) -> dict[str, Any]:
        """The settings that never change, by name. Settings with the same meaning are equal here."""

    @property
    def outdated(self) -> bool:
        """Whether it was read from a record of pcgroups 0.1 that members of later versions can't work with."""
        return False

    def differences(self, other: Record) -> list[str]:
        """Return the differences from another record in settings that never change, a readable line for each."""
        theirs = other.fixed
        return [f"{name} is {theirs[name]}, wanted {mine}" for name, mine in self.fixed.items() if theirs[name] != mine]

    @property
    def member_names(self) -> tuple[str, ...]:
        """All listed members, in the record's order."""
        return tuple(dict.fromkeys((*self.members, *(one.member for one in self.mappings))))

    @property
    def without_partition(self) -> tuple[str, ...]:
        """The listed members without a partition: more members than partitions, or mapped to none."""
        having = self.assignment()
        return tuple(member for member in self.member_names if not having.get(member))

    def lists(self, member: str) -> bool:
        """Return whether the member is listed, with partitions or without."""
        return member in self.member_names

    def assignment(self) -> dict[str, tuple[int, ...]]:
        """Return the partitions of each member."""
        return assignment(self.members, self.mappings, self.partitions)

    def partitions_of(self, member: str) -> tuple[int, ...]:
        """Return a member's partitions."""
        return assign(self.members, self.mappings, self.partitions, member)

    def filters_of(self, member: str) -> list[str]:
        """Return the filters of a member's consumer, in the order that every implementation gives them."""
        return partition_filters(self.partitions_of(member), self.subjects, mapped=not self.members)

    def check(self) -> None:
        """BadGroupError if a rule of pcgroups is broken, with the number or the name that breaks it."""
        rules.check_partitions(self.partitions)
        rules.check_members(self.partitions, self.members, self.mappings)


@dataclass(frozen=True, kw_only=True)
class StaticRecord(Record):
    """The record of a static group, which never changes."""

    filters: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        """The group's filters, without partition tokens; none for the whole stream."""
        return self.filters

    @property
    def unused_filter(self) -> str:
        """The filter of a record of pcgroups 0.1, which no version applies; "" if it would take everything."""
        raw = next((raw for name, raw in self.unknown.items() if name.casefold() == _FILTER_OF_0_1), b'""')
        try:
            found: str = decode(raw, str)
        except BadRecordError:
            return ""
        return "" if found == WHOLE_SUBJECT else found

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings that never change: all of them. The order of members and mappings has no meaning."""
        return {
            "partitions": self.partitions,
            "filters": [] if self.filters == (WHOLE_SUBJECT,) else list(self.filters),
            "members": sorted(self.members),
            "mappings": {one.member: sorted(one.partitions or ()) for one in self.mappings},
        }

    def encode(self) -> bytes:
        """Return the record as Go's library writes it."""
        return _object(
            {
                "max_members": self.partitions,
                "filters": self.filters,
                "members": self.members,
                "member_mappings": self.mappings,
            },
            self,
        )

    @classmethod
    def decode(cls, value: bytes) -> StaticRecord:
        """Read a record of any version. BadGroupError if it is not a record, or breaks a rule."""
        fields = _Fields(value)
        record = cls(
            partitions=fields.take("max_members", _Number, 0),
            filters=fields.take("filters", tuple[str, ...], ()),
            members=fields.take("members", tuple[str, ...], ()),
            mappings=fields.take("member_mappings", tuple[MemberMapping, ...], ()),
            known=fields.known,
            unknown=fields.rest(),
        )
        record.check()
        return record


@dataclass(frozen=True, kw_only=True)
class ElasticRecord(Record):
    """The record of an elastic group: members and mappings may change, other settings never.

    `filters` None and empty mean the same, and are written as they were read. A limit of 0 or less means no limit.
    """

    filters: tuple[PartitioningFilter, ...] | None = None
    max_messages: int = 0
    max_bytes: int = 0
    of_0_1: bool = field(default=False, repr=False)

    @property
    def subjects(self) -> tuple[str, ...]:
        """The group's filters, without partition tokens; none for the whole stream."""
        return tuple(one.filter for one in self.filters or ())

    @property
    def outdated(self) -> bool:
        """Whether it was read from a record of pcgroups 0.1 that members of later versions can't work with."""
        return self.of_0_1

    @property
    def fixed(self) -> dict[str, Any]:
        """The settings that never change: all except members and mappings.

        Null and empty filters are equal here, and so are all limits of 0 or less.
        """
        return {
            "partitions": self.partitions,
            "filters": [(one.filter, list(one.wildcards or ())) for one in self.filters or ()],
            "max_messages": max(self.max_messages, 0),
            "max_bytes": max(self.max_bytes, 0),
        }

    def partitioning_filters(self) -> tuple[PartitioningFilter, ...]:
        """Return the group's filters, or the filter for everything if it has none."""
        return self.filters or (EVERYTHING,)

    def check(self) -> None:
        """BadGroupError if a rule of pcgroups is broken, with the number or the name that breaks it."""
        super().check()
        rules.check_filters(self.filters or ())

    def encode(self) -> bytes:
        """Return the record as Go's library writes it; fields that were read and not changed are the same bytes."""
        return _object(
            {
                "max_members": self.partitions,
                "partitioning_filters": self.filters,
                "max_buffered_msg": self.max_messages,
                "max_buffered_bytes": self.max_bytes,
                "members": self.members,
                "member_mappings": self.mappings,
            },
            self,
        )

    @classmethod
    def decode(cls, value: bytes) -> ElasticRecord:
        """Read a record of any version. BadGroupError if it is not a record, or breaks a rule."""
        fields = _Fields(value)
        filters = fields.take("partitioning_filters", tuple[PartitioningFilter, ...] | None, None)
        of_0_1 = "partitioning_filters" not in fields.known and bool(fields.raw(_FILTER_OF_0_1))
        if of_0_1:
            one, wildcards = fields.take(_FILTER_OF_0_1, str, ""), fields.take(_WILDCARDS_OF_0_1, tuple[int, ...], ())
            filters = (PartitioningFilter(one, wildcards),)
        record = cls(
            partitions=fields.take("max_members", _Number, 0),
            filters=filters,
            max_messages=fields.take("max_buffered_msg", _Number, 0),
            max_bytes=fields.take("max_buffered_bytes", _Number, 0),
            members=fields.take("members", tuple[str, ...], ()),
            mappings=fields.take("member_mappings", tuple[MemberMapping, ...], ()),
            of_0_1=of_0_1,
            known=fields.known,
            unknown=fields.rest(),
        )
        if of_0_1 and not wildcards:
            raise BadGroupError(
                f"the group's record has a filter and no {_WILDCARDS_OF_0_1}, which every record of pcgroups 0.1 has:"
                " delete the group, and create it again"
            )
        record.check()
        return record


class _Fields:
    """The fields of a record by name. Names are case-insensitive, as in Go."""

    def __init__(self, value: bytes) -> None:
        try:
            found: dict[str, msgspec.Raw] = decode(value, dict[str, msgspec.Raw])
        except BadRecordError as error:
            raise BadGroupError(
                f"the group's record is not a JSON object ({error}): delete the group, and create it again"
            ) from error
        self._raw = {name: bytes(raw) for name, raw in found.items()}
        self._names: set[str] = set()
        self.known: dict[str, tuple[Any, bytes]] = {}  # the values that were taken, and their bytes in the record

    def raw(self, name: str) -> bytes:
        """Return a field's bytes in the record, b"" if it is missing."""
        return next((raw for one, raw in reversed(self._raw.items()) if one.casefold() == name), b"")

    def take(self, name: str, kind: type[T] | Any, missing: T) -> T:
        """Return a field's value, or `missing` if it is null or absent, and remove it from the rest."""
        raw = self.raw(name)
        self._raw = {one: other for one, other in self._raw.items() if one.casefold() != name}
        try:
            value: T | None = msgspec.convert(_fold(decode(raw or b"null", Any)), kind | None)
        except (BadRecordError, msgspec.ValidationError, RecursionError) as error:
            raise BadGroupError(f"{name} of the group's record can't be read: {error}") from error
        taken = missing if value is None else value
        if raw:
            self.known[name] = taken, raw
        self._names.add(name)
        return taken

    def rest(self) -> dict[str, bytes]:
        """Return the fields that were not taken, as bytes of the record.

        BadGroupError for the spelling before pcgroups 0.1, with dashes: no released version reads these fields.
        """
        if old := [name for name in self._raw if name.casefold().replace("-", "_") in self._names]:
            raise BadGroupError(
                f"the group's record has {', '.join(old)}, as it was spelled before pcgroups 0.1, and no version since"
                " reads that: delete the group, and create it again"
            )
        return self._raw


def _fold(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.casefold(): _fold(one) for name, one in value.items()}
    return [_fold(one) for one in value] if isinstance(value, list) else value


def _object(fields: Mapping[str, Any], record: Record) -> bytes:
    """Return a JSON object. A value that was read keeps its bytes; an empty field is left out, as Go does."""
    written: dict[str, bytes] = {}
    for name, value in fields.items():
        as_read, raw = record.known.get(name, (None, b""))
        if raw and as_read == value:
            written[name] = raw
        elif value or name in _NEVER_LEFT_OUT:
            written[name] = _go(value)
    return b"{" + b",".join(_go(name) + b":" + raw for name, raw in (*written.items(), *record.unknown.items())) + b"}"


def _go(value: Any) -> bytes:
    """Return JSON as Go's encoder writes it: it escapes characters that have a meaning in HTML or JavaScript."""
    text = msgspec.json.encode(value).decode()
    for character, escaped in _ESCAPED.items():
        text = text.replace(character, escaped)
    return text.encode()


def may_follow(before: Record, after: Record) -> bool:
    """Return whether a record may change into another one while members run."""
    if isinstance(before, ElasticRecord) and isinstance(after, ElasticRecord):
        return before.fixed == after.fixed
    return before == after
