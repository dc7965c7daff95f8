from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import typer
from rich import print_json
from rich.console import Console
from rich.table import Column, Table

from capture.cli import settings
from capture.compact import compact as compact_archive
from capture.config import CaptureConfig
from capture.errors import CaptureError
from capture.head import TermHead, election_name
from capture.identity import claim
from capture.lead import policy
from capture.report import archive_manifest, check
from capture.source import stream_info
from capture.spark import SparkDriver, View
from capture.stores import open_store
from capture.sweep import sweep as sweep_archive
from natty import Natty, Term
from natty.cli import connect
from natty.cli.run import run_async
from natty.leader import default_node_name

EXIT_VERIFY_FAILED = 3

Offline = Annotated[bool, typer.Option("--offline", help="Without NATS: read the newest manifest in the store.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the leadership of this archive.")]


@connect.options
def sweep(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    wait: Wait = 10.0,
    as_json: settings.Json = False,
) -> None:
    """Adopt stored blocks into the manifest once, as the elected leader. Running nodes do it by themselves."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats)

    async def work(term: Term) -> Any:
        opened = open_store(wanted.store)
        return await sweep_archive(opened, TermHead(term), now=time.time(), grace=wanted.sweep.grace, node=term.node)

    _show(run_async(_once_elected(wanted, wait, work)), as_json)


@connect.options
def compact(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    all_blocks: Annotated[bool, typer.Option("--all", help="Compact every block, due or not.")] = False,
    wait: Wait = 10.0,
    as_json: settings.Json = False,
) -> None:
    """Compact what is due on Spark once, as the elected leader. Running nodes do it by themselves."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats)
    if all_blocks:
        wanted = msgspec.structs.replace(
            wanted, compaction=msgspec.structs.replace(wanted.compaction, min_files=1, max_wait=0.0)
        )

    async def work(term: Term) -> Any:
        opened, head = open_store(wanted.store), TermHead(term)
        await sweep_archive(opened, head, now=time.time(), grace=wanted.sweep.grace, node=term.node)
        async with SparkDriver(wanted.spark.options()) as engine:
            return await compact_archive(opened, head, engine, policy(wanted), now=time.time(), node=term.node)

    _show(run_async(_once_elected(wanted, wait, work)), as_json)


async def _once_elected(config: CaptureConfig, wait: float, work: Any) -> Any:
    """Campaign, do the work once as the leader, and leave office."""
    began = asyncio.Event()

    async def duty(term: Term) -> Any:
        began.set()
        return await work(term)

    async with Natty(**config.nats) as natty:
        stream = await stream_info(natty, config.stream)
        await claim(open_store(config.store), config.name, config.stream, stream["created"])
        name = election_name(config.name)
        election = natty.election(name, lease=config.lease, node_name=f"{default_node_name()}-cli")
        running = asyncio.ensure_future(election.run(duty))
        waiting = asyncio.ensure_future(began.wait())
        await asyncio.wait({running, waiting}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not began.is_set() and not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            leader = await natty.get_leader(name)
            raise CaptureError(
                f"{leader or 'another node'} leads the archive {config.name} and does this by itself;"
                f" nothing was done within {wait:g} s. Stop the nodes first to do it by hand, or use --wait"
            )
        return await running


@connect.options
def verify(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file again, not only what is recorded of it.")
    ] = False,
    offline: Offline = False,
    as_json: settings.Json = False,
) -> None:
    """Compare archive and stream, sequence by sequence. Exit status 3 if anything is missing or damaged."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats)

    async def run() -> Any:
        async with _client(wanted, offline) as natty:
            return await check(natty, wanted, open_store(wanted.store), deep=deep)

    verdict = run_async(run())
    if as_json:
        print_json(data=verdict.as_dict())
    else:
        print(verdict.sentence())
    if not verdict.ok:
        raise typer.Exit(EXIT_VERIFY_FAILED)


def ls(
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
) -> None:
    """List what the archive holds, from the newest manifest in the store. Needs no server."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, {}, needs=("store",))
    manifest = run_async(archive_manifest(None, wanted, open_store(wanted.store)))
    if as_json:
        print_json(msgspec.json.encode(manifest).decode())
        return
    table = Table(Column("path", overflow="fold"), "kind", "messages", "bytes", "first", "last")
    for kind, files in (("block", manifest.blocks), ("table", manifest.table)):
        for one in sorted(files, key=lambda one: (one.key, one.first)):
            table.add_row(one.path, kind, *(f"{n:,}" for n in (one.count, one.bytes, one.first, one.last)))
    console = Console()
    console.print(table)
    console.print(f"manifest {manifest.number}: {len(manifest.blocks)} blocks, {len(manifest.table)} table files")


def sql(
    query: Annotated[str, typer.Argument(help="Spark SQL over the view `messages`.")],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    schema: Annotated[str | None, typer.Option(help="The payload's fields as columns: 'carrier STRING, …'.")] = None,
    as_json: settings.Json = False,
) -> None:
    """Ask Spark about the compacted table: the view `messages`, one row a message. Needs no server."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, {}, needs=("store",))

    async def run() -> Any:
        manifest = await archive_manifest(None, wanted, open_store(wanted.store))
        if not manifest.table:
            raise CaptureError(f"the archive in {wanted.store} has no compacted table yet; run: capture compact --all")
        view = View(paths=[one.path for one in manifest.table], payload_schema=schema)
        async with SparkDriver(wanted.spark.options()) as spark:
            return await spark.query(wanted.store, {"messages": view}, query)

    answer = run_async(run())
    if as_json:
        print_json(data=[dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
        return
    table = Table(*answer.columns)
    for row in answer.rows:
        table.add_row(*map(str, row))
    Console().print(table)


@contextlib.asynccontextmanager
async def _client(config: CaptureConfig, offline: bool) -> AsyncIterator[Natty | None]:
    if offline:
        yield None
        return
    async with Natty(**config.nats) as natty:
        yield natty


def _show(report: Any, as_json: bool) -> None:
    fields = {name: value for name, value in vars(report).items() if isinstance(value, int | str | float | list)}
    if as_json:
        print_json(data=fields, default=str)
    else:
        print(", ".join(f"{name}: {value}" for name, value in fields.items()))
