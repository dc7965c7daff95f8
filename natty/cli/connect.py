"""What commands share that need a connection: its options, named as in the `nats` tool, and one call on it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from natty import Natty
from natty.cli.help import CONNECTION
from natty.cli.run import run_async
from natty.streams.nearest import naming_nearest

T = TypeVar("T")


_OPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "servers": (("--server", "-s"), "Server URLs, separated by commas; a context then needs --context [env NATS_URL]."),
    "context": (("--context",), "A context of the nats tool, or its path [env NATS_CONTEXT]."),
    "creds": (("--creds",), "Credentials file [env NATS_CREDS]."),
    "user": (("--user",), "User name; set its password in NATS_PASSWORD [env NATS_USER]."),
    "password": (("--password",), "Password (visible in `ps`; prefer NATS_PASSWORD) [env NATS_PASSWORD]."),
    "token": (("--token",), "Token (visible in `ps`; prefer NATS_TOKEN) [env NATS_TOKEN]."),
    "nkey": (("--nkey",), "File with an nkey's seed [env NATS_NKEY]."),
    "tls_ca": (("--tlsca", "--tls-ca"), "The server's CA, PEM [env NATS_CA]."),
    "tls_cert": (("--tlscert", "--tls-cert"), "Client certificate, PEM [env NATS_CERT]."),
    "tls_key": (("--tlskey", "--tls-key"), "Key of the client certificate, PEM [env NATS_KEY]."),
    "domain": (("--js-domain",), "JetStream domain."),
    "api_prefix": (("--js-api-prefix",), "Subject prefix of JetStream's API."),
    "inbox_prefix": (("--inbox-prefix",), "Subject prefix of inboxes, for replies."),
}
"""Keyword of `Natty` → the flags and the help of its option."""


def call(nats: Mapping[str, Any], use: Callable[[Natty], Awaitable[T]], *, stream: str = "", consumer: str = "") -> T:
    """Connect, await what `use` returns, disconnect, and return the result.

    With `stream`, the errors for a missing stream or consumer name the nearest existing ones.
    """

    async def main() -> T:
        async with Natty(**nats) as natty:
            if not stream:
                return await use(natty)
            async with naming_nearest(natty.jetstream, stream, consumer):
                return await use(natty)

    return run_async(main())


def given(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the connection among a command's parameters, as keywords of `Natty`."""
    return {name: parameters[name] for name in _OPTIONS if parameters.get(name) is not None}


def flags_of(nats: Mapping[str, Any]) -> list[str]:
    """Return keywords of `Natty` as the words of a command line that give the same options."""
    return [word for name, value in nats.items() for word in (_OPTIONS[name][0][0], str(value))]


def options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the connection's options to a command; it gets the given ones as `nats`, keywords of `Natty`."""
    table = {
        name: Annotated[str | None, typer.Option(*flags, help=text, rich_help_panel=CONNECTION)]
        for name, (flags, text) in _OPTIONS.items()
    }
    return inject("nats", table)(command)


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
