"""`capture catalog`: serves the table to readers that speak Iceberg's REST protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from capture.archive.chain import HeadReader, latest_offline
from capture.archive.heads import COMPACTION
from capture.archive.iceberg_state import is_reachable
from capture.archive.identity import require_archive
from capture.archive.table import Table
from capture.cli import settings
from capture.cli.archive import Offline
from capture.cli.serve import Cert, Host, Key, PlainHttp, Port, certificate
from capture.config.load import TOKEN_VARIABLE
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError
from capture.node.shutdown import Stopping
from capture.stores import open_store
from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async

app = typer.Typer(help="Serve the table as a read-only Iceberg REST catalog.", no_args_is_help=True)


@app.callback()
def catalog() -> None:
    """Serve the table as a read-only Iceberg REST catalog."""


@app.command()
@connect.options
def serve(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    host: Host = "127.0.0.1",
    port: Port = 8181,
    cert: Cert = None,
    key: Key = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File with one token per line; default: the variable {TOKEN_VARIABLE}.")
    ] = None,
    plain_http: PlainHttp = False,
    offline: Offline = False,
) -> None:
    """Serve the archives' tables read-only to clients of Iceberg's REST protocol, until stopped."""
    try:
        from capture.status.iceberg_rest import Archive, RestCatalog
        from natty.metrics import http
    except ModuleNotFoundError as error:
        raise ConfigError(f'the catalog needs {error.name}; run: pip install "natty-nats[capture]"') from error
    tls = certificate(cert, key, plain_http)
    wanted = settings.archives(config, {"stream": stream, "store": store}, nats)
    for one in wanted:
        if not is_reachable(open_store(one.store), one.table.location):
            raise ConfigError(
                f"no other engine can open the objects of {one.store.partition('?')[0]}: the archive has no Iceberg"
                f" tables. If they can be read at another URL, write it as location in [table]"
            )
    tokens = _tokens(token_file)

    async def run() -> None:
        async with Stopping().scope(), _heads(wanted, offline) as heads:
            archives = {one.name: Archive(open_store(one.store), head) for one, head in zip(wanted, heads, strict=True)}
            async with http.serve(RestCatalog(archives, tokens).application(), host, port, tls) as url:
                for one in wanted:
                    await require_archive(open_store(one.store))
                print(f"{', '.join(archives)} served on {url}", flush=True)
                await asyncio.get_running_loop().create_future()

    run_async(run())


@contextlib.asynccontextmanager
async def _heads(wanted: list[CaptureConfig], offline: bool) -> AsyncIterator[list[HeadReader]]:
    """Yield the head reader of each archive's table."""
    if offline:
        yield [partial(latest_offline, open_store(one.store), Table) for one in wanted]
        return
    async with Natty(**wanted[0].nats) as natty:
        yield [COMPACTION.reader(natty, one.name) for one in wanted]


def _tokens(token_file: Path | None) -> list[str]:
    if token_file is not None:
        return settings.tokens(token_file)
    found = settings.lines(os.environ.get(TOKEN_VARIABLE, ""))
    if not found:
        raise ConfigError(f"clients must present a token: give --token-file, or set {TOKEN_VARIABLE}")
    return found
