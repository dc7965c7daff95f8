"""`capture import` and `capture export`: convert backups of the `nats` tool to archives, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from capture.archive.identity import require_archive
from capture.cli import settings
from capture.stores import open_store
from capture.stores.own_store import shown
from natty.cli.run import run_async
from natty.cli.tables import print_document
from natty.cli.terminal import say
from natty.config.units import write_count

if TYPE_CHECKING:  # pyarrow takes longer to import than the completion of a word may take
    from capture.restoring.backup import Moved


def import_(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP_DIR", help="Folder that `nats stream backup` wrote.")],
    archive: Annotated[str | None, typer.Argument(metavar="ARCHIVE", help="Folder or URL; default: --store.")] = None,
    config: settings.Config = None,
    store: settings.Store = None,
    as_json: settings.Json = False,
) -> None:
    """Make an archive from a backup of the nats tool, made on a server of version 2.15 or later. Needs no server."""
    from capture.restoring.backup import import_backup

    wanted = settings.archive(config, {"store": archive or store}, {}, needs=("store",))
    moved = run_async(import_backup(backup, wanted, open_store(wanted.store)))
    _show(moved, f"imported into {shown(wanted.store)}", as_json)


def export(
    archive: Annotated[str, typer.Argument(metavar="ARCHIVE", help="Folder or URL.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the backup.")],
    config: settings.Config = None,
    stream: settings.Stream = None,
    as_json: settings.Json = False,
) -> None:
    """Write an archive's stream as a backup for `nats stream restore`, on a server of version 2.15 or later."""
    from capture.restoring.backup import export_backup
    from capture.restoring.past import only_stream

    wanted = settings.archive(config, {"stream": stream, "store": archive}, {}, needs=("store",))
    place = open_store(wanted.store)

    async def run() -> Moved:
        await require_archive(place)
        named = wanted.stream or await only_stream(place)
        return await export_backup(msgspec.structs.replace(wanted, stream=named), place, folder)

    _show(run_async(run()), f"exported to {folder}", as_json)


def _show(moved: Moved, what: str, as_json: bool) -> None:
    if as_json:
        print_document(vars(moved))
        return
    say(
        f"{moved.stream}: {write_count(moved.messages, 'message')} ({moved.first:,}–{moved.last:,}) and"
        f" {write_count(moved.consumers, 'consumer')} {what} in {moved.seconds:.1f} s"
    )
    for sentence in moved.not_kept:
        print(f"not converted: {sentence}")
