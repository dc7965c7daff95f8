"""Which stream or consumer a command is for: the given name, or one that the user chooses."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from natty.cli import completion, connect
from natty.cli.ask import ask, ask_if_missing, on_terminal
from natty.errors import ConfigError
from natty.names import check_name
from natty.streams.listing import consumer_names, stream_names

StreamName = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        help="The stream's name. Default: asked for on the terminal.",
        autocompletion=completion.streams,
    ),
]


def stream_of(nats: dict[str, Any], given: str | None) -> str:
    """Return the stream's name, checked; if none was given, ask for one. Raises a usage error without a terminal."""
    if given is None and on_terminal():
        names = connect.call(nats, lambda natty: stream_names(natty.jetstream))
        given = _choose("Stream", names, "there is no stream yet; make one with `natty stream add`")
    return check_name("stream", ask_if_missing(given, "STREAM", "Stream", str))


def consumer_of(nats: dict[str, Any], stream: str, given: str | None) -> str:
    """Return the consumer's name, checked; if none was given, ask for one. Raises a usage error without a terminal."""
    if given is None and on_terminal():
        names = connect.call(nats, lambda natty: consumer_names(natty.jetstream, stream), stream=stream)
        given = _choose("Consumer", names, f"stream {stream} has no consumer; make one with `natty consumer add`")
    return check_name("consumer", ask_if_missing(given, "CONSUMER", "Consumer", str))


def _choose(question: str, names: list[str], none: str) -> str:
    if not names:
        raise ConfigError(none)
    return ask(question, str, choices=names)
