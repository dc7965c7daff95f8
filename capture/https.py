"""A web application on the process's event loop, over TLS; without it on a loopback address only."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path

from aiohttp import BasicAuth, web

from capture.errors import ConfigError

SHORTEST_TOKEN = 16
"""Characters of a token: below that it could be guessed."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Return TLS 1.2 or later with this certificate chain. ConfigError if the files can't be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{cert} and {key} are no certificate with its key: {error}") from error
    return context


class Tokens:
    """Who may come in: whoever shows one of these. ConfigError if one is too short."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._tokens = [token.encode() for token in tokens]
        if any(len(token) < SHORTEST_TOKEN for token in self._tokens):
            raise ConfigError(f"a token of {SHORTEST_TOKEN} characters is needed at least: shorter ones can be guessed")

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"Tokens({len(self)})"

    def admit(self, authorization: str, *, basic: bool = False) -> bool:
        """Return whether this `Authorization` header shows one: as a bearer token or, if so said, as a password."""
        scheme, _, given = authorization.partition(" ")
        if basic and scheme.lower() == "basic":
            try:
                given = BasicAuth.decode(authorization, encoding="utf-8").password
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        found = [hmac.compare_digest(given.strip().encode(), token) for token in self._tokens]
        return any(found)


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int, tls: ssl.SSLContext | None) -> AsyncIterator[str]:
    """Meanwhile, serve the application (port 0: a free one); yield its URL.

    ConfigError if the address can't be had, or if it is no loopback address and there is no `tls`.
    """
    if tls is None and not _is_loopback(host):
        raise ConfigError(
            f"without TLS it is served on a loopback address only, not on {host!r}: give --cert and --key"
        )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, ssl_context=tls)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"nothing can be served on {host}:{port}: {error}") from error
        taken = runner.addresses[0][1]
        yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{taken}"
    finally:
        await runner.cleanup()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
