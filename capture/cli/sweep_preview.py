"""`capture sweep --dry-run`: shows which objects of an archive would be removed, and why."""

from __future__ import annotations

import time
from typing import Any

from capture.archive.chain import document_parts
from capture.archive.heads import newest_readers
from capture.archive.identity import require_named
from capture.archive.manifest import Manifest
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.ingest.layout import is_outside_blocks
from capture.maintenance.sweep import preview
from capture.node.leader_rules import retention
from capture.stores import open_store
from natty import Natty
from natty.cli.tables import print_document, print_table
from natty.cli.terminal import say
from natty.config.units import write_count


async def list_removable(config: CaptureConfig) -> list[dict[str, Any]]:
    """Return the objects that a sweep and a compaction would remove now: path, reason, and size if it is known."""
    store = open_store(config.store)
    await require_named(store, config.name, config.stream)
    async with Natty(**config.nats) as natty:
        newest = newest_readers(natty, config.name, store)
        seen = await preview(
            store,
            newest[Manifest],
            newest[Table],
            now=time.time(),
            grace=config.sweep.grace,
            retention=retention(config),
            outside=is_outside_blocks(config.layout),
        )
    expired = [
        {"path": one.object.path, "why": one.reason, "messages": one.object.count, "bytes": one.object.bytes}
        for one in (*seen.plan.expired, *seen.files)
    ]
    return expired + [{"path": path, "why": _why(path, path in seen.let_go)} for path in seen.plan.remove_objects]


def _why(path: str, was_let_go: bool) -> str:
    if document_parts(Manifest, path):
        return "an old manifest"
    return "removed from the manifest before" if was_let_go else "a leftover of a writer that died"


def show_removable(found: list[dict[str, Any]], as_json: bool) -> None:
    """Print the objects."""
    if as_json:
        print_document(found)
        return
    rows = []
    for one in found:
        counts = (f"{one[name]:,}" if name in one else "" for name in ("messages", "bytes"))
        rows.append((one["path"], one["why"], *counts))
    if rows:
        print_table(("path", "why", ">messages", ">bytes"), rows)
    removed = [one for one in found if "messages" in one]
    size, messages = sum(one["bytes"] for one in removed), sum(one["messages"] for one in removed)
    held = f"{write_count(messages, 'message')}, {write_count(size, 'byte')}"
    say(f"retention would remove {write_count(len(removed), 'object')} with {held}")
    say(f"the sweep would delete {write_count(len(found) - len(removed), 'object')} that nothing needs any more")
