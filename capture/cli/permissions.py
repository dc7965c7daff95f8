"""`capture permissions`: the least that a role needs, as a block for the server's configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from capture.cli import settings
from capture.config.permissions import Role
from capture.config.permissions import permissions as permissions_of
from natty.elections.permissions import INBOX


def permissions(
    *,
    role: Annotated[Role, typer.Argument(help="What the process does for the archive.")],
    config: settings.Config = None,
    stream: settings.Stream = None,
    durable: Annotated[str | None, typer.Option(help="The durable consumer.")] = None,
    setup: Annotated[bool, typer.Option("--setup", help="Also permit making the buckets that are missing.")] = False,
    inbox: Annotated[str, typer.Option("--inbox-prefix", help="Prefix of the user's inboxes.")] = INBOX,
) -> None:
    """Print what a role needs to be permitted in NATS, for the server's configuration. Connects nowhere."""
    wanted = settings.archive(config, {"stream": stream, "durable": durable}, {}, needs=("stream",))
    print(permissions_of(role, wanted, setup=setup).block(inbox))
