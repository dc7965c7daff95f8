from __future__ import annotations

from typing import Annotated

import typer

from capture.cli import config
from capture.cli.archive import compact, ls, sql, sweep, verify
from capture.cli.demo import demo
from capture.cli.node import run
from capture.errors import CaptureError
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError

app = typer.Typer(
    help="Continuous capture of JetStream streams into files that Spark compacts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (run, sweep, compact, verify, ls, sql, demo):
    app.command()(command)
app.add_typer(config.app, name="config", help="The configuration.")


@app.callback()
def options(
    log_level: Annotated[
        LogLevel, typer.Option(case_sensitive=False, help="What is logged: this and worse.")
    ] = LogLevel.WARNING,
    log_format: Annotated[LogFormat, typer.Option(help="How it is logged.")] = LogFormat.TEXT,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version_of("capture"), is_eager=True)
    ] = False,
) -> None:
    """Continuous capture of JetStream streams into files that Spark compacts."""
    configure_logging(log_level, log_format)


main = main_of(app, "capture", CaptureError, NattyError)
