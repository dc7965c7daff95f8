from __future__ import annotations

from typing import Annotated

import typer

from capture.cli import catalog, config, keys
from capture.cli.archive import compact, ls, sweep
from capture.cli.backup import export, import_
from capture.cli.cat import cat
from capture.cli.demo import demo
from capture.cli.doctor import doctor
from capture.cli.head import head
from capture.cli.node import run
from capture.cli.permissions import permissions
from capture.cli.restore import restore
from capture.cli.serve import serve
from capture.cli.sql import sql
from capture.cli.status import status
from capture.cli.verify import purge, verify
from capture.errors import CaptureError
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError

app = typer.Typer(
    help="Continuous capture of JetStream streams into files that Spark compacts.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # settings have passwords
)
for command in (
    run,
    status,
    serve,
    sweep,
    compact,
    verify,
    purge,
    restore,
    head,
    ls,
    cat,
    sql,
    demo,
    doctor,
    permissions,
):
    app.command()(command)
app.command(name="import")(import_)
app.command()(export)
app.add_typer(config.app, name="config", help="The configuration.")
app.add_typer(catalog.app, name="catalog", help="The table as an Iceberg REST catalog, to read.")
app.add_typer(keys.app, name="keys", help="Keys to encrypt and to sign with.")


@app.callback()
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


main = main_of(app, "capture", CaptureError, NattyError)
