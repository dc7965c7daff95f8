"""The commands that only `natty group elastic` has: create a group, and change its members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer

from natty.cli import connect
from natty.cli.group_shared import Group, Partitions, Stream, add_command, mappings_of, show_record, split_keyed_filter
from natty.cli.tables import Json, print_document
from natty.cli.terminal import say
from natty.groups.elastic import Change, ElasticAdmin

T = TypeVar("T")
Members = Annotated[list[str], typer.Argument(help="Names of members.")]
Limit = typer.Option(min=-1, help="Limit of the work queue; when full, it waits for acknowledgements. 0: no limit.")


def add_elastic(app: typer.Typer) -> None:
    """Add the commands that only elastic groups have."""

    @app.command()
    @connect.options
    def create(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        partitions: Partitions,
        words: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="FILTER WILDCARD",
                help="The filter and the numbers of the `*` that form the key, as in pcgroups 0.1; or --filter.",
            ),
        ] = None,
        filters: Annotated[
            list[str] | None,
            typer.Option(
                "--filter",
                metavar="SUBJECT[:1,2]",
                help="Only these subjects; the numbers choose the `*` that form the key, by default all of it."
                " May be given several times.",
            ),
        ] = None,
        max_buffered_msgs: Annotated[int, Limit] = 0,
        max_buffered_bytes: Annotated[int, Limit] = 0,
        as_json: Json = False,
    ) -> None:
        """Make a group without members; add them later. Repeating the command changes nothing."""
        keyed = split_keyed_filter(words or [], filters)
        limits = {"max_messages": max_buffered_msgs, "max_bytes": max_buffered_bytes}
        record = _change(nats, stream, group, lambda admin: admin.create(partitions, keyed, **limits))
        show_record("elastic", stream, group, record, as_json)

    @app.command()
    @connect.options
    def add(*, nats: dict[str, Any], stream: Stream, group: Group, members: Members, as_json: Json = False) -> None:
        """Add members; the partitions are balanced again."""
        change = _change(nats, stream, group, lambda admin: admin.add(*members))
        _show(change, members, "added", "a member already", as_json)

    @app.command()
    @connect.options
    def drop(*, nats: dict[str, Any], stream: Stream, group: Group, members: Members, as_json: Json = False) -> None:
        """Drop members; the partitions are balanced again over the others."""
        change = _change(nats, stream, group, lambda admin: admin.drop(*members))
        _show(change, members, "dropped", "not a member", as_json)

    @add_command(app, "create-mapping", "createmapping", "cm")
    @connect.options
    def create_mapping(
        *,
        nats: dict[str, Any],
        stream: Stream,
        group: Group,
        mappings: Annotated[list[str], typer.Argument(metavar="MEMBER:P,P...", help="Each member's partitions.")],
        as_json: Json = False,
    ) -> None:
        """Assign each partition to one member; this replaces the current members or mappings."""
        wanted = mappings_of(mappings)
        change = _change(nats, stream, group, lambda admin: admin.set_mappings(wanted))
        _show_mappings(change, as_json)

    @add_command(app, "delete-mapping", "deletemapping", "dm")
    @connect.options
    def delete_mapping(*, nats: dict[str, Any], stream: Stream, group: Group, as_json: Json = False) -> None:
        """Delete the mappings; the group is then idle until members are added."""
        change = _change(nats, stream, group, lambda admin: admin.delete_mappings())
        if as_json:
            _show_mappings(change, as_json)
        else:
            print("mappings deleted" if change.before.mappings else "there were no mappings")


def _change(nats: dict[str, Any], stream: str, group: str, change: Callable[[ElasticAdmin], Awaitable[T]]) -> T:
    return connect.call(nats, lambda natty: change(ElasticAdmin(natty.jetstream, stream, group)))


def _show(change: Change, named: list[str], verb: str, otherwise: str, as_json: bool) -> None:
    """Print the members that were added or dropped, the named ones that were not, and the current members."""
    done = change.added or change.dropped
    record = change.after
    if as_json:
        listed = {"members": list(record.members), "without_partition": list(record.without_partition)}
        print_document({verb: done, **listed})
        return
    if done:
        say(f"{verb} {', '.join(done)}")
    if others := [name for name in dict.fromkeys(named) if name not in done]:
        say(f"{otherwise}: {', '.join(others)}")
    say(f"members: {', '.join(record.members) or 'none'}")
    if record.without_partition:
        say(f"without a partition, because there are only {record.partitions}: {', '.join(record.without_partition)}")


def _show_mappings(change: Change, as_json: bool) -> None:
    mapped = {one.member: list(one.partitions or ()) for one in change.after.mappings}
    if as_json:
        print_document({"changed": change.after != change.before, "mappings": mapped})
        return
    for member, partitions in mapped.items():
        say(f"{member}: {', '.join(map(str, partitions)) or 'none'}")
    if not mapped:
        print("there are no mappings")
