"""The connection's options, the same for every command and named as in the `nats` tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

_OPTIONS: dict[str, Any] = {
    "servers": Annotated[
        str | None, typer.Option("--server", "-s", help="Server URLs, separated by commas [env NATS_URL].")
    ],
    "context": Annotated[
        str | None, typer.Option("--context", help="A context of the nats tool, or its path [env NATS_CONTEXT].")
    ],
    "creds": Annotated[str | None, typer.Option("--creds", help="Credentials file [env NATS_CREDS].")],
    "user": Annotated[
        str | None, typer.Option("--user", help="User name [env NATS_USER]; the password by NATS_PASSWORD.")
    ],
    "tls_ca": Annotated[str | None, typer.Option("--tlsca", "--tls-ca", help="The server's CA, PEM [env NATS_CA].")],
    "tls_cert": Annotated[
        str | None, typer.Option("--tlscert", "--tls-cert", help="Our certificate, PEM [env NATS_CERT].")
    ],
    "tls_key": Annotated[str | None, typer.Option("--tlskey", "--tls-key", help="Its key, PEM [env NATS_KEY].")],
}
"""Keyword of `Natty` → its option."""


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection's options; it gets those that were given as `nats`, keywords of `Natty`."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        nats = {name: given.pop(name) for name in _OPTIONS}
        command(nats={name: value for name, value in nats.items() if value is not None}, **given)

    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "nats"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OPTIONS.items()
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + added
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    with_options.__annotations__ = {one.name: one.annotation for one in parameters}
    return with_options
