"""`natty permissions`: the least permissions that a kind of client needs, as a block for the server's configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from natty.elections import permissions as roles
from natty.elections.options import BUCKET, ElectionOptions
from natty.errors import ConfigError
from natty.kv.key_names import check_bucket
from natty.names import check_name

app = typer.Typer(help="Permissions that each kind of client needs.", no_args_is_help=True)

Inbox = Annotated[str, typer.Option("--inbox-prefix", help="Inbox prefix that the user's client uses.")]
Setup = Annotated[bool, typer.Option("--setup", help="Also permit making missing streams and buckets.")]


@app.command()
def publisher(
    *,
    stream: Annotated[str, typer.Argument(help="The stream.")],
    subjects: Annotated[list[str], typer.Argument(help="Subjects that the program publishes on.")],
    later: Annotated[
        bool,
        typer.Option("--later", help="Also permit to publish later: on all subjects of the stream."),
    ] = False,
    inbox: Inbox = roles.INBOX,
) -> None:
    """Print the permissions of a program that publishes to a stream."""
    print(roles.publisher(check_name("stream", stream), subjects, later=later).block(inbox))


@app.command()
def service(
    *,
    stream: Annotated[str, typer.Argument(help="The stream.")],
    durable: Annotated[str, typer.Argument(help="The durable consumer.")],
    setup: Setup = False,
    inbox: Inbox = roles.INBOX,
) -> None:
    """Print the permissions of a service that consumes a stream, with dead letters."""
    found = roles.service(check_name("stream", stream), check_name("consumer", durable), setup=setup)
    print(found.block(inbox))


@app.command()
def candidate(
    *,
    name: Annotated[str, typer.Argument(help="The election's name.")],
    bucket: Annotated[str, typer.Option(help="The election's bucket.")] = BUCKET,
    setup: Setup = False,
    inbox: Inbox = roles.INBOX,
) -> None:
    """Print the permissions of a candidate of an election, also as its leader."""
    try:
        checked = ElectionOptions(name=name, bucket=bucket)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print(roles.candidate(checked.lease_key, bucket=checked.bucket, setup=setup).block(inbox))


@app.command()
def bucket(
    *,
    bucket: Annotated[str, typer.Argument(help="The bucket.")],
    read_only: Annotated[bool, typer.Option("--read-only", help="Only read and watch its keys.")] = False,
    setup: Setup = False,
    inbox: Inbox = roles.INBOX,
) -> None:
    """Print the permissions of a program that reads and writes a key-value bucket."""
    name = check_bucket(bucket)
    print((roles.bucket_reader(name) if read_only else roles.bucket_writer(name, setup=setup)).block(inbox))


@app.command()
def administrator(*, inbox: Inbox = roles.INBOX) -> None:
    """Print the permissions of an administrator of the account's streams, consumers and buckets."""
    print(roles.administrator().block(inbox))
