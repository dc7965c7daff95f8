"""`natty stream mirror`: copies of streams on the same servers or elsewhere, and disaster recovery."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from natty.cli import completion, connect
from natty.cli.ask import ask_if_missing, confirm
from natty.cli.choose import stream_of
from natty.cli.setting_flags import NOT_OF_A_COPY, document_of, stream_options
from natty.cli.stream_look import read_info
from natty.cli.tables import Json, print_document, print_facts, print_table
from natty.cli.terminal import say
from natty.config.units import show_duration
from natty.errors import ConfigError
from natty.streams import ServerStreamConfig
from natty.streams.mirror import Copying, Origin, copies, create_mirror, create_sourced, list_copying, promote
from natty.streams.origins import origins_of

app = typer.Typer(help="Mirrors of streams, and disaster recovery.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="STREAM", help="The copy's name.", autocompletion=completion.streams)]
Domain = Annotated[str, typer.Option("--domain", help="JetStream domain of the origin.")]
Api = Annotated[str, typer.Option("--external-api", help="Prefix under which the origin's API is imported.")]
Deliver = Annotated[str, typer.Option("--external-deliver", help="Prefix under which its messages are imported.")]
Filter = Annotated[str, typer.Option("--filter", help="Only messages on these subjects.")]
Force = Annotated[bool, typer.Option("--force", help="Promote it even if messages are missing; do not ask.")]
_WITHOUT = (*NOT_OF_A_COPY, "dupe_window", "allow_rollup")


@app.command()
@connect.options
@connect.inject("given", stream_options(without=_WITHOUT))
def add(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    name: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="The mirror's name.")] = None,
    origin: Annotated[
        str | None, typer.Argument(metavar="[ORIGIN]", help="The stream to mirror.", autocompletion=completion.streams)
    ] = None,
    origin_domain: Domain = "",
    api: Api = "",
    deliver: Deliver = "",
    start_sequence: Annotated[
        int | None, typer.Option("--start-seq", min=1, help="Sequence of the origin to start at.")
    ] = None,
    start_time: Annotated[str, typer.Option("--start-time", help="Time to start at, RFC 3339.")] = "",
    only: Filter = "",
    transform: Annotated[
        list[str] | None, typer.Option("--transform", help="FILTER=SUBJECT: store these under another subject.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a mirror of a stream, with its limits: the same messages, sequences and times."""
    name = ask_if_missing(name, "STREAM", "Name of the mirror", str)
    found = Origin(
        stream=ask_if_missing(origin, "ORIGIN", "Stream to mirror", str)
        if origin_domain or api
        else stream_of(nats, origin),
        domain=origin_domain,
        api=api,
        deliver=deliver,
        start_sequence=start_sequence,
        start_time=start_time,
        filter_subject=only,
        transforms=tuple(map(_transform, transform or [])),
    )
    wanted = document_of(given)
    _show_result(connect.call(nats, lambda natty: create_mirror(natty.jetstream, name, found, wanted)), as_json)


@app.command()
@connect.options
@connect.inject("given", stream_options(without=_WITHOUT))
def gather(
    *,
    nats: dict[str, Any],
    name: Name,
    origins: Annotated[
        list[str],
        typer.Argument(metavar="ORIGIN...", help="The streams to gather from.", autocompletion=completion.streams),
    ],
    given: dict[str, Any],
    origin_domain: Domain = "",
    api: Api = "",
    deliver: Deliver = "",
    only: Filter = "",
    as_json: Json = False,
) -> None:
    """Make a stream that gathers the messages of several (`sources`), in the order of each, with new sequences."""
    found = [Origin(stream=one, domain=origin_domain, api=api, deliver=deliver, filter_subject=only) for one in origins]
    wanted = document_of(given)
    _show_result(connect.call(nats, lambda natty: create_sourced(natty.jetstream, name, found, wanted)), as_json)


@app.command()
@connect.options
def ls(*, nats: dict[str, Any], as_json: Json = False) -> None:
    """List mirrors and gathering streams: the lag of each, and when its origin was last heard."""
    found = connect.call(nats, lambda natty: copies(natty.jetstream))
    if as_json:
        print_document(msgspec.to_builtins(found))
    elif found:
        print_table(
            ["stream", "kind", "origin", "state", ">lag", ">heard"],
            [[one.stream, one.kind, _place(one), _state(one), one.lag, _heard(one)] for one in found],
        )
    else:
        print("there are no mirrors")


@app.command()
@connect.options
def info(
    *,
    nats: dict[str, Any],
    name: Annotated[
        str | None, typer.Argument(metavar="[STREAM]", help="The copy's name.", autocompletion=completion.streams)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the progress of a mirror, and the subjects that it would take if promoted."""
    name = stream_of(nats, name)
    answer = read_info(nats, name)
    found, state = list_copying(answer), answer["state"]
    if not found:
        raise ConfigError(f"stream {name} is not a mirror and has no sources; `natty stream mirror ls` lists those")
    if as_json:
        print_document({"copying": msgspec.to_builtins(found), "state": state})
        return
    for one in found:
        print_facts(
            f"{one.kind} {one.stream} of {_place(one)}",
            [
                ("State", _state(one)),
                ("Messages behind", one.lag),
                ("Origin last heard", _heard(one)),
                ("Messages", state["messages"]),
                ("Last sequence", state["last_seq"]),
                ("Last message", state["last_ts"] if state["messages"] else ""),
            ],
        )


@app.command("promote")
@connect.options
def promote_(
    *,
    nats: dict[str, Any],
    name: Annotated[str | None, typer.Argument(metavar="[STREAM]", help="The mirror's name.")] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", help="Subjects to take. Default: the origin's.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Promote a mirror to a stream that takes its origin's subjects: when the origin is lost, or to move it."""
    name = stream_of(nats, name)
    confirm(f"Disconnect {name} from its origin permanently, and let it replace the origin?", force=force)
    config = connect.call(nats, lambda natty: promote(natty.jetstream, name, subject or [], force=force))
    if as_json:
        print_document(config)
    else:
        say(f"{name} is now an independent stream, on {', '.join(config['subjects'])}")


def _show_result(config: ServerStreamConfig, as_json: bool) -> None:
    if as_json:
        print_document(config)
        return
    origins = [one["name"] for one in origins_of(config)]
    how = "mirrors" if config.get("mirror") else "gathers from"
    say(f"{config['name']} {how} {', '.join(origins)}")


def _transform(text: str) -> tuple[str, str]:
    source, equals, dest = text.partition("=")
    if not (source and equals and dest):
        raise typer.BadParameter(f"{text!r} is not a transform; write FILTER=SUBJECT", param_hint="--transform")
    return source, dest


def _place(one: Copying) -> str:
    return f"{one.origin} by {one.external}" if one.external else one.origin


def _state(one: Copying) -> str:
    return f"{one.state}: {one.error}" if one.error else one.state


def _heard(one: Copying) -> str:
    return "never" if one.heard is None else f"{show_duration(round(one.heard, 1) or 0.1)} ago"
