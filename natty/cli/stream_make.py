"""`natty stream add`, `edit`, `copy` and `rm`: create, change and delete streams."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli import completion, connect
from natty.cli.ask import Force, MissingFlagError, ask, ask_if_missing, confirm, number, one_of
from natty.cli.choose import StreamName, stream_of
from natty.cli.setting_flags import (
    Config,
    DryRun,
    document_of,
    limit,
    nanoseconds,
    retention,
    size_limit,
    storage,
    stream_options,
    subjects_of,
)
from natty.cli.stream_code import EXIT_PENDING, show_plans
from natty.cli.stream_look import read_info, show_info
from natty.cli.tables import Json, print_document
from natty.cli.terminal import say
from natty.config.units import write_count
from natty.errors import ConfigError, StreamExistsError
from natty.names import check_name
from natty.streams import Plan, Risk, StreamInfo, stream_info
from natty.streams.document import check, complaints, copy_settings, load_document
from natty.streams.ensure import change_document, create_document, plan_document
from natty.streams.refusal import explaining_refusal

_QUESTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("storage", "Storage, file or memory", storage, "file"),
    ("num_replicas", "Replicas", number, "1"),
    ("retention", "Retention, limits, interest or work", retention, "limits"),
    ("discard", "Discard at a limit, old messages or new ones", one_of("old", "new"), "old"),
    ("max_msgs", "Messages to keep, -1 for no limit", limit, "-1"),
    ("max_msgs_per_subject", "Messages to keep per subject", limit, "-1"),
    ("max_bytes", "Bytes to keep, such as 1GiB", size_limit, "-1"),
    ("max_age", "Time to keep messages, such as 7d", nanoseconds, "-1"),
    ("max_msg_size", "Largest message, such as 64KB", size_limit, "-1"),
)
"""Setting, question, parser, default, in the `nats` tool's order: asked if a required value is missing."""

NewName = Annotated[str | None, typer.Argument(metavar="STREAM", help="The new stream's name.")]


