"""The commands that `natty group static` and `natty group elastic` share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.ask import Force, confirm
from natty.cli.tables import Json, print_document, print_pairs, print_table
from natty.cli.terminal import say
from natty.config.units import write_count
from natty.errors import BadGroupError, GroupNotFoundError
from natty.groups import ElasticRecord, PartitioningFilter, Record, StaticRecord
from natty.groups.admin import GroupAdmin, Kind, MemberState, list_groups
from natty.groups.elastic import ElasticAdmin
from natty.groups.partitions import WHOLE_SUBJECT
from natty.groups.static import StaticAdmin

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
Admin = GroupAdmin[Any]
ADMINS: dict[Kind, type[Admin]] = {"static": StaticAdmin, "elastic": ElasticAdmin}

Stream = Annotated[
    str, typer.Argument(help="The stream whose messages the group shares.", autocompletion=completion.streams)
]
Group = Annotated[str, typer.Argument(help="The group's name.", autocompletion=completion.groups)]
Partitions = Annotated[
    int, typer.Argument(min=1, metavar="PARTITIONS", help="Number of partitions: at most as many members have work.")
]
Member = Annotated[str, typer.Argument(help="The member's name.")]


def add_command(app: typer.Typer, name: str, *aliases: str) -> Callable[[C], C]:
    """Register a command under its name, and under its other names in `cg`, which the help does not list."""

    def register(command: C) -> C:
        app.command(name)(command)
        for alias in aliases:
            app.command(alias, hidden=True)(command)
        return command

    return register


def add_shared(app: typer.Typer, kind: Kind) -> None:
    """Add the commands that static and elastic groups share."""

    @add_command(app, "ls", "list")
    @connect.options
    def ls(*, nats: dict[str, Any], stream: Stream, as_json: Json = False) -> None:
        """List a stream's groups."""
        names = connect.call(nats, lambda natty: list_groups(natty.jetstream, kind, stream))
        if as_json:
            print_document(names)
        else:
            say(*names)

    @add_command(app, "info")
    @connect.options
    def info(*, nats: dict[str, Any], stream: Stream, group: Group, as_json: Json = False) -> None:
        """Show a group: its settings, its members, their partitions, and which members are active."""
        record, members, buffered = administer(nats, kind, stream, group, _info)
        facts = {"stream": stream, "group": group, "kind": kind, **facts_of(record)}
        if isinstance(record, ElasticRecord):
            facts |= {"buffered": buffered}
        outdated = record.outdated or any(one.outdated for one in members)
        if as_json:
            print_document(facts | {"outdated": outdated, "members": [fields_of(one) for one in members]})
            return
        print_pairs(_readable(facts))
        if members:
            _show_members(members)
        if outdated:
            say(f"created by pcgroups 0.1: convert it with natty group {kind} upgrade {stream} {group}")
        _explain_unused_filter(record)

    @app.command()
    @connect.options
    def upgrade(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        force: Annotated[
            bool, typer.Option("--force", "-f", help="Convert even if programs of that version are reading.")
        ] = False,
        as_json: Json = False,
    ) -> None:
        """Convert a group of pcgroups 0.1, whose programs are stopped; members continue where those were."""
        converted, record = administer(nats, kind, stream, group, lambda admin: _upgrade(admin, force=force))
        if as_json:
            print_document({"converted": converted})
            return
        say(*[f"converted {one}" for one in converted] or [f"nothing of {group} is of pcgroups 0.1"])
        _explain_unused_filter(record)

    @add_command(app, "rm", "delete")
    @connect.options
    def rm(*, nats: dict[str, Any], stream: Stream, group: Group, force: Force = False) -> None:
        """Delete a group; its members end. The stream keeps its messages."""
        confirm(f"Delete {administer(nats, kind, stream, group, _describe_deletion)}?", force=force)
        left = administer(nats, kind, stream, group, lambda admin: admin.delete())
        say(f"deleted {group} of {stream}")
        for one in left:
            say(f"{one} does not belong to the group: not deleted")

    @add_command(app, "member-info", "memberinfo", "minfo")
    @connect.options
    def member_info(
        *, nats: dict[str, Any], stream: Stream, group: Group, member: Member, as_json: Json = False
    ) -> None:
        """Show whether a name is a member, and whether an instance reads as it."""
        state = administer(nats, kind, stream, group, lambda admin: admin.member(member))
        if as_json:
            print_document(fields_of(state))
            return
        has = f"partitions {_numbers(state.partitions)}" if state.partitions else "no partition"
        say(f"{member} is {'a member' if state.listed else 'not a member'} of {group}; {has}; {_activity(state)}")

    @add_command(app, "step-down", "stepdown", "sd")
    @connect.options
    def step_down(*, nats: dict[str, Any], stream: Stream, group: Group, member: Member) -> None:
        """Make another instance of a member take over; a single instance stays."""
        administer(nats, kind, stream, group, lambda admin: admin.step_down(member))
        say(f"asked the pinned instance of {member} to step down")


