"""`natty group`: partitioned consumer groups, with the verbs and other names of synadia's `cg`."""

from __future__ import annotations

import typer

from natty.cli.group_elastic import add_elastic
from natty.cli.group_members import add_commands
from natty.cli.group_shared import add_shared
from natty.cli.group_static import add_static

app = typer.Typer(help="Partitioned consumer groups.", no_args_is_help=True)
static = typer.Typer(help="Groups on a stream whose subjects begin with a partition.", no_args_is_help=True)
elastic = typer.Typer(help="Groups with a work queue of their own, whose members change.", no_args_is_help=True)

add_shared(static, "static")
add_shared(elastic, "elastic")
add_static(static)
add_elastic(elastic)
add_commands({"static": static, "elastic": elastic})
app.add_typer(static, name="static")
app.add_typer(elastic, name="elastic")
