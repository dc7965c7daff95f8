"""Options that many commands share: those of the connection, with the same names as in the `nats` tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

_OPTIONS: dict[str, Any] = {
    "servers": Annotated[
        str | None,
        typer.Option(
            "--server", "-s", help="Server URLs, separated by commas; a context then needs --context [env NATS_URL]."
        ),
    ],
    "context": Annotated[
        str | None, typer.Option("--context", help="A context of the nats tool, or its path [env NATS_CONTEXT].")
    ],
    "creds": Annotated[str | None, typer.Option("--creds", help="Credentials file [env NATS_CREDS].")],
    "user": Annotated[
        str | None, typer.Option("--user", help="User name; set its password in NATS_PASSWORD [env NATS_USER].")
    ],
    "password": Annotated[
        str | None,
        typer.Option("--password", help="Password (visible in `ps`; prefer NATS_PASSWORD) [env NATS_PASSWORD]."),
    ],
    "token": Annotated[
        str | None, typer.Option("--token", help="Token (visible in `ps`; prefer NATS_TOKEN) [env NATS_TOKEN].")
    ],
    "nkey": Annotated[str | None, typer.Option("--nkey", help="File with an nkey's seed [env NATS_NKEY].")],
    "tls_ca": Annotated[str | None, typer.Option("--tlsca", "--tls-ca", help="The server's CA, PEM [env NATS_CA].")],
    "tls_cert": Annotated[
        str | None, typer.Option("--tlscert", "--tls-cert", help="Client certificate, PEM [env NATS_CERT].")
    ],
    "tls_key": Annotated[
        str | None, typer.Option("--tlskey", "--tls-key", help="Key of the client certificate, PEM [env NATS_KEY].")
    ],
    "domain": Annotated[str | None, typer.Option("--js-domain", help="JetStream domain.")],
    "api_prefix": Annotated[str | None, typer.Option("--js-api-prefix", help="Subject prefix of JetStream's API.")],
    "inbox_prefix": Annotated[
        str | None, typer.Option("--inbox-prefix", help="Subject prefix of inboxes, for replies.")
    ],
}
"""Keyword of `Natty` → its option."""


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection's options to a command; it gets the given ones as `nats`, keywords of `Natty`."""
    return inject("nats", _OPTIONS)(command)


def inject(keyword: str, table: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a table, name → annotation, to a command; it gets the given ones as one dictionary."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**given: Any) -> None:
            values = {name: given.pop(name) for name in table}
            command(**{keyword: {name: value for name, value in values.items() if value is not None}}, **given)

        own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != keyword]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in table.items()
        ]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + added
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate
