"""`capture catalog`: serves the table to readers of Iceberg's REST protocol, and registers it in the user's catalog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capture.archive import chain
from capture.archive.chain import HeadReader
from capture.archive.heads import PIPELINES, newest_reader, newest_readers
from capture.archive.iceberg_state import is_reachable
from capture.archive.identity import require_archive, require_named
from capture.archive.table import Table
from capture.cli import settings
from capture.cli.archive import Offline
from capture.cli.serve import Cert, Host, Key, PlainHttp, Port, certificate
from capture.config.load import TOKEN_VARIABLE
from capture.config.pipelines import pipelines_name, pipelines_store
from capture.config.settings import CaptureConfig
from capture.config.streams import each
from capture.errors import CaptureError, ConfigError
from capture.node.shutdown import Stopping
from capture.node.user_catalog import UserCatalog
from capture.pipelines.document import Pipelines
from capture.stores import open_store
from natty import Natty
from natty.cli import connect
from natty.cli.run import complaint, run_async
from natty.cli.tables import print_document
from natty.cli.terminal import say
from natty.errors import how_to_install

if TYPE_CHECKING:
    from capture.node.status.iceberg_rest import Archive

EXIT_BEHIND = 3

app = typer.Typer(help="Serve the table as an Iceberg REST catalog, or register it in yours.", no_args_is_help=True)

Stated = tuple[str, bool]
"""A sentence about an entry in the user's catalog, and whether the entry is as it should be."""


@app.callback()
def catalog() -> None:
    """Serve the table as an Iceberg REST catalog, or register it in yours."""


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
    """Serve the archives' tables, and those of pipelines, read-only to clients of Iceberg's REST protocol."""
    try:
        from capture.node.status.iceberg_rest import RestCatalog
        from natty.metrics import http
    except ModuleNotFoundError as error:
        raise ConfigError(f"the catalog needs {error.name}; {how_to_install('capture')}") from error
    tls = certificate(cert, key, plain_http)
    whole = settings.whole(config, {"stream": stream, "store": store}, nats)
    wanted = each(whole)
    for one in wanted:
        if not is_reachable(open_store(one.store), one.table.location):
            raise ConfigError(
                f"no other engine can open the objects of {one.store.partition('?')[0]}: the archive has no Iceberg"
                f" tables. If they can be read at another URL, write it as location in [table]"
            )
    tokens = _tokens(token_file)

    async def run() -> None:
        async with Stopping().scope(), _connect(wanted, offline) as natty:
            archives = _list_namespaces(whole, wanted, natty)
            async with http.serve(RestCatalog(archives, tokens).application(), host, port, tls) as url:
                for one in wanted:
                    await _require(one, offline)
                print(f"{', '.join(archives)} served on {url}", flush=True)
                await asyncio.get_running_loop().create_future()

    run_async(run())


