"""`capture sweep` and `compact`: run a leader's task once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import msgspec
import typer

from capture.archive.heads import COMPACTION, RECORDING, SWEEP, Office, TermHead
from capture.archive.identity import claim, require_archive
from capture.cli import settings
from capture.cli.compaction_preview import list_due_groups, show_due_groups
from capture.cli.sweep_preview import list_removable, show_removable
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, CompactionError
from capture.ingest.source import stream_info
from capture.node.leader_tasks import Duty, Sweeps
from capture.spark import SparkDriver
from capture.stores import open_store
from natty import Natty, Term
from natty.cli import connect
from natty.cli.ask import seconds
from natty.cli.run import run_async
from natty.cli.tables import print_document
from natty.cli.terminal import say
from natty.elections import default_node_name

Offline = Annotated[bool, typer.Option("--offline", help="Use the newest documents in the store, without NATS.")]
Wait = Annotated[
    float,
    typer.Option(parser=seconds, metavar="DURATION", help="Time to wait for the leadership, longer than its lease."),
]
Work = Callable[[Term], Awaitable[Any]]


@connect.options
def sweep(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    wait: Wait = "10s",  # type: ignore[assignment] # typer parses defaults, too
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed, table files too.")
    ] = False,
    as_json: settings.Json = False,
) -> None:
    """Adopt stored blocks into the manifest once, as the elected leader. Running nodes do this automatically."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats)
    if dry_run:
        show_removable(run_async(list_removable(wanted)), as_json)
        return

    async def once() -> Any:
        async with connect_claimed(wanted) as natty:
            return await run_elected(natty, wanted, SWEEP, wanted.lease, wait, _sweep(natty, wanted))

    _show(run_async(once()), as_json)


@connect.options
def compact(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    all_blocks: Annotated[bool, typer.Option("--all", help="Compact all blocks, due or not.")] = False,
    wait: Wait = "30s",  # type: ignore[assignment]
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be merged.")] = False,
    as_json: settings.Json = False,
) -> None:
    """Compact due groups on Spark once, as the elected leader. Running nodes do this automatically."""
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats)
    if all_blocks:
        wanted = msgspec.structs.replace(
            wanted, compaction=msgspec.structs.replace(wanted.compaction, min_files=1, max_wait=0.0)
        )
    if dry_run:
        show_due_groups(run_async(list_due_groups(wanted)), as_json)
        return

    async def once() -> Any:
        async with connect_claimed(wanted) as natty:
            if not await natty.get_leader(SWEEP.election(wanted.name)):
                await run_elected(natty, wanted, SWEEP, wanted.lease, wait, _sweep(natty, wanted))
            lease = wanted.compaction.lease
            work = _compact(natty, wanted, all_blocks=all_blocks)
            return await run_elected(natty, wanted, COMPACTION, lease, wait, work)

    done = run_async(once())
    _show(done, as_json)
    if done.failed:
        raise typer.Exit(1)


def _sweep(natty: Natty, config: CaptureConfig) -> Work:
    async def work(term: Term) -> Any:
        duty = Duty(natty, open_store(config.store), config, term.node)
        report = await Sweeps(duty, term).run()
        await duty.write_recording(TermHead(term, RECORDING, config.signer()))
        return report

    return work


def _compact(natty: Natty, config: CaptureConfig, *, all_blocks: bool) -> Work:
    async def work(term: Term) -> Any:
        duty = Duty(natty, open_store(config.store), config, term.node)
        leading, options, key_file = duty.lead_compaction(term), config.spark.options(), config.key_file
        driver = SparkDriver(options, run=term.run_process, key_file=key_file)
        async with duty.keep_catalog(), driver as engine:
            done = last = await duty.compact_once(leading, engine)
            while all_blocks and last.groups:  # one run compacts some groups, and leaves others
                try:
                    last = await duty.compact_once(leading, engine)
                except CompactionError:
                    if not done.failed:
                        raise
                    break  # only the groups that failed before are left
                done = done.add(last)
            if duty.catalog:
                await duty.catalog.set_all()
            return done

    return work


@contextlib.asynccontextmanager
async def connect_claimed(config: CaptureConfig) -> AsyncIterator[Natty]:
    """Connect, and check that the store is this archive's. Only nodes create an archive."""
    store = open_store(config.store)
    async with Natty(**config.nats) as natty:
        stream = await stream_info(natty, config.stream)
        await require_archive(store, config.stream)
        await claim(store, config.name, config.stream, stream["created"], config.signer())
        yield natty


async def run_elected(
    natty: Natty,
    config: CaptureConfig,
    office: Office,
    lease: float,
    wait: float,
    work: Work,
    *,
    about: str = "and does this automatically",
) -> Any:
    """Campaign, do the work once as the leader, and resign. CaptureError, with `about` another leader, after `wait`."""
    began = asyncio.Event()

    async def duty(term: Term) -> Any:
        began.set()
        return await work(term)

    name = office.election(config.name)
    election = natty.election(name, lease=lease, node_name=f"{default_node_name()}-cli")
    running = asyncio.ensure_future(election.run(duty))
    waiting = asyncio.ensure_future(began.wait())
    await asyncio.wait({running, waiting}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not began.is_set() and not running.done():
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        leader = await natty.get_leader(name)
        raise CaptureError(
            f"{leader or 'another node'} leads {name} {about};"
            f" this command was not elected within {wait:g} s. Stop the nodes first, or give a longer --wait"
        )
    return await running


def _show(report: Any, as_json: bool) -> None:
    fields = {name: value for name, value in vars(report).items() if isinstance(value, int | str | float | list)}
    if as_json:
        print_document(fields, default=str)
    else:
        say(", ".join(f"{name}: {value}" for name, value in fields.items()))
