from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from natty.cli.late import Commands
from natty.cli.plugin import introspect
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError
from natty_start import command_of

COMMANDS = Commands(
    functions={
        "doctor": "natty.cli.doctor:doctor",
        "pub": "natty.cli.pub:pub",
        "request": "natty.cli.pub:request",
        "sub": "natty.cli.sub:sub",
        "bench": "natty.cli.bench:bench",
        "server": "natty.cli.server:server",
    },
    groups={
        "tls": "natty.cli.tls:app",
        "dlq": "natty.cli.dlq:app",
        "kv": "natty.cli.kv:app",
        "group": "natty.cli.group:app",
        "leader": "natty.cli.leader:app",
        "stream": "natty.cli.stream:app",
        "consumer": "natty.cli.consumer:app",
        "permissions": "natty.cli.permissions:app",
        "account": "natty.cli.account:app",
    },
)


def make_app(command: str = "") -> typer.Typer:
    """Return the command line with this command alone; with all of them if there is none of this name."""
    app = typer.Typer(
        help="JetStream from the command line.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,  # settings have passwords
    )
    app.callback()(options)
    COMMANDS.add_to(app, command)
    return app


def options(
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="What is logged: this and worse.")
    ] = LogLevel.ERROR,
    log_format: Annotated[LogFormat, typer.Option(help="How it is logged.")] = LogFormat.TEXT,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version_of("natty"), is_eager=True)
    ] = False,
    fisk_introspect: Annotated[
        bool, typer.Option(help="Print the commands for nats plugins.", hidden=True, callback=introspect, is_eager=True)
    ] = False,
) -> None:
    """JetStream from the command line."""
    configure_logging(log_level, log_format)


def prepare(arguments: Sequence[str]) -> Callable[[], None]:
    """Import what these arguments call, and return the function that runs it."""
    return main_of(make_app(command_of(arguments)), "natty", NattyError)


def main() -> None:
    """Run the command line."""
    prepare(sys.argv[1:])()
