"""`natty server`: runs a development server with TLS and new certificates."""

from __future__ import annotations

import shlex
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from natty.errors import ConfigError, NattyError
from natty.testing import NatsCluster, NatsServer, ServerOptions
from natty.testing.server_options import connect_options

_LOOK_EVERY = 0.2  # seconds between two checks of the servers
_VARIABLES = {"servers": "NATS_URL", "tls_ca": "NATS_CA", "tls_cert": "NATS_CERT", "tls_key": "NATS_KEY"}


def server(
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port; of a cluster, the first port. 0: any free port.")
    ] = 4222,
    store: Annotated[
        Path | None, typer.Option(help="Folder to keep streams and certificates in. Default: a temporary one.")
    ] = None,
    cluster: Annotated[int, typer.Option(min=1, max=9, help="Number of nodes.")] = 1,
) -> None:
    """Run a JetStream server for development, with TLS and new certificates, until interrupted."""
    _check_free(range(port, port + cluster) if port else ())
    options = ServerOptions(port=port or None)
    try:
        running = NatsCluster(cluster, options, folder=store) if cluster > 1 else NatsServer(options, folder=store)
        with running:
            nodes = list(running) if isinstance(running, NatsCluster) else [running]
            _greet(connect_options(options, running.tls_files, [node.url for node in nodes]))
            try:
                while all(node.alive for node in nodes):
                    time.sleep(_LOOK_EVERY)
            except KeyboardInterrupt:
                running.stop()  # gracefully: the end of the block kills
                raise
            ended = next(node for node in nodes if not node.alive)
            raise NattyError(f"{ended.name} stopped unexpectedly: {ended.last_lines().splitlines()[-1]}")
    except KeyboardInterrupt:
        print("stopped", flush=True)


def _check_free(ports: range | tuple[int, ...]) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ConfigError(f"port {port} can't be used ({reason}): give another --port, or 0") from error


def _greet(settings: dict[str, object]) -> None:
    """Print how to connect: lines to paste into another shell, then a command that checks the server."""
    values = {
        name: ",".join(value) if isinstance(value, list) else str(value)
        for name, value in settings.items()
        if name in _VARIABLES
    }
    print("Paste these lines into another shell:")
    for name, value in values.items():
        print(f"export {_VARIABLES[name]}={shlex.quote(value)}")
    print("Then check the server there:")
    print("natty doctor")
    print("Press Ctrl-C here to stop.", flush=True)
