"""`capture upgrade`: brings an archive of an earlier format into this version's, or shows what that would do."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from capture.archive.heads import COMPACTION, SWEEP, TermHead, newest_readers
from capture.archive.identity import require_archive, require_named
from capture.archive.manifest import Manifest
from capture.archive.table import Table
from capture.cli import settings
from capture.cli.archive import Offline, Wait, connect_claimed, run_elected
from capture.config.load import NEEDED
from capture.config.settings import CaptureConfig
from capture.maintenance.upgrade import Upgrade, preview, upgrade_manifest, upgrade_table
from capture.stores import open_store
from natty import Natty, Term
from natty.cli import connect
from natty.cli.ask import confirm
from natty.cli.run import run_async
from natty.cli.tables import print_document, print_table
from natty.cli.terminal import say

FORMAT = Manifest.FORMAT
MEANING = (
    "A node of this version upgrades when it leads; `capture upgrade` does it now.",
    "Blocks and table files stay as they are.",
    f"Earlier versions of capture can't read format {FORMAT}, and there is no way back:",
    "upgrade all nodes and readers first.",
)


@connect.options
def upgrade(
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    wait: Wait = "10s",  # type: ignore[assignment] # typer parses defaults, too
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
    offline: Offline = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")] = False,
    as_json: settings.Json = False,
) -> None:
    """Bring the archive into this version's format now, as the elected leader. Running nodes do this automatically.

    Asks before it writes, since earlier versions can't read the archive afterwards.
    """
    if offline and not dry_run:
        raise typer.BadParameter("--offline is for --dry-run: an upgrade is committed in NATS")
    wanted = settings.archive(config, {"stream": stream, "store": store}, nats, needs=("store",) if offline else NEEDED)
    found = run_async(_preview(wanted, offline))
    due = [one for one in found if one.format < FORMAT]
    if not as_json:
        _show(found, due)
    if due and not dry_run:
        confirm(f"Upgrade archive {wanted.name} to format {FORMAT}, permanently?", force=force)
        run_async(_upgrade(wanted, wait))
        found = run_async(_preview(wanted, offline))
    if as_json:
        print_document({"format": FORMAT, "documents": [asdict(one) for one in found]})
    elif due and not dry_run:
        say(f"upgraded: {' and '.join(one.path for one in found)} have format {FORMAT}")


def _show(found: list[Upgrade], due: list[Upgrade]) -> None:
    """Print the documents, and what the upgrade means."""
    rows = [
        (
            one.path,
            one.format,
            *("-" if n is None else f"{n:,}" for n in (one.objects, one.bytes, one.new_bytes, one.pages)),
        )
        for one in found
    ]
    if rows:
        print_table(("document", ">format", ">objects", ">bytes", ">new bytes", ">pages"), rows)
    if due:
        say(*MEANING)
    else:
        say(f"the archive has format {FORMAT}: there is nothing to upgrade")


async def _preview(config: CaptureConfig, offline: bool) -> list[Upgrade]:
    store = open_store(config.store)
    await (require_archive(store) if offline else require_named(store, config.name, config.stream))
    async with contextlib.AsyncExitStack() as stack:
        natty = None if offline else await stack.enter_async_context(Natty(**config.nats))
        newest = newest_readers(natty, config.name, store)
        return await preview(store, newest[Manifest], newest[Table])


async def _upgrade(config: CaptureConfig, wait: float) -> None:
    """Be elected for the sweep, then for the compaction: each head has its own leader."""
    store = open_store(config.store)

    async with connect_claimed(config) as natty:

        async def manifest(term: Term) -> None:
            await upgrade_manifest(store, TermHead(term, SWEEP, config.signer()), now=time.time())

        async def table(term: Term) -> None:
            pointer = TermHead(term, COMPACTION, config.signer())
            await upgrade_table(store, pointer, SWEEP.reader(natty, config.name), now=time.time())

        about = "and is of an earlier version, or does this in a moment"
        await run_elected(natty, config, SWEEP, config.lease, wait, manifest, about=about)
        await run_elected(natty, config, COMPACTION, config.compaction.lease, wait, table, about=about)
