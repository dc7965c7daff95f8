from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from capture.errors import CaptureError
from natty.cli.late import Commands
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError
from natty_start import command_of

COMMANDS = Commands(
    functions={
        "run": "capture.cli.node:run",
        "status": "capture.cli.status:status",
        "serve": "capture.cli.serve:serve",
        "sweep": "capture.cli.archive:sweep",
        "compact": "capture.cli.archive:compact",
        "verify": "capture.cli.verify:verify",
        "purge": "capture.cli.verify:purge",
        "restore": "capture.cli.restore:restore",
        "head": "capture.cli.head:head",
        "ls": "capture.cli.archive:ls",
        "cat": "capture.cli.cat:cat",
        "sql": "capture.cli.sql:sql",
        "demo": "capture.cli.demo.command:demo",
        "doctor": "capture.cli.doctor:doctor",
        "permissions": "capture.cli.permissions:permissions",
        "import": "capture.cli.backup:import_",
        "export": "capture.cli.backup:export",
    },
    groups={
        "config": "capture.cli.config:app",
        "catalog": "capture.cli.catalog:app",
        "keys": "capture.cli.keys:app",
    },
)


def make_app(command: str = "") -> typer.Typer:
    """Return the command line with this command alone; with all of them if there is none of this name."""
    app = typer.Typer(
        help="Continuous capture of JetStream streams into files that Spark compacts.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,  # settings have passwords
    )
    app.callback()(options)
    COMMANDS.add_to(app, command)
    return app


def options(
    log_level: Annotated[
        LogLevel | None, typer.Option(case_sensitive=False, help="What is logged: this and worse; warning by default.")
    ] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="How it is logged; text by default.")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version_of("capture"), is_eager=True)
    ] = False,
) -> None:
    """Continuous capture of JetStream streams into files that Spark compacts."""
    configure_logging(log_level or LogLevel.WARNING, log_format or LogFormat.TEXT)


def prepare(arguments: Sequence[str]) -> Callable[[], None]:
    """Import what these arguments call, and return the function that runs it."""
    return main_of(make_app(command_of(arguments)), "capture", CaptureError, NattyError)


def main() -> None:
    """Run the command line."""
    prepare(sys.argv[1:])()
