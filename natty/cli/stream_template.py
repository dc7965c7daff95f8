"""`natty stream template`: streams made on demand."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.ask import ask_if_missing, confirm, seconds
from natty.cli.setting_flags import NOT_OF_A_COPY, document_of, stream_options
from natty.cli.tables import Json, print_document, print_facts, print_table
from natty.cli.terminal import say
from natty.config.units import write_count
from natty.consuming.shutdown import stop_on_signals
from natty.elections.options import LEASE
from natty.errors import ConfigError
from natty.templates.template import MAX_STREAMS

app = typer.Typer(help="Templates: streams made on demand.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="TEMPLATE", help="The template's name.", autocompletion=completion.templates)
]
MaxStreams = Annotated[int, typer.Option("--max-streams", min=1, help="Maximum number of streams.")]


@app.command()
@connect.options
@connect.inject("given", stream_options(without=NOT_OF_A_COPY))
def add(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    name: Annotated[str | None, typer.Argument(metavar="[TEMPLATE]", help="The template's name.")] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="Subject of the messages, with a * for each token that may be new.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", help="Names of the streams; {1} is the token at the first *.")
    ] = None,
    max_streams: MaxStreams = MAX_STREAMS,
    max_waiting: Annotated[
        int,
        typer.Option("--max-waiting", min=0, help="Maximum messages per subject that wait for a stream; 0: no limit."),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Declare a template: messages on its subjects are stored, and each new token gets a stream."""
    name = ask_if_missing(name, "TEMPLATE", "Name of the template", str)
    subject = ask_if_missing(subject, "--subject", "Subject, such as orders.*", str)
    stream = ask_if_missing(stream, "--stream", "Names of the streams, such as ORDERS_{1}", str)
    options: dict[str, Any] = {
        "subject": subject,
        "stream": stream,
        "max_streams": max_streams,
        "max_waiting": max_waiting,
    }
    wanted = document_of(given)
    made = connect.call(nats, lambda natty: natty.stream_templates().add(name, settings=wanted, **options))
    if as_json:
        print_document(msgspec.to_builtins(made))
    else:
        say(f"{made.subject} goes to streams {made.stream}; `natty stream template run` makes them")


@app.command()
@connect.options
def edit(*, nats: dict[str, Any], name: Name, max_streams: MaxStreams, as_json: Json = False) -> None:
    """Change the maximum number of streams of a template."""
    changed = connect.call(nats, lambda natty: natty.stream_templates().edit(name, max_streams=max_streams))
    if as_json:
        print_document(msgspec.to_builtins(changed))
    else:
        say(f"template {name} may make {write_count(changed.max_streams, 'stream')}")


@app.command()
@connect.options
def ls(*, nats: dict[str, Any], as_json: Json = False) -> None:
    """List the templates."""
    found = connect.call(nats, lambda natty: natty.stream_templates().ls())
    if as_json:
        print_document(msgspec.to_builtins(found))
    elif found:
        columns = ["template", "subject", "streams", ">max streams", "intake"]
        print_table(columns, [[one.name, one.subject, one.stream, one.max_streams, one.intake] for one in found])
    else:
        print("there are no templates")


@app.command()
@connect.options
def info(*, nats: dict[str, Any], name: Name, as_json: Json = False) -> None:
    """Show a template: its streams, the messages that wait for one and why, and the leader that makes them."""
    standing = connect.call(nats, lambda natty: natty.stream_templates().info(name))
    if as_json:
        print_document(msgspec.to_builtins(standing))
        return
    template = standing.template
    print_facts(
        f"template {name}",
        [
            ("Subject", template.subject),
            ("Streams", template.stream),
            ("Made", f"{len(standing.streams)} of {template.max_streams}"),
            ("Intake", template.intake),
            ("Leader", standing.leader or "none: start `natty stream template run`"),
            ("Waiting for a stream", sum(standing.waiting.values())),
        ],
    )
    if standing.waiting:
        rows = [[subject, count, standing.why(subject)] for subject, count in sorted(standing.waiting.items())]
        print_table(["subject", ">messages", "why"], rows)


@app.command()
@connect.options
def rm(
    *,
    nats: dict[str, Any],
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Delete messages that wait for a stream; do not ask.")] = False,
) -> None:
    """Remove a template. Its streams stay, and take their own subjects."""
    confirm(f"Remove template {name}? Its streams stay.", force=force)
    streams = connect.call(nats, lambda natty: natty.stream_templates().rm(name, force=force))
    taking = write_count(len(streams), "stream", "takes its own subjects", "take their own subjects")
    say(f"removed {name}; {taking} now")


@app.command()
@connect.options
def run(
    *,
    nats: dict[str, Any],
    node_name: Annotated[str, typer.Option(help="Name of this node. Default: host and process.")] = "",
    lease: Annotated[
        float, typer.Option(parser=seconds, metavar="DURATION", help="Time after which a dead leader is replaced.")
    ] = f"{LEASE:g}s",  # type: ignore[assignment] # typer parses defaults, too
) -> None:
    """Make the streams of all templates until stopped. Run it on any number of nodes: one is elected."""
    try:
        connect.call(nats, lambda natty: _run(natty, node_name=node_name, lease=lease))
    except ValueError as error:
        raise ConfigError(str(error)) from error


async def _run(natty: Natty, *, node_name: str, lease: float) -> None:
    running = asyncio.create_task(natty.stream_templates().run(node_name=node_name, lease=lease))

    def stop() -> None:
        running.cancel()

    with stop_on_signals(stop):
        await asyncio.wait([running])
    if not running.cancelled():
        running.result()
