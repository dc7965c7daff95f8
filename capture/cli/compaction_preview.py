"""`capture compact --dry-run`: shows what a compaction would merge now, and into how many files."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from capture.archive.heads import newest_readers
from capture.archive.identity import require_named
from capture.archive.manifest import Manifest
from capture.archive.picture import read_picture
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.maintenance.compaction_plan import plan
from capture.maintenance.engine import FileGroup
from capture.node.leader_rules import policy, retention
from capture.stores import open_store
from natty import Natty
from natty.cli.tables import print_document, print_table
from natty.cli.terminal import say
from natty.config.units import write_count


async def list_due_groups(config: CaptureConfig) -> dict[str, Any]:
    """Return the `groups` that are due now, oldest first, and how many blocks wait (`waiting_files`, `…_bytes`)."""
    store, now = open_store(config.store), time.time()
    await require_named(store, config.name, config.stream)
    async with Natty(**config.nats) as natty:
        newest = newest_readers(natty, config.name, store)
        picture = await read_picture(store, newest[Manifest], newest[Table])
    expired = {one.object.path for one in retention(config).find_expired([*picture.blocks, *picture.files], now)}
    groups = plan(picture, policy(config), now=now, token=0, leave=expired)
    taken = {one.path for group in groups for one in group.inputs}
    waiting = [one for one in picture.blocks if one.path not in taken]
    return {
        "groups": [_describe(group, now) for group in groups],
        "waiting_files": len(waiting),
        "waiting_bytes": sum(one.bytes for one in waiting),
    }


def _describe(group: FileGroup, now: float) -> dict[str, Any]:
    oldest = min(one.stored_ns for one in group.inputs) / 1e9
    return {
        "stream": group.stream,
        "key": group.key,
        "interval": datetime.fromtimestamp(group.interval, UTC).isoformat(),
        "files": len(group.inputs),
        "bytes": group.bytes,
        "rows": group.rows,
        "messages": len(group.wanted),
        "formats": sorted({one.format for one in group.inputs}),
        "outputs": len(group.parts),
        "waited": round(max(0.0, now - oldest), 1),
    }


def show_due_groups(found: dict[str, Any], as_json: bool) -> None:
    """Print the groups."""
    if as_json:
        print_document(found)
        return
    rows = []
    for one in found["groups"]:
        counts = (f"{one[name]:,}" for name in ("files", "bytes", "messages"))
        ends = ", ".join(one["formats"]), one["outputs"], f"{one['waited']:,.0f} s"
        rows.append((one["stream"], one["key"], one["interval"], *counts, *ends))
    columns = ("stream", "key", "interval", ">files", ">bytes", ">messages", "formats", ">into", ">waited")
    if rows:
        print_table(columns, rows)
    files = sum(one["files"] for one in found["groups"])
    due = f"due: {write_count(len(rows), 'group')} of {write_count(files, 'file')}"
    say(due if rows else "nothing is due")
    blocks, size = write_count(found["waiting_files"], "block"), write_count(found["waiting_bytes"], "byte")
    say(f"not due yet: {blocks} with {size}")
