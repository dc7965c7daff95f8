"""`capture backfill`: reads a range of an old stream into its archive, by several processes, and ends."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.progress import TimeRemainingColumn

from capture.archive.identity import claim
from capture.cli import completion, settings
from capture.cli.node import configure_log, list_own_command, log_flags, run_worker
from capture.cli.verify import show_progress
from capture.config.settings import CaptureConfig
from capture.config.workers import count_workers
from capture.errors import CaptureError, ConfigError
from capture.ingest.durable import is_sequence
from capture.ingest.source import stream_info
from capture.node.moved_store import check_not_moved
from capture.node.supervisor import Supervisor
from capture.node.worker_reports import VARIABLE
from capture.reading.remaining import ArchivePosition, Remaining
from capture.reading.stream_times import find_first_since, read_present
from capture.stores import open_store
from natty import Natty, NattyError
from natty.cli import connect
from natty.cli.run import run_async
from natty.cli.terminal import say
from natty.config.units import parse_time, write_count
from natty.wire.background import cancel_all

if TYPE_CHECKING:  # it imports pyarrow, which takes longer than the completion of a word may take
    from capture.node.direct_source import Reach

LOOK = 2.0  # seconds between two looks at the progress
LINE = 10.0  # seconds between two lines of it, if standard error is not a terminal


@connect.options
def backfill(
    invoked: typer.Context,
    *,
    nats: dict[str, Any],
    stream: Annotated[
        str | None,
        typer.Argument(metavar="[STREAM]", help="Stream to read.", autocompletion=completion.streams),
    ] = None,
    config: settings.Config = None,
    store: settings.Store = None,
    begin: Annotated[
        str, typer.Option("--from", metavar="SEQUENCE|TIME", help="First message to read; a time is RFC 3339.")
    ] = "1",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="SEQUENCE|TIME", help="Last message to read; default: the stream's last one now."),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Processes that share the work; auto: one for each CPU core.")
    ] = None,
) -> None:
    """Store the messages of an existing stream that its archive does not hold, by direct gets, and exit.

    Run it again after an interruption: it reads only what is still missing. Exits with 1 if messages are missing.
    """
    flags = {"stream": stream, "store": store, "workers": workers, **log_flags(invoked)}

    def load() -> CaptureConfig:
        found = settings.archive(config, flags, nats)
        if found.filter_subjects or found.group:
            raise ConfigError(
                "a backfill reads every subject of the stream: it can't be used with filter_subjects or a group"
            )
        host = found.node or socket.gethostname().partition(".")[0]
        return msgspec.structs.replace(found, node=f"{host}-backfill", pipeline=[])

    if VARIABLE in os.environ:  # its supervisor has named sequences
        from capture.node.direct_source import Reach
        from capture.node.node import Node

        reach = Reach(int(begin), int(end or 0), ends=True)
        run_worker(load, lambda wanted, again, _: Node(wanted, load=again, reach=reach))
        return
    wanted = load()
    configure_log(wanted.logging)
    run_async(_backfill(wanted, begin, end, load))


async def _backfill(config: CaptureConfig, begin: str, end: str | None, load: Callable[[], CaptureConfig]) -> None:
    began = time.monotonic()
    async with Natty(**config.nats) as natty:
        reach = await _prepare(natty, config, begin, end)
        position = ArchivePosition(natty, config, open_store(config.store))
        before = await position.read(reach.first, reach.last)
        if before.unread:
            command = [*list_own_command(), f"--from={reach.first}", f"--to={reach.last}"]
            supervisor = Supervisor(
                config, count_workers(config), command, load=load, on_reload=lambda _: None, ends=True
            )
            with show_progress("messages", TimeRemainingColumn()) as on_progress:
                telling = asyncio.create_task(_tell(position, reach, len(before.unread), on_progress))
                try:
                    await supervisor.run()
                finally:
                    await cancel_all([telling])
        after = await position.read(reach.first, reach.last)
    _conclude(config, reach, before, after, time.monotonic() - began)


async def _prepare(natty: Natty, config: CaptureConfig, begin: str, end: str | None) -> Reach:
    """Claim the archive, and return the range to read. ConfigError if the stream can't be read, or nothing is in it."""
    from capture.node.direct_source import Reach, check_direct

    store, stream = open_store(config.store), config.stream
    info = await stream_info(natty, stream)
    check_direct(natty, info)
    await check_not_moved(natty, store, config)
    ending = last = int(info["state"]["last_seq"])
    first = await _find(natty, stream, "--from", begin) or last + 1
    if end is not None:
        after = await _find(natty, stream, "--to", end)
        last = min(last, last if after is None else after - (not is_sequence(end)))
    if first > last:
        raise ConfigError(f"stream {stream} has no message from {begin} to {end or 'its end'}: it ends at {ending:,}")
    await claim(store, config.name, stream, info["created"], config.signer())
    return Reach(first, last, ends=True)


async def _find(natty: Natty, stream: str, option: str, text: str) -> int | None:
    """Return a sequence, or the first one that was stored at a time or later; None if none was."""
    if is_sequence(text):
        return int(text)
    try:
        since = parse_time(text) / 1e9
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} must be a sequence from 1 on, or a time with its zone as 2026-11-21T06:00:00Z, not {text[:40]!r}"
        ) from None
    present, _ = await read_present(natty, stream)
    return await find_first_since(natty, stream, present, since)


async def _tell(position: ArchivePosition, reach: Reach, total: int, on_progress: Callable[[int, int], None]) -> None:
    """Show the progress again and again: as a bar, or as lines if standard error is not a terminal."""
    began = said = time.monotonic()
    while True:
        try:
            left = len((await position.read(reach.first, reach.last)).unread)
        except (CaptureError, NattyError):  # the workers report what they can't reach
            await asyncio.sleep(LOOK)
            continue
        done, now = total - left, time.monotonic()
        on_progress(done, total)
        if not sys.stderr.isatty() and now - said >= LINE:
            said, rate = now, done / (now - began)
            print(f"{done:,} of {total:,} messages are stored, {rate:,.0f} a second", file=sys.stderr, flush=True)
        await asyncio.sleep(LOOK)


def _conclude(config: CaptureConfig, reach: Reach, before: Remaining, after: Remaining, seconds: float) -> None:
    """Say what was done. CaptureError if something is left to do."""
    where = f"of stream {config.stream} ({reach.first:,}–{reach.last:,})"
    if after.unread:
        raise CaptureError(
            f"{write_count(len(after.unread), 'message')} {where} are not stored yet ({after.unread.describe()}): run"
            " the command again, it reads only these"
        )
    stored = len(before.unread & after.stored)
    gone = len(before.unread - after.stored)
    known = len(before.stored & before.present)
    text = f"stored {write_count(stored, 'message')} {where} in {seconds:.0f} s; {known:,} were stored before"
    if gone:
        text += f"; {gone:,} left the stream before they were read: they were deleted or expired"
    say(text)
