"""`capture status`: shows what an archive's nodes publish, and what is wrong."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from capture.archive.iceberg_state import CatalogState, FreshState, TableState
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import ArchiveState, Heard, StreamState
from capture.ingest.board_trouble import Trouble
from capture.node.status.pipelines import PipelinesLook, PipelinesStatus
from capture.node.status.status import NO_CANDIDATE, Status, look
from capture.reading.inventory import take_partial_inventory
from capture.stores import open_store
from natty import Natty, NattyError
from natty.cli import connect
from natty.cli.run import run_async
from natty.cli.tables import Pairs, PlainConsole, Rows, print_document
from natty.cli.terminal import printable
from natty.config.units import write_count, write_time

EXIT_TROUBLE = 3
WATCH_EVERY = 1.0  # seconds
READ_WITHIN = 5.0  # seconds that a store may take
READ_EVERY = 30.0  # seconds between two looks at the store while watching


@connect.options
def status(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the status whenever it changes, until stopped.")
    ] = False,
    as_json: settings.Json = False,
) -> None:
    """Show archive status: leaders, stored and missing messages, pipelines. Exits with 3 if anything is wrong."""
    wanted, whole = settings.archive_beside_pipelines(config, {"stream": stream}, nats)
    pipelines = PipelinesLook(whole)
    if watch:
        run_async(_watch(wanted, pipelines, as_json=as_json))
    found = run_async(_once(wanted, pipelines))
    if as_json:
        print_document(_data(found))
    else:
        PlainConsole().print(overview(found, whole=True), crop=False)
    if found.archive.troubles or found.pipeline_troubles:
        raise typer.Exit(EXIT_TROUBLE)


@dataclass(frozen=True)
class NewBlocks:
    """The number of blocks that the next sweep of a node adopts (None: not known).

    `problem` says why it is not known, or which entry can't be read.
    """

    blocks: int | None
    problem: str = ""


@dataclass(frozen=True)
class Found:
    """The status of an archive, of the pipelines if there are any, and the new blocks if no node reports them."""

    archive: Status
    pipelines: PipelinesStatus | None
    new: NewBlocks | None = None

    @property
    def pipeline_troubles(self) -> list[Trouble]:
        """A sentence for each problem of the pipelines that the archive's do not name."""
        return self.pipelines.list_troubles(self.archive.troubles) if self.pipelines else []


async def _once(config: CaptureConfig, pipelines: PipelinesLook) -> Found:
    async with Natty(**config.nats) as natty:
        return await _look(natty, config, pipelines, StoreLook(config))


async def _look(natty: Natty, config: CaptureConfig, pipelines: PipelinesLook, store: StoreLook) -> Found:
    [archive], beside = await asyncio.gather(look(natty, [config]), pipelines.read(natty))
    return Found(archive, beside, await store.count_new_blocks(archive))