@app.command()
@connect.options
def show(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Show the entries of your catalog, `[table.catalog]`. Exits with 3 if one does not show the current table."""
    wanted = _with_catalog(nats, config, stream, store)
    _run_on_entries(wanted, offline, lambda catalog, table, one: catalog.inspect(table, one), as_json)


@app.command()
@connect.options
def register(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Also replace an entry that this archive did not make.")
    ] = False,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Register the table in your catalog now, or let its entry show the current table. Exits with 3 if that fails."""
    wanted = _with_catalog(nats, config, stream, store)

    async def set_entry(catalog: UserCatalog, table: Table, one: str) -> Stated:
        await catalog.set(table, one, take_over=take_over)
        return await catalog.inspect(table, one)

    _run_on_entries(wanted, offline, set_entry, as_json)


@app.command()
@connect.options
def remove(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
    offline: Offline = False,
) -> None:
    """Remove the table's entry from your SQL or Glue catalog, and no file. A running node registers it again."""
    wanted = _with_catalog(nats, config, stream, store)

    async def remove_entry(catalog: UserCatalog, table: Table, one: str) -> Stated:
        done = "was removed from" if await catalog.remove(table, one) else "is not registered in"
        return f"{catalog.name(one)} {done} the catalog", True

    _run_on_entries(wanted, offline, remove_entry, as_json)


def _with_catalog(
    nats: dict[str, Any], config: Path | None, stream: str | None, store: str | None
) -> list[CaptureConfig]:
    """Return the archives' settings. Raises ConfigError if they name no catalog."""
    wanted = settings.archives(config, {"stream": stream, "store": store}, nats)
    if not wanted[0].table.catalog.type:
        raise ConfigError("no catalog is named: write [table.catalog] with its type and its uri into capture.toml")
    return wanted


def _run_on_entries(
    wanted: list[CaptureConfig],
    offline: bool,
    work: Callable[[UserCatalog, Table, str], Awaitable[Stated]],
    as_json: bool,
) -> None:
    """Do the work on each stream's entry, and print a sentence for each. Exit with 3 if one is not as it should."""

    async def run() -> list[tuple[str, str, bool]]:
        stated = []
        async with _connect(wanted, offline) as natty:
            for config in wanted:
                await _require(config, offline)
                one = UserCatalog(open_store(config.store), config)
                table = await chain.read(one.store, await _head(config, natty)(), Table)
                if not table.iceberg:
                    stated.append((config.name, f"archive {config.name} has no Iceberg table yet", False))
                for stream in sorted(table.iceberg):
                    try:
                        stated.append((stream, *await work(one, table, stream)))
                    except CaptureError as error:
                        stated.append((stream, str(error), False))
                one.close()
        return stated

    stated = run_async(run())
    if as_json:
        print_document([{"stream": stream, "text": text, "ok": fine} for stream, text, fine in stated])
    for _, text, fine in () if as_json else stated:
        say(text) if fine else print(complaint("capture", text), file=sys.stderr)
    if not all(fine for _, _, fine in stated):
        raise typer.Exit(EXIT_BEHIND)


def _list_namespaces(whole: CaptureConfig, wanted: list[CaptureConfig], natty: Natty | None) -> dict[str, Archive]:
    """Return what is served, by namespace: each archive, and the pipelines, unless only one of their streams is asked.

    Pipelines of one archive are in its namespace.
    """
    from capture.node.status.iceberg_rest import Archive

    found = {one.name: Archive(open_store(one.store), _head(one, natty)) for one in wanted}
    if whole.pipeline and not (whole.streams and whole.stream):
        name, store = pipelines_name(whole), open_store(pipelines_store(whole))
        head = newest_reader(PIPELINES.reader(natty, name) if natty else None, store, Pipelines)
        found[name] = Archive(store, head, Pipelines, beside=found.get(name))
    return found


@contextlib.asynccontextmanager
async def _connect(wanted: list[CaptureConfig], offline: bool) -> AsyncIterator[Natty | None]:
    """Yield a client, or None without the server."""
    async with contextlib.AsyncExitStack() as stack:
        yield None if offline else await stack.enter_async_context(Natty(**wanted[0].nats))


def _head(config: CaptureConfig, natty: Natty | None) -> HeadReader:
    """Return the head reader of an archive's table."""
    return newest_readers(natty, config.name, open_store(config.store))[Table]


async def _require(config: CaptureConfig, offline: bool) -> None:
    """Raise NoArchiveError if the store holds no archive, and ConfigError if it is not the one whose head is read."""
    store = open_store(config.store)
    await (require_archive(store) if offline else require_named(store, config.name))


def _tokens(token_file: Path | None) -> list[str]:
    if token_file is not None:
        return settings.tokens(token_file)
    found = settings.lines(os.environ.get(TOKEN_VARIABLE, ""))
    if not found:
        raise ConfigError(f"clients must present a token: give --token-file, or set {TOKEN_VARIABLE}")
    return found
