"""`natty stream`: the verbs of the `nats` tool, and streams as code."""

from __future__ import annotations

import typer

from natty.cli import stream_mirror, stream_template
from natty.cli.stream_code import apply, show_plan
from natty.cli.stream_look import info, ls, report
from natty.cli.stream_make import add, copy, edit, rm
from natty.cli.stream_messages import get, purge_messages, rm_msg

app = typer.Typer(help="Streams, and streams as code.", no_args_is_help=True)
app.command("ls")(ls)
app.command("info")(info)
app.command("report")(report)
app.command("add")(add)
app.command("edit")(edit)
app.command("copy")(copy)
app.command("rm")(rm)
app.command("purge")(purge_messages)
app.command("rm-msg")(rm_msg)
app.command("rmm", hidden=True)(rm_msg)
app.command("get")(get)
app.command("plan")(show_plan)
app.command("apply")(apply)
app.add_typer(stream_template.app, name="template")
app.add_typer(stream_mirror.app, name="mirror")
