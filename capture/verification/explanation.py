"""Why an acknowledged message may not be in the archive yet, according to the published state of the sweep."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from capture.archive.heads import newest_readers
from capture.archive.index.contents import Indexes
from capture.archive.index.tree import Where
from capture.archive.manifest import Manifest
from capture.archive.picture import find_held, find_unadopted, read_documents
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError
from capture.ingest.board import ALLOWANCE, LATE, Board, StreamState
from capture.maintenance.sweep import read_entries
from capture.stores import Store
from natty import Natty, NattyError
from natty.wire.servers import NEEDS, Version, text_of

LOOK = 0.2  # seconds between two reads of the published state


@dataclass(frozen=True)
class Explained:
    """Messages that seemed to be missing: nodes may still store the `awaited` ones; the `stored` ones are stored now.

    `leader`: since then a leader has swept, which stores messages that no node has stored.
    """

    awaited: Sequences = field(default_factory=Sequences)
    stored: Sequences = field(default_factory=Sequences)
    leader: bool = False

    def advise(self, version: Version) -> str:
        """Return a sentence that says what stores the missing messages, or what to do first if nothing can."""
        need = NEEDS["leader election"]
        if self.leader:
            return "the sweep stores what is missing and still in the stream: capture status says why it has not yet"
        if not need.is_met_by(version):
            return (
                f"no node can sweep this archive with nats-server {text_of(version)}: upgrade it to"
                f" {need.text_for(version)} or later, then the sweep stores missing messages that the stream still has;"
                " or start a node with another durable, which receives the whole stream again"
            )
        return "no node sweeps this archive: start one, it stores missing messages that the stream still has"


async def explain(natty: Natty, store: Store, config: CaptureConfig, missing: Sequences, since: float) -> Explained:
    """Return what a sweep reports about these messages that began after `since` (Unix seconds of the server's clock).

    Waits for that sweep while a node runs and none is late. StoreError, ManifestError.
    """
    try:
        found = await _wait_for_sweep(natty, config, since)
    except (NattyError, CaptureError):
        found = None
    if found is None:
        return Explained()
    entries, _ = await read_entries(store)
    readers = newest_readers(natty, config.name, store)
    heads = readers[Manifest], readers[Table]
    picture = await read_documents(store, *heads, where=Where(stream=config.stream))
    indexes = Indexes(store)
    waiting = await find_unadopted(indexes, picture, entries)
    held = await find_held(indexes, picture, config.stream)
    stored = missing & Sequences.union_of([held, *(Sequences.from_bytes(one.sequences) for one in waiting)])
    return Explained(_select_awaited(found, missing) - stored, stored, leader=True)


async def _wait_for_sweep(natty: Natty, config: CaptureConfig, since: float) -> StreamState | None:
    """Return the stream's state as published by a sweep that began after `since`; None if none does so in time."""
    board, published, now = Board(natty, config.name), set[float](), asyncio.get_running_loop().time
    deadline = now() + LATE * config.sweep.every + ALLOWANCE
    while now() < deadline:
        found = await board.read()
        if (found.state and found.is_late) or not any(not one.is_late for one in found.nodes):
            return None
        if found.state:
            published.add(found.state.swept)
            if found.state.swept > since or len(published) > 2:  # clocks differ: the third began after `since`
                return next((one for one in found.state.streams if one.stream == config.stream), None)
        await asyncio.sleep(LOOK)
    return None


def _select_awaited(state: StreamState, missing: Sequences) -> Sequences:
    """Return which of these are awaited; all of them if the awaited set was too large to be published."""
    if state.awaited and not state.awaited_set:
        return missing
    return missing & Sequences.from_text(state.awaited_set)
