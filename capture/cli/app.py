"""The commands of `capture`, and the options before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import typer

from capture.errors import CaptureError
from natty.cli.late import LateGroup, Place
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.errors import NattyError
from natty_start import command_of


class Commands(LateGroup):
    """The commands of `capture`, each with the first sentence of its help."""

    places: ClassVar = {
        "run": Place(
            "capture.cli.node:run",
            "Capture a stream, or several, until stopped; sweep, and compact, while this node is elected to it.",
        ),
        "status": Place(
            "capture.cli.status:status",
            "Show what the nodes publish of an archive: who leads, what is stored, what lacks.",
        ),
        "serve": Place(
            "capture.cli.serve:serve",
            "Serve the status of the archives until stopped: a page for browsers, /metrics, /readyz and /livez.",
        ),
        "sweep": Place(
            "capture.cli.archive:sweep", "Adopt stored blocks into the manifest once, as the elected leader."
        ),
        "compact": Place("capture.cli.archive:compact", "Compact what is due on Spark once, as the elected leader."),
        "verify": Place("capture.cli.verify:verify", "Compare archive and stream, sequence by sequence."),
        "purge": Place(
            "capture.cli.verify:purge",
            "Delete from the stream what the archive provably holds: each object is read again first.",
        ),
        "restore": Place(
            "capture.cli.restore:restore",
            "Make a stream out of its archive, exactly as it was; an existing stream is never touched.",
        ),
        "head": Place(
            "capture.cli.head:head",
            "Print the archive's heads, a line of JSON each, to be kept elsewhere: capture verify --noted "
            "compares them.",
        ),
        "ls": Place(
            "capture.cli.archive:ls", "List what the archive holds, from the newest manifest and table in the store."
        ),
        "cat": Place(
            "capture.cli.cat:cat",
            "Print every message of a stream once, in order: from its archive; with --live or --follow the "
            "stream's, too.",
        ),
        "sql": Place(
            "capture.cli.sql:sql",
            "Ask about the archive, blocks and table as one: the view `messages`, one row a message.",
        ),
        "demo": Place(
            "capture.cli.demo.run:demo",
            "Run the main job on real flights: a TLS cluster, two nodes, a killed leader, Spark, and the proof.",
        ),
        "doctor": Place(
            "capture.cli.doctor:doctor",
            "Say which Java and which Spark are used here, and why; with a configuration, try its store and its "
            "streams too.",
        ),
        "permissions": Place(
            "capture.cli.config:permissions",
            "Print what a role needs to be permitted in NATS, for the server's configuration.",
        ),
        "import": Place(
            "capture.cli.backup:import_",
            "Make an archive of a backup of the nats tool, from a server of version 2.15 or later.",
        ),
        "export": Place(
            "capture.cli.backup:export",
            "Write an archive's stream as a backup that `nats stream restore` takes, on servers from 2.15 on.",
        ),
        "config": Place("capture.cli.config:app", "The configuration."),
        "catalog": Place("capture.cli.catalog:app", "The table as an Iceberg REST catalog, to read."),
        "keys": Place("capture.cli.keys:app", "Keys to encrypt and to sign with."),
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
    """Import the command that these arguments call, and return the function that runs it."""
    if place := Commands.places.get(command_of(arguments)):
        place.load()
    return main_of(make_app(), "capture", CaptureError, NattyError)