def admin_of(natty: Natty, kind: Kind, stream: str, group: str) -> Admin:
    """Return the administration of a group. Raises BadGroupError for invalid names."""
    return ADMINS[kind](natty.jetstream, stream, group)


def administer(nats: dict[str, Any], kind: Kind, stream: str, group: str, use: Callable[[Admin], Awaitable[T]]) -> T:
    """Connect, await what `use` returns for the administration of a group, and return the result. BadGroupError."""
    return connect.call(nats, lambda natty: use(admin_of(natty, kind, stream, group)))


def facts_of(record: Record) -> dict[str, Any]:
    """Return a group's settings for JSON, without its members."""
    facts: dict[str, Any] = {"partitions": record.partitions, "filters": list(record.subjects)}
    if isinstance(record, ElasticRecord):
        keyed = record.partitioning_filters()
        filters = [{"filter": one.filter, "wildcards": list(one.wildcards or ())} for one in keyed]
        facts |= {"filters": filters, "max_messages": record.max_messages, "max_bytes": record.max_bytes}
    return facts | {"assigned": "balanced" if record.members else "mapped" if record.mappings else "to nobody"}


def fields_of(state: MemberState) -> dict[str, Any]:
    """Return a member's state for JSON."""
    return {**asdict(state), "active": state.active}


def show_record(kind: Kind, stream: str, group: str, record: Record, as_json: bool) -> None:
    """Print a new group."""
    facts = {"stream": stream, "group": group, "kind": kind, **facts_of(record)}
    if as_json:
        print_document(facts | {"members": list(record.member_names)})
    else:
        print_pairs(_readable(facts | {"members": ", ".join(record.member_names) or "none yet"}))


def partitioning_filter(text: str) -> PartitioningFilter:
    """Return a filter written as `SUBJECT` or `SUBJECT:1,2`, the numbers of the wildcards that are the key.

    Raises a usage error if the text after the last colon is not such numbers. `SUBJECT:` is a subject with a colon in
    it.
    """
    subject, colon, numbers = text.rpartition(":")
    if not colon:
        return PartitioningFilter(text)
    return PartitioningFilter(subject, numbers_of(numbers, text, "SUBJECT:1,2") if numbers else None)


def split_filter(words: list[str], filters: list[str] | None) -> tuple[list[str], list[str]]:
    """Return the filters and the other words of a command whose first word may be a filter, as in pcgroups 0.1.

    It is one if it is empty or has a token `*` or `>`, which no member's name can have. `>` and the empty word stand
    for the whole stream. Raises a usage error if nothing follows, if `--filter` is there too, and for a first word that
    is neither a name nor surely a filter.
    """
    first, *rest = words
    tokens = first.split(".")
    if first and not {"*", ">"} & set(tokens):
        if len(tokens) > 1 and ":" not in first:
            raise typer.BadParameter(f"{first!r} is not a member's name; if it is a filter, write --filter {first!r}")
        return filters or [], words
    if filters:
        raise typer.BadParameter(f"{first!r} is a filter, and --filter names another: write all of them with --filter")
    if not rest:
        raise typer.BadParameter(f"{first!r} is a filter, and no member follows: name at least one")
    return [one for one in (first,) if one not in ("", WHOLE_SUBJECT)], rest


