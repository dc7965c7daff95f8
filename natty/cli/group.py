"""`natty group`: partitioned consumer groups, with the verbs of synadia's `cg` and its other names for them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from natty.cli import connect
from natty.cli.group_elastic import add_elastic
from natty.cli.group_members import add_commands
from natty.cli.group_shared import Group, Partitions, Stream, add_shared, mappings_of, show_record, split_filter
from natty.cli.tables import Json
from natty.groups.static import StaticAdmin

Filters = Annotated[
    list[str] | None,
    typer.Option("--filter", help="Only these subjects, without the partition. May be given several times."),
]

app = typer.Typer(help="Partitioned consumer groups.", no_args_is_help=True)
static = typer.Typer(help="Groups on a stream whose subjects begin with a partition.", no_args_is_help=True)
elastic = typer.Typer(help="Groups with their own work queue, whose members can change.", no_args_is_help=True)
create = typer.Typer(help="Make a group with its members; it cannot be changed later.", no_args_is_help=True)

add_shared(static, "static")
add_shared(elastic, "elastic")
static.add_typer(create, name="create")
add_elastic(elastic)
add_commands({"static": static, "elastic": elastic})
app.add_typer(static, name="static")
app.add_typer(elastic, name="elastic")


@create.command()
@connect.options
def balanced(
    *,
    nats: dict[str, Any],
    stream: Stream,
    group: Group,
    partitions: Partitions,
    members: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILTER] MEMBER",
            help="Members; the partitions are balanced over them. A first word with `*` or `>` is a filter.",
        ),
    ],
    filters: Filters = None,
    as_json: Json = False,
) -> None:
    """Make a group whose partitions are balanced over its members."""
    subjects, names = split_filter(members, filters)
    record = connect.call(
        nats,
        lambda natty: StaticAdmin(natty.jetstream, stream, group).create(partitions, subjects, members=names),
    )
    show_record("static", stream, group, record, as_json)


@create.command()
@connect.options
def mapped(
    *,
    nats: dict[str, Any],
    stream: Stream,
    group: Group,
    partitions: Partitions,
    mappings: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILTER] MEMBER:P,P...", help="Each member's partitions. A first word `>` is a filter."
        ),
    ],
    filters: Filters = None,
    as_json: Json = False,
) -> None:
    """Make a group whose members have the given partitions."""
    subjects, rest = split_filter(mappings, filters)
    wanted = mappings_of(rest)
    record = connect.call(
        nats,
        lambda natty: StaticAdmin(natty.jetstream, stream, group).create(partitions, subjects, mappings=wanted),
    )
    show_record("static", stream, group, record, as_json)