class StoreLook:
    """Counts the blocks that were stored after the last sweep, while no node runs that would adopt them.

    It reads the store at most every READ_EVERY seconds, and returns the same result in between.
    """

    def __init__(self, config: CaptureConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._found: NewBlocks | None = None
        self._due = 0.0

    async def count_new_blocks(self, status: Status) -> NewBlocks | None:
        """Return the new blocks; None if a node runs, if the archive was never swept, or without a store."""
        if status.board.state is None or status.board.is_attended or not self._config.store:
            return None
        if self._found is None or self._clock() >= self._due:
            self._found = await _read_new_blocks(self._config)
            self._due = self._clock() + READ_EVERY
        return self._found


async def _read_new_blocks(config: CaptureConfig) -> NewBlocks:
    try:
        async with asyncio.timeout(READ_WITHIN):
            _, inventory, unreadable = await take_partial_inventory(open_store(config.store), trust=config.trust())
            blocks = sum([len(part) async for part in inventory.scan_waiting()])
    except TimeoutError:
        return NewBlocks(None, f"the store could not be read within {READ_WITHIN:g} s")
    except CaptureError as error:
        return NewBlocks(None, str(error))
    return NewBlocks(blocks, f"an entry can't be read: {unreadable[0]}" if unreadable else "")


async def _watch(config: CaptureConfig, pipelines: PipelinesLook, *, as_json: bool) -> None:
    """Show the status until interrupted: in place on a terminal, otherwise whenever it has changed."""
    store = StoreLook(config)

    async def look_on(show: Callable[[Found], None]) -> NoReturn:
        """Show the status every second. If the server does not answer, print that and continue."""
        while True:
            try:
                show(await _look(natty, config, pipelines, store))
            except NattyError as error:
                typer.echo(f"capture: the server does not answer: {error}", err=True)
            await asyncio.sleep(WATCH_EVERY)

    async with Natty(**config.nats) as natty:
        if as_json:
            await look_on(_changes(lambda found: print(json.dumps(_data(found)), flush=True)))
        elif not sys.stdout.isatty():
            await look_on(_changes(lambda found: PlainConsole().print(overview(found, whole=True), crop=False)))
        with Live(console=PlainConsole(live=True), auto_refresh=False) as live:
            await look_on(lambda found: live.update(overview(found), refresh=True))


def _changes(show: Callable[[Found], None]) -> Callable[[Found], None]:
    """Return a function that calls `show` if anything besides ages has changed."""
    shown: list[Any] = []

    def show_changed(found: Found) -> None:
        one, beside = found.archive, found.pipelines
        now: list[Any] = [one.board.state, [heard.node for heard in one.board.nodes], one.sweeper, one.compactor]
        now += [bool(one.troubles), found.new, beside and (beside.leader, beside.pipelines, beside.unreadable)]
        if now != shown:
            shown[:] = now
            show(found)

    return show_changed


def _data(found: Found) -> Any:
    data = found.archive.as_dict() | ({"new": asdict(found.new)} if found.new else {})
    if found.pipelines is None:
        return data
    troubles = [*data["troubles"], *msgspec.to_builtins(found.pipeline_troubles)]
    return data | {"ok": not troubles, "troubles": troubles, "pipelines": found.pipelines.as_dict()}


# --- for people ------------------------------------------------------------------------------------------------------


def overview(found: Found, *, whole: bool = False) -> RenderableType:
    """Return the state of an archive, and of the pipelines, as text and tables, with the problems at the end.

    With `whole` the archive's name is one word that can be copied, also on a terminal that is narrower.
    """
    return page(found.archive, found.pipelines, found.new, whole=whole)


def page(
    status: Status, pipelines: PipelinesStatus | None = None, new: NewBlocks | None = None, *, whole: bool = False
) -> RenderableType:
    """Return an archive's state as text and tables, with the problems at the end."""
    name = Text(printable(f"archive {status.archive}"), style="bold", overflow="ignore" if whole else "fold")
    name.no_wrap = whole
    parts: list[RenderableType] = [name]
    if status.board.state is not None:
        parts.append(_archive(status, status.board.state, new))
        parts += ["", _streams(status, status.board.state.streams)]
    parts += ["", _nodes(status.board.nodes)]
    parts += ["", *_show_pipelines(pipelines)] if pipelines else []
    troubles = [*status.troubles, *(pipelines.list_troubles(status.troubles) if pipelines else ())]
    parts += [Text(printable(f"• {trouble.text}"), style="red") for trouble in troubles]
    parts.append(Text("something is wrong" if troubles else "all is well", style="red" if troubles else "green"))
    return Group(*parts)


def _archive(status: Status, state: ArchiveState, new: NewBlocks | None) -> Pairs:
    pairs: list[tuple[str, str]] = []
    leads = f"{status.sweeper or 'none'}, since {write_time(state.since)}, token {state.token}"
    if status.sweeper != state.leader:
        leads = f"{status.sweeper or 'none'}; {state.leader} led the last sweep"
    pairs.append(("leader of the sweep", leads))
    nobody = f"none: {NO_CANDIDATE}" if status.lacks_candidate else "none"
    pairs.append(("leader of the compaction", status.compactor or nobody))
    swept = f"{_age(status.board.ago)} ago, took {state.seconds:.1f} s, adopted {write_count(state.adopted, 'block')}"
    pairs.append(("last sweep", swept))
    blocks = f"{write_count(state.blocks, 'block')}, {write_count(state.messages, 'message')}, {_size(state.bytes)}"
    failed = write_count(state.unadopted, "block")
    unadopted = f"; the last sweep could not adopt {failed}" if state.unadopted else ""
    pairs.append((f"manifest {state.manifest}", f"{blocks} not compacted yet{unadopted}"))
    if new:
        pairs.append(("new", _describe_new(new)))
    compacted = ""
    if state.compacted is not None:
        compacted = f"; compacted {_age(time.time() - state.compacted)} ago"
        compacted += f", last commit by {state.compactor}" if state.compactor else ""
    files = f"{write_count(state.files, 'file')}, {write_count(state.rows, 'message')}, {_size(state.table_bytes)}"
    pairs.append((f"table {state.table}", files + compacted))
    for one in state.tables:
        known = f"{write_count(one.snapshots, 'snapshot')}, the current one is {one.current} of {write_time(one.made)}"
        pairs.append((f"Iceberg {one.stream}", f"{known}; {_describe_expiry(one)}"))
    if status.fresh:
        pairs.append(("fresh table", _describe_fresh(status.fresh)))
    for entry in status.catalogs:
        pairs.append((f"catalog {entry.stream}", f"{entry.entry}: {_describe_entry(entry)}"))
    if healed := sum(one.healed for one in state.streams):
        pairs.append(("healed", f"{write_count(healed, 'message')} that no node had stored, by {state.leader}"))
    for sentence in filter(None, (stream.describe_gone() for stream in state.streams)):
        pairs.append(("gone", sentence))
    if state.removed_objects:
        pairs.append(
            ("retention", f"removed {write_count(state.removed_objects, 'object')}, {_size(state.removed_bytes)}")
        )
    return Pairs(pairs)


def _describe_new(new: NewBlocks) -> str:
    if new.blocks is None:
        return f"not known: {new.problem}"
    adopted = f"{write_count(new.blocks, 'block')} that the next sweep of a node adopts"
    return f"{adopted}; {new.problem}" if new.problem else adopted


def _streams(status: Status, streams: list[StreamState]) -> Rows:
    numbers = ("last", "acked", "pending", "unacked", "lag", "held", "overlaps", "removed", "gaps", "missing")
    rows = []
    for one in streams:
        position = [f"{n:,}" for n in (one.last, one.acked, one.pending, one.unacked)]
        position.append("" if one.lag is None else _age(one.lag))
        gaps, missing = f"{one.gaps:,}", "?" if one.missing is None else f"{one.missing:,}"
        if not status.knows(one):
            position = ["?"] * len(position)
        if status.board.is_late:
            gaps = missing = "?"
        held = (f"{n:,}" for n in (one.held, one.overlaps, one.removed))
        rows.append((one.stream, *position, *held, gaps, missing))
    return Rows(("stream", *(f">{name}" for name in numbers)), rows)


def _nodes(nodes: list[Heard]) -> Rows:
    columns = ("node", "version", "since", ">messages", ">blocks", ">size", ">pending", ">oldest", ">heard")
    rows = []
    for one in nodes:
        node, stored = one.node, one.node.stored
        rows.append(
            (
                node.node,
                node.version,
                write_time(node.since),
                f"{stored.get('messages', 0):,}",
                f"{stored.get('blocks', 0):,}",
                _size(stored.get("bytes", 0)),
                f"{node.pending:,}",
                "" if node.oldest is None else _age(node.oldest),
                f"{_age(one.ago)} ago",
            )
        )
    return Rows(columns, rows)


def _show_pipelines(status: PipelinesStatus) -> Iterator[RenderableType]:
    yield Text(printable(f"pipelines, led by {status.leader or 'no node'}"))
    columns = ("pipeline", "state", ">behind", ">lag", "last run", ">took", ">in", ">out", ">rows", ">size")
    rows = []
    for one in status.pipelines:
        last = one.last
        ended = f"{_age(time.time() - last.ended)} ago" if last else ""
        took = [_age(last.seconds), f"{last.rows_in:,}", f"{last.rows_out:,}"] if last else [""] * 3
        size = "?" if one.bytes is None else _size(one.bytes)
        lag = _age(time.time() - one.waiting_since) if one.waiting_since else ""
        rows.append((one.name, one.state, _count(one.behind), lag, ended, *took, _count(one.rows), size))
    yield Rows(columns, rows)


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _describe_fresh(fresh: FreshState) -> str:
    last = (
        "no commit by this leader yet" if fresh.committed is None else f"last commit at {write_time(fresh.committed)}"
    )
    shown = f"{write_count(fresh.shown, 'block')} with {write_count(fresh.messages, 'message')}"
    text = f"{shown} shown beside the files, {last}"
    if fresh.waiting:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in fresh.waiting.items())
        text += f"; {write_count(sum(fresh.waiting.values()), 'block')} only after the merge: {reasons}"
    return text


def _describe_entry(entry: CatalogState) -> str:
    """Return what an entry in the user's catalog shows; the node's problem says why it is not the current table."""
    shown = (
        f"table {entry.number}, since {write_time(entry.since)}" if entry.since else "no table that this node has set"
    )
    return f"shows {shown}; not current, see below" if entry.trouble else f"current, shows {shown}"


def _describe_expiry(table: TableState) -> str:
    """Return a sentence for when the next snapshot expires. A due one is removed at the compaction's next check."""
    if table.expires is None:
        return "none expires"
    left = table.expires - time.time()
    return f"the next expires in {_age(left)}" if left > 0 else "the next has expired"


def _age(seconds: float) -> str:
    """Return seconds in readable form: "0.4 s", "12 s", "3 min", "5 h", "2 d"."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _size(count: int) -> str:
    """Return bytes in readable form: "512 B", "1.2 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
