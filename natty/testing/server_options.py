"""The options of a test server, and its configuration file. No I/O."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from natty.config.tls import TLSFiles

TLS_TIMEOUT = 60  # seconds for a handshake: a test machine may be busy


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of a test server; the default is mutual TLS and JetStream on a free port of the loopback.

    `users` are names and passwords; for more, `authorization` is the text of an `authorization { … }` or
    `accounts { … }` block. `config` is appended to the file unchanged. By default there is no monitoring port.
    """

    tls: Literal["mutual", "server"] | None = "mutual"
    handshake_first: bool = False
    jetstream: bool = True
    sync_interval: str = (
        ""  # "always", or a duration as in "10s", after which the server syncs its files; 2m by default
    )
    users: Mapping[str, str] = field(default_factory=dict)
    authorization: str = ""
    max_payload_bytes: int | None = None
    config: str = ""
    host: str = "127.0.0.1"
    port: int | None = None
    monitoring_port: int | None = None
    name: str = "natty"
    start_timeout: float = 60.0  # seconds until the server must be ready


@dataclass(frozen=True, kw_only=True)
class Routes:
    """A node's place in a cluster: its own route port, and the route ports of all nodes."""

    cluster: str
    port: int
    peers: tuple[int, ...]


def render(
    options: ServerOptions, *, name: str, port: int, store: Path, files: TLSFiles | None, routes: Routes | None
) -> str:
    """Return the text of the server's configuration file."""
    lines = [f"server_name: {_text(name)}", f"listen: {_text(f'{options.host}:{port}')}"]
    if options.monitoring_port is not None:
        lines.append(f"http: {_text(f'{options.host}:{options.monitoring_port}')}")
    if options.max_payload_bytes is not None:
        lines.append(f"max_payload: {options.max_payload_bytes}")
    if options.jetstream:
        synced = f", sync_interval: {_text(options.sync_interval)}" if options.sync_interval else ""
        lines.append(f"jetstream {{ store_dir: {_text(store)}{synced} }}")
    if files and options.tls:
        lines.append(_tls(files, verify=options.tls == "mutual", handshake_first=options.handshake_first))
    if routes:
        lines.append(_cluster(options, routes, files))
    if options.users:
        users = ", ".join(f"{{user: {_text(u)}, password: {_text(p)}}}" for u, p in options.users.items())
        lines.append(f"authorization {{ users: [{users}] }}")
    return "\n".join([*lines, options.authorization, options.config, ""])


def connect_options(options: ServerOptions, files: TLSFiles | None, urls: list[str]) -> dict[str, Any]:
    """Return the keywords of `natty.Natty(...)` that connect to such a server: `servers` and the TLS settings."""
    first = {"tls_first": True} if options.tls and options.handshake_first else {}
    return {"servers": urls, **tls_options(options, files), **first}


def tls_options(options: ServerOptions, files: TLSFiles | None) -> dict[str, str]:
    """Return `tls_ca`, `tls_cert` and `tls_key` for a client of such a server; empty if the server needs none."""
    if not (files and options.tls):
        return {"tls_ca": "", "tls_cert": "", "tls_key": ""}
    if options.tls == "server":
        return {"tls_ca": str(files.ca), "tls_cert": "", "tls_key": ""}
    return {"tls_ca": str(files.ca), "tls_cert": str(files.client_cert), "tls_key": str(files.client_key)}


def _tls(files: TLSFiles, *, verify: bool, handshake_first: bool = False) -> str:
    settings = [
        f"cert_file: {_text(files.server_cert)}",
        f"key_file: {_text(files.server_key)}",
        f"ca_file: {_text(files.ca)}",
        f"verify: {str(verify).lower()}",
        f"timeout: {TLS_TIMEOUT}",
        'min_version: "1.2"',
    ]
    if handshake_first:
        settings.append("handshake_first: true")
    return "tls {\n  " + "\n  ".join(settings) + "\n}"


def _cluster(options: ServerOptions, routes: Routes, files: TLSFiles | None) -> str:
    scheme = "tls" if files and options.tls else "nats"
    urls = ", ".join(_text(f"{scheme}://{options.host}:{port}") for port in routes.peers if port != routes.port)
    settings = [f"name: {_text(routes.cluster)}", f"listen: {_text(f'{options.host}:{routes.port}')}"]
    if files and options.tls:
        settings.append(_tls(files, verify=True))  # a route is also a client: both sides present a certificate
    settings.append(f"routes: [{urls}]")
    return "cluster {\n" + "\n".join(settings) + "\n}"


def _text(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)
