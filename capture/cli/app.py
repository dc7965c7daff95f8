"""The commands of `capture`, and the options before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import typer

from capture.errors import CaptureError
from natty.cli.early_signals import command_of
from natty.cli.late import LateGroup, Place
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError


class Commands(LateGroup):
    """The commands of `capture`, each with the first sentence of its help."""

    examples: ClassVar = "capture.cli.examples"
    places: ClassVar = {
        "run": Place(
            "capture.cli.node:run",
            "Capture one or more streams until stopped; sweep and compact while this node is elected.",
        ),
        "backfill": Place(
            "capture.cli.backfill:backfill",
            "Store the messages of an existing stream that its archive does not hold, by direct gets, and exit.",
        ),
        "status": Place(
            "capture.cli.status:status",
            "Show archive status: leaders, stored and missing messages, pipelines.",
        ),
        "serve": Place(
            "capture.cli.serve:serve",
            "Serve archive status until stopped: a page for browsers, /metrics, /readyz and /livez.",
        ),
        "sweep": Place(
            "capture.cli.archive:sweep", "Adopt stored blocks into the manifest once, as the elected leader."
        ),
        "compact": Place("capture.cli.archive:compact", "Compact due groups on Spark once, as the elected leader."),
        "upgrade": Place(
            "capture.cli.upgrade:upgrade",
            "Bring the archive into this version's format now, as the elected leader.",
        ),
        "verify": Place("capture.cli.verify:verify", "Compare archive and stream, sequence by sequence."),
        "purge": Place(
            "capture.cli.verify:purge",
            "Delete from the stream only messages that are proven to be archived; reads each object again first.",
        ),
        "restore": Place(
            "capture.cli.restore:restore",
            "Restore a stream from its archive, exactly as it was; never changes an existing stream.",
        ),
        "head": Place(
            "capture.cli.head:head",
            "Print the archive's heads as JSON lines, to store elsewhere: capture verify --noted compares them.",
        ),
        "ls": Place(
            "capture.cli.ls:ls",
            "List the archive's blocks and table files, from the newest manifest and table in the store.",
        ),
        "cat": Place(
            "capture.cli.cat:cat",
            "Print every message of a stream once, in order: from its archive and, with --live or --follow, from the "
            "stream.",
        ),
        "sql": Place(
            "capture.cli.sql:sql",
            "Query the archive with SQL: blocks and table as one view, `messages`, with one row for each message.",
        ),
        "demo": Place(
            "capture.cli.demo.run:demo",
            "Run the end-to-end demo on real flights: a TLS cluster, two nodes, a killed leader, Spark, verification.",
        ),
        "doctor": Place(
            "capture.cli.doctor:doctor",
            "Show which Java and Spark are used, and why; with a configuration, test its store and its streams too.",
        ),
        "permissions": Place(
            "capture.cli.config:permissions",
            "Print the NATS permissions that a role needs, for the server's configuration.",
        ),
        "import": Place(
            "capture.cli.backup:import_",
            "Make an archive from a backup of the nats tool, made on a server of version 2.15 or later.",
        ),
        "export": Place(
            "capture.cli.backup:export",
            "Write an archive's stream as a backup for `nats stream restore`, on a server of version 2.15 or later.",
        ),
        "config": Place("capture.cli.config:app", "Show and check the configuration."),
        "catalog": Place(
            "capture.cli.catalog:app", "Serve the table as an Iceberg REST catalog, or register it in yours."
        ),
        "pipeline": Place(
            "capture.cli.pipeline:app", "Show and run the pipelines: tables that are derived from streams."
        ),
        "keys": Place("capture.cli.keys:app", "Create and show keys for encryption and signatures."),
    }


def make_app() -> typer.Typer:
    """Return the command line. Its commands are imported when they are used."""
    app = typer.Typer(
        cls=Commands,
        help="Continuous capture of JetStream streams into files that Spark compacts.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,  # settings contain passwords
    )
    app.callback()(options)
    return app


def options(
    log_level: Annotated[
        LogLevel | None, typer.Option(case_sensitive=False, help="Minimum level to log; default: warning.")
    ] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="Format of the log; default: text.")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=version_of("capture"), is_eager=True)
    ] = False,
) -> None:
    """Continuous capture of JetStream streams into files that Spark compacts."""
    configure_logging(log_level or LogLevel.WARNING, log_format or LogFormat.TEXT)


def prepare(arguments: Sequence[str]) -> Callable[[], None]:
    """Import the command that these arguments call, and return the function that runs it."""
    if place := Commands.places.get(command_of(arguments)):
        place.load()
    return main_of(make_app(), "capture", CaptureError, NattyError)