def split_keyed_filter(words: list[str], filters: list[str] | None) -> list[PartitioningFilter] | None:
    """Return the filters of an elastic group, given with `--filter`, or as in pcgroups 0.1: FILTER WILDCARD...

    None: the group has no filter. Raises a usage error for both at once, and for a filter without wildcard numbers.
    """
    if not words:
        return [partitioning_filter(one) for one in filters] if filters else None
    subject, *numbers = words
    if filters:
        raise typer.BadParameter(f"{subject!r} is a filter, and --filter names another: write all with --filter")
    if not numbers:
        raise typer.BadParameter(
            f"the filter {subject!r} needs the numbers of the wildcards that are the key after it;"
            f" for the whole subject, write --filter {subject!r}"
        )
    return [PartitioningFilter(subject, numbers_of(",".join(numbers), " ".join(words), "FILTER 1 2"))]


def mappings_of(texts: list[str]) -> dict[str, tuple[int, ...]]:
    """Return mappings written as `MEMBER:0,1,2`. Raises a usage error for an invalid one, or a member named twice."""
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        member, colon, numbers = text.rpartition(":")
        if not colon or not member:
            raise typer.BadParameter(f"{text!r} is not a mapping; write MEMBER:0,1,2")
        if member in found:
            raise typer.BadParameter(f"{member!r} is mapped twice: name it once with all its partitions")
        found[member] = numbers_of(numbers, text, "MEMBER:0,1,2") if numbers else ()
    return found


def numbers_of(text: str, whole: str, form: str) -> tuple[int, ...]:
    """Return numbers that are separated by commas. Raises a usage error that names the form."""
    try:
        return tuple(int(one) for one in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{whole!r} can't be read; write {form}") from None


def _numbers(partitions: Iterable[int]) -> str:
    return ", ".join(map(str, partitions))


def _activity(state: MemberState) -> str:
    if not state.active:
        return "no instance reads as it" + (", but its consumer still exists" if state.exists else "")
    return f"{state.waiting} open pulls, " + (
        f"{state.pinned} is pinned" if state.pinned else "no instance is pinned yet"
    )


def _readable(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [(f"{name.replace('_', ' ')}:", _fact(name, value)) for name, value in facts.items()]


def _fact(name: str, value: Any) -> str:
    if name == "filters":
        return ", ".join(map(_filter, value)) or ">"
    if name in ("max_messages", "max_bytes") and value <= 0:
        return "no limit"
    return "its work queue is missing: make the group again" if value is None else str(value)


def _filter(one: str | dict[str, Any]) -> str:
    if isinstance(one, str):
        return one
    key = f"wildcards {_numbers(one['wildcards'])}" if one["wildcards"] else "the whole subject"
    return f"{one['filter']} by {key}"


def _show_members(members: list[MemberState]) -> None:
    rows = []
    for one in members:
        counts = (one.waiting, one.unacked, one.pending) if one.exists else "---"
        active = "yes" if one.active else "no"
        rows.append((one.name, _numbers(one.partitions) or "none", active, one.pinned or "-", *counts))
    print_table(("member", "partitions", "active", "pinned", ">waiting", ">unacked", ">pending"), rows)


def _explain_unused_filter(record: Record) -> None:
    if isinstance(record, StaticRecord) and record.unused_filter:
        say(f"the filter {record.unused_filter!r} has no effect, as in pcgroups 0.1: members read whole partitions")


async def _upgrade(admin: Admin, *, force: bool) -> tuple[list[str], Record]:
    return await admin.upgrade(force=force), await admin.read()


async def _info(admin: Admin) -> tuple[Record, list[MemberState], int | None]:
    record = await admin.read()
    buffered = await admin.count_buffered() if isinstance(admin, ElasticAdmin) else None
    return record, await admin.members(), buffered


async def _describe_deletion(admin: Admin) -> str:
    """Return a description of what would be deleted. Raises GroupNotFoundError if there is nothing."""
    buffered = await admin.count_buffered() if isinstance(admin, ElasticAdmin) else None
    try:
        listed = f" with {write_count(len((await admin.read()).member_names), 'member')}"
    except BadGroupError:
        listed = ", whose record can't be read,"
    except GroupNotFoundError:
        if buffered is None:
            raise
        listed = ", of which only the work queue is left,"
    return f"{admin}{listed}" + (f" and {write_count(buffered, 'unacknowledged message')}" if buffered else "")
