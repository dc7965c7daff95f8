"""The commands of `natty`, and the options before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import typer

from natty.cli.early_signals import command_of
from natty.cli.late import LateGroup, Place
from natty.cli.plugin import introspect
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError


class Commands(LateGroup):
    """The commands of `natty`, each with the first sentence of its help."""

    examples: ClassVar = "natty.cli.examples"
    places: ClassVar = {
        "doctor": Place("natty.cli.doctor:doctor", "Summarise the server, and report current and upcoming problems."),
        "pub": Place(
            "natty.cli.pub:pub",
            "Publish a message; with --jetstream, wait until a stream has stored it; with --at or --after, later.",
        ),
        "request": Place(
            "natty.cli.pub:request",
            "Send a request and print the payload of the answer; with --json also its headers and its duration.",
        ),
        "sub": Place(
            "natty.cli.sub:sub",
            "Print messages as they arrive, until interrupted; with --stream also those that the stream has stored.",
        ),
        "bench": Place("natty.cli.bench:bench", "Measure publishing and consuming on a temporary stream."),
        "server": Place(
            "natty.cli.server:server",
            "Run a JetStream server for development, with TLS and new certificates, until interrupted.",
        ),
        "tls": Place("natty.cli.tls:app", "Certificates for development and tests."),
        "dlq": Place("natty.cli.dlq:app", "Dead letters."),
        "kv": Place("natty.cli.kv:app", "Key-value buckets."),
        "group": Place("natty.cli.group:app", "Partitioned consumer groups."),
        "leader": Place("natty.cli.leader:app", "Elections."),
        "stream": Place("natty.cli.stream:app", "Streams, and streams as code."),
        "schedule": Place("natty.cli.schedule:app", "Messages that the server publishes later."),
        "consumer": Place("natty.cli.consumer:app", "Consumers."),
        "permissions": Place("natty.cli.permissions:app", "Permissions that each kind of client needs."),
        "account": Place("natty.cli.account:app", "The account."),
    }


def make_app() -> typer.Typer:
    """Return the command line. Its commands are imported when they are used."""
    app = typer.Typer(
        cls=Commands,
        help="JetStream from the command line.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,  # settings contain passwords
    )
    app.callback()(options)
    return app


def options(
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            case_sensitive=False, help="Minimum level to log; default: error, of `leader run --every` and --cron info."
        ),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Format of log lines.")] = LogFormat.TEXT,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version_of("natty"), is_eager=True)
    ] = False,
    fisk_introspect: Annotated[
        bool, typer.Option(help="Print the commands for nats plugins.", hidden=True, callback=introspect, is_eager=True)
    ] = False,
) -> None:
    """JetStream from the command line."""
    configure_logging(log_level or LogLevel.ERROR, log_format)


def prepare(arguments: Sequence[str]) -> Callable[[], None]:
    """Import the command that these arguments call, and return the function that runs it."""
    if place := Commands.places.get(command_of(arguments)):
        place.load()
    return main_of(make_app(), "natty", NattyError)
