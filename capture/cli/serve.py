"""`capture serve`: serves the status page."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from capture.cli import settings
from capture.errors import ConfigError
from capture.node.shutdown import Stopping
from capture.node.status.pipelines import PipelinesLook
from capture.node.status.status import look
from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async
from natty.errors import how_to_install
from natty.metrics.access import Certificate

Host = Annotated[str, typer.Option(help="Address to serve on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")]
Cert = Annotated[Path | None, typer.Option(help="Certificate chain of the server, PEM file.")]
Key = Annotated[Path | None, typer.Option(help="Private key of --cert, PEM file.")]
PlainHttp = Annotated[bool, typer.Option("--plain-http", help="Serve without TLS, on a loopback address only.")]


def certificate(cert: Path | None, key: Path | None, plain_http: bool) -> Certificate | None:
    """Return the certificate to serve with; None for plain HTTP. Raises ConfigError if the options contradict."""
    if (cert is None) != (key is None) or (cert is None) != plain_http:
        raise ConfigError("give --cert and --key to serve over TLS, or --plain-http on a loopback address")
    return Certificate(cert, key) if cert and key else None


def start_command(config: Path | None, stream: str) -> str:
    """Return the command that starts a node of the same archive."""
    if config:
        return shlex.join(["capture", "run", "--config", str(config)])
    return shlex.join(["capture", "run", "--stream", stream or "STREAM", "--store", "STORE"])


def runbook_url(url: str) -> str:
    """Return the URL of docs/runbook.md: `url`, otherwise that in the package's metadata, otherwise "". ConfigError."""
    if url and not url.lower().startswith(("https://", "http://")):
        raise ConfigError(f"--runbook {url}: the URL of a page begins with https:// or http://")
    return url or package_runbook()


def package_runbook() -> str:
    """Return the runbook's URL below the documentation in the package's metadata; "" if they have none."""
    with contextlib.suppress(PackageNotFoundError):
        for entry in metadata("natty-nats").get_all("Project-URL") or ():
            label, _, url = entry.partition(", ")
            if label == "Documentation":
                return f"{url}/runbook.md"
    return ""


@connect.options
def serve(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    host: Host = "127.0.0.1",
    port: Port = 8180,
    cert: Cert = None,
    key: Key = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with one token per line; requests must present one of them.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Allowed host name in requests, behind a proxy, without tokens. Repeatable."),
    ] = None,
    plain_http: PlainHttp = False,
    runbook: Annotated[
        str,
        typer.Option(metavar="URL", help="URL of docs/runbook.md, which the page links to. [default: the package's]"),
    ] = "",
) -> None:
    """Serve archive status until stopped: a page for browsers, /metrics, /readyz and /livez."""
    try:
        from capture.node.status.status_page import StatusPage
        from natty.metrics import http
    except ModuleNotFoundError as error:
        raise ConfigError(f"the page needs {error.name}; {how_to_install('capture')}") from error
    tls = certificate(cert, key, plain_http)
    wanted, whole = settings.archive_beside_pipelines(config, {"stream": stream}, nats)
    tokens, book = settings.tokens(token_file) if token_file else [], runbook_url(runbook)

    async def run() -> None:
        async with Stopping().scope(), Natty(**wanted.nats) as natty:
            pipelines = PipelinesLook(whole)
            page = StatusPage(
                lambda: look(natty, [wanted]),
                tokens,
                pipelines=lambda: pipelines.read(natty),
                start=start_command(config, wanted.stream),
                runbook=book,
            )
            application, names = page.application(), allow_host or ()
            async with http.serve(application, host, port, tls, has_tokens=bool(tokens), hosts=names) as url:
                print(f"the status of {wanted.name} is served on {url}", flush=True)
                await asyncio.get_running_loop().create_future()

    run_async(run())
