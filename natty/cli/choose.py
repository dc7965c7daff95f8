"""Which stream or consumer a command is for: the given name, or one that the user chooses."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from natty import Natty
from natty.cli.ask import ask, ask_if_missing, on_terminal
from natty.cli.run import run_async
from natty.errors import ConfigError
from natty.names import check_name
from natty.streams.listing import consumer_names, stream_names
from natty.streams.nearest import naming_nearest

StreamName = Annotated[
    str | None, typer.Argument(metavar="STREAM", help="The stream's name. Default: asked for on the terminal.")
]


def stream_of(nats: dict[str, Any], given: str | None) -> str:
    """Return the stream's name, checked; if none was given, ask for one. Raises a usage error without a terminal."""
    if given is None and on_terminal():
        given = _choose(
            "Stream", run_async(_stream_names(nats)), "there is no stream yet; make one with `natty stream add`"
        )
    return check_name("stream", ask_if_missing(given, "STREAM", "Stream", str))


def consumer_of(nats: dict[str, Any], stream: str, given: str | None) -> str:
    """Return the consumer's name, checked; if none was given, ask for one. Raises a usage error without a terminal."""
    if given is None and on_terminal():
        names = run_async(_consumer_names(nats, stream))
        given = _choose("Consumer", names, f"stream {stream} has no consumer; make one with `natty consumer add`")
    return check_name("consumer", ask_if_missing(given, "CONSUMER", "Consumer", str))


def _choose(question: str, names: list[str], none: str) -> str:
    if not names:
        raise ConfigError(none)
    return ask(question, str, choices=names)


async def _stream_names(nats: dict[str, Any]) -> list[str]:
    async with Natty(**nats) as natty:
        return await stream_names(natty.jetstream)


async def _consumer_names(nats: dict[str, Any], stream: str) -> list[str]:
    async with Natty(**nats) as natty, naming_nearest(natty.jetstream, stream):
        return await consumer_names(natty.jetstream, stream)
