from __future__ import annotations

from typing import Annotated

import typer

from natty.cli import (
    account,
    consumer,
    dlq,
    group,
    kv,
    leader,
    permissions,
    stream,
    stream_mirror,
    stream_template,
    tls,
)
from natty.cli.bench import bench
from natty.cli.doctor import doctor
from natty.cli.plugin import introspect
from natty.cli.pub import pub, request
from natty.cli.run import LogFormat, LogLevel, configure_logging, main_of, version_of
from natty.cli.server import server
from natty.cli.sub import sub
from natty.errors import NattyError

app = typer.Typer(
    help="JetStream from the command line.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,  # settings have passwords
)
app.add_typer(tls.app, name="tls", help="Certificates for development and tests.")
app.add_typer(dlq.app, name="dlq", help="Dead letters.")
app.add_typer(kv.app, name="kv", help="Key-value buckets.")
app.add_typer(group.app, name="group", help="Partitioned consumer groups.")
app.add_typer(leader.app, name="leader", help="Elections.")
app.add_typer(stream.app, name="stream", help="Streams, and streams as code.")
stream.app.add_typer(stream_template.app, name="template", help="Templates: streams made on demand.")
stream.app.add_typer(stream_mirror.app, name="mirror", help="Mirrors of streams, and disaster recovery.")
app.add_typer(consumer.app, name="consumer", help="Consumers.")
app.add_typer(permissions.app, name="permissions", help="What a kind of client needs to be permitted.")
app.add_typer(account.app, name="account", help="The account.")
for command in (doctor, pub, request, sub, bench, server):
    app.command()(command)


@app.callback()
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


main = main_of(app, "natty", NattyError)