@connect.options
@connect.inject("given", stream_options(defaults=True))
def add(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    name: NewName = None,
    config: Config = None,
    defaults: Annotated[bool, typer.Option("--defaults", help="Ask only for settings without a default.")] = False,
    validate: Annotated[bool, typer.Option("--validate", help="Check the configuration; make nothing.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the configuration to this file; make nothing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a stream. On a terminal it asks for what is missing."""
    document = ({"allow_direct": True} if config is None else load_document(config)) | document_of(given)
    document = _complete(document, name or document.get("name"), defaults=defaults)
    check(document)
    if output is not None:
        _write(output, document)
    elif validate:
        print("the configuration is valid")
    else:
        made, found = connect.call(nats, lambda natty: _add(natty, document))
        show_result(document["name"], made, found, as_json=as_json)


@connect.options
@connect.inject("given", stream_options(editing=True))
def edit(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    name: StreamName = None,
    config: Config = None,
    no_transform: Annotated[bool, typer.Option("--no-transform", help="Stop renaming subjects.")] = False,
    no_republish: Annotated[bool, typer.Option("--no-republish", help="Stop publishing messages again.")] = False,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Change settings of a stream: shows what would change, and asks. Other settings stay as they are."""
    ended = {"subject_transform": no_transform, "republish": no_republish}
    wanted: dict[str, Any] = document_of(given) | {setting: None for setting, end in ended.items() if end}
    if config is not None:
        wanted = load_document(config) | wanted
        name = name or wanted.get("name")
    elif not wanted:
        raise MissingFlagError("no change was given: give a setting such as --max-age 7d, or a file with --config")
    document = wanted | {"name": stream_of(nats, name)}
    plan = connect.call(nats, lambda natty: _plan(natty, document), stream=document["name"])
    if dry_run or plan.settled:
        show_plans([plan], as_json, making="")
        raise typer.Exit(0 if plan.settled else EXIT_PENDING)
    if not force:
        with redirect_stdout(sys.stderr if as_json else sys.stdout):
            show_plans([plan], as_json=False, making="")
            confirm(f"Change stream {document['name']}?", force=force)
    found = connect.call(nats, lambda natty: _change(natty, document), stream=document["name"])
    if as_json:
        print_document(found)
    else:
        say(f"changed {document['name']}")


@connect.options
@connect.inject("given", stream_options())
def copy(
    *,
    nats: dict[str, Any],
    given: dict[str, Any],
    original: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="The stream whose configuration is copied.", autocompletion=completion.streams
        ),
    ],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The new stream's name.")],
    as_json: Json = False,
) -> None:
    """Make a stream with the configuration of another one, except the settings given; copies no messages."""
    check_name("stream", destination)
    wanted = document_of(given)
    config = read_info(nats, check_name("stream", original))["config"]
    if config.get("subjects") and not config.get("mirror"):  # two streams can't have the same subjects
        question = f"Subjects of {destination}, different from {', '.join(config['subjects'])}"
        wanted["subjects"] = ask_if_missing(wanted.get("subjects"), "--subjects", question, subjects_of)
    document = copy_settings(config) | wanted | {"name": destination}
    check(document)
    made, found = connect.call(nats, lambda natty: _add(natty, document))
    show_result(destination, made, found, as_json=as_json)


@connect.options
def rm(*, nats: dict[str, Any], name: StreamName = None, force: Force = False) -> None:
    """Delete a stream with its messages and consumers."""
    name = stream_of(nats, name)
    state = read_info(nats, name)["state"]
    confirm(f"Delete stream {name} with {write_count(state['messages'], 'message')}?", force=force)
    connect.call(nats, lambda natty: natty.delete_stream(name))
    say(f"deleted {name}")


def show_result(name: str, made: bool, found: StreamInfo, *, as_json: bool) -> None:
    """Print a stream that was just created, or that already existed with the same configuration."""
    if not as_json:
        say(f"stream {name} was made" if made else f"stream {name} already exists with this configuration")
    show_info(found, as_json=as_json)


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}; check --output") from error


def _complete(document: dict[str, Any], name: str | None, *, defaults: bool) -> dict[str, Any]:
    """Ask for missing values, and return the whole configuration."""
    takes_messages = any(document.get(one) for one in ("subjects", "mirror", "sources"))
    complete = name is not None and takes_messages
    document = document | {"name": ask_if_missing(name, "STREAM", "Stream", lambda text: check_name("stream", text))}
    check_name("stream", document["name"])
    if not takes_messages:
        question = "Subjects, separated by commas; wildcards are allowed"
        document["subjects"] = ask_if_missing(None, "--subjects", question, subjects_of)
    if not (complete or defaults):
        for setting, question, parse, default in _QUESTIONS:
            if setting not in document:
                document[setting] = ask(question, parse, default=default)
    return document


async def _add(natty: Natty, document: dict[str, Any]) -> tuple[bool, StreamInfo]:
    """Create the stream unless it exists with this configuration; return whether it was created, and its info."""
    async with explaining_refusal(natty.jetstream, document):
        plan = await plan_document(natty.jetstream, document)
        if plan.changes:
            lines = "; ".join(map(str, plan.changes))
            raise StreamExistsError(
                f"{plan.name} exists with another configuration: {lines}. Change it with `natty stream edit`"
            )
        await create_document(natty.jetstream, document)
        return plan.missing, await stream_info(natty.jetstream, document["name"])


async def _plan(natty: Natty, document: dict[str, Any]) -> Plan:
    """Return what would change. StreamExistsError if the server never changes it; ConfigError if it is impossible."""
    actual = (await stream_info(natty.jetstream, document["name"]))["config"]
    plan = await plan_document(natty.jetstream, document)
    if refused := [str(one) for one in plan.changes if one.risk is Risk.FIXED]:
        raise StreamExistsError(f"nothing was changed. {plan.name}: {'; '.join(refused)}")
    known = set(complaints(actual))  # a stream may already have settings that are not sensible: ignore those
    planned = {setting: value for setting, value in plan.apply_to(actual).items() if value is not None}
    if new := [one for one in complaints(planned) if one not in known]:
        raise StreamExistsError(f"nothing was changed. {plan.name}: {'; '.join(new)}")
    return plan


async def _change(natty: Natty, document: dict[str, Any]) -> StreamInfo:
    async with explaining_refusal(natty.jetstream, document):
        await change_document(natty.jetstream, document)
        return await stream_info(natty.jetstream, document["name"])
