"""The pages that a process serves about itself: their answers, their address, and the clients that may read them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from natty.errors import ConfigError
from natty.metrics.access import Certificate, Hosts, Tokens, is_loopback, warn_if_open

PROBES = ("/livez", "/readyz")
"""Pages that every client may read, so that a supervisor needs no token."""


class Answer(NamedTuple):
    """The answer of a page."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


Pages = Mapping[str, Callable[[], Answer | Awaitable[Answer]]]
"""Pages by path; a page may be `async def`."""


class Guard(NamedTuple):
    """Which clients get answers: those that present one of `tokens` (not needed for probes) and name one of `hosts`.

    With a `certificate`, the pages are served over TLS.
    """

    certificate: Certificate | None = None
    tokens: Tokens = Tokens(())
    hosts: Hosts | None = None


def guard_of(
    address: str, *, cert: str | Path = "", key: str | Path = "", tokens: Iterable[str] = (), hosts: Iterable[str] = ()
) -> Guard:
    """Return the guard of the pages at "host:port". ConfigError if files or tokens can't be used.

    Tokens need TLS or a loopback address: otherwise every machine on the path could read them.
    """
    if bool(cert) != bool(key):
        raise ConfigError("a certificate and its key belong together: give both, or neither")
    host, admitted = place_of(address)[0], Tokens(tokens)
    if admitted and not cert and not is_loopback(host):
        raise ConfigError(f"tokens are sent in plain text to {address}: give a certificate and its key")
    warn_if_open("the metrics page", host, has_tokens=bool(admitted))
    certificate = Certificate(cert, key) if cert else None
    return Guard(certificate, admitted, Hosts.of(host, hosts, has_tokens=bool(admitted)))


def place_of(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port"; the host is "" for every address. ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{address!r} is not an address to serve on: write 127.0.0.1:8190, or :8190 for all")
    return host.strip("[]"), int(port)
