"""An archived stream as it was at a moment: its configuration, consumers and messages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from capture.archive.chain import Document, read
from capture.archive.heads import head_readers, newest_readers
from capture.archive.history import recordings_around
from capture.archive.identity import archive_name, list_claimed, require_archive
from capture.archive.index.contents import Indexes
from capture.archive.index.tree import Where
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import find_unadopted
from capture.archive.recording import Configuration, Recording, StreamRecord
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.archive.trust import read_trusted_documents
from capture.config.settings import CaptureConfig
from capture.errors import ManifestError, RestoreRefusedError
from capture.maintenance.sweep import read_entries
from capture.reading.inventory import Inventory
from capture.stores import Store
from capture.verification.audit import HeadReaders, audit
from natty import Natty

Kind = TypeVar("Kind", bound=Document)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a stream to restore: as it was at time `at_ns`, up to sequence `to_sequence`, from `start` on.

    `at_ns` is Unix nanoseconds; None is the latest known state. `start` is a sequence, `start_ns` a time in Unix
    nanoseconds; by default the part begins where the stream itself began then. `subjects` select messages; others are
    left out. `everything` selects all that the archive holds, including messages that were deleted or had expired by
    then.
    """

    at_ns: int | None = None
    to_sequence: int | None = None
    start: int | None = None
    start_ns: int | None = None
    subjects: tuple[str, ...] = ()
    everything: bool = False


@dataclass(frozen=True, kw_only=True)
class Past:
    """The state of a stream at a moment, as the archive knows it.

    `record` is the last one recorded by then, or None. `recorded` is its time (Unix seconds). `config` was in force.
    `objects` are those of the stream. `held` are all sequences that they hold, `removed` those that the archive's
    retention removed. If nothing is recorded by that moment, `later` is the earliest recording after it.
    `configured` is when `config` was first seen (Unix seconds; 0: not known).
    """

    stream: str
    archive: str
    config: dict[str, Any]
    record: StreamRecord | None
    recorded: float
    objects: Inventory
    held: Sequences
    removed: Sequences
    later: Recording | None = None
    configured: float = 0.0


# --- decisions: pure -------------------------------------------------------------------------------------------------


def in_force(configurations: list[Configuration], at_ns: int | None) -> Configuration:
    """Return the configuration in force at a time (Unix ns; None: the last). The first also counts before its time."""
    before = [one for one in configurations if at_ns is None or one.since * 1e9 <= at_ns]
    return before[-1] if before else configurations[0]


def bounds(past: Past, window: Window) -> tuple[int, int]:
    """Return the first and last sequence of the stream then, whether there are messages at them or not.

    For the latest state, the last sequence is that of the recording, or of messages stored after it.
    """
    state = past.record.state if past.record else {}
    first = state.get("first_seq", 0) or (past.held.first if past.held else 1)
    last = max(state.get("last_seq", 0), past.held.last if past.held and window.at_ns is None else 0)
    if window.start is not None or window.start_ns is not None or window.everything:
        first = window.start or 1
    return first, last if window.to_sequence is None else min(last, window.to_sequence)


def list_held_then(past: Past, window: Window) -> Sequences:
    """Return the sequences of the stream then that the archive holds, as far as sequences alone determine it.

    Messages that were deleted by then are left out.
    """
    if not past.held:
        return Sequences()
    first, last = bounds(past, window)
    upto = past.held.last if window.at_ns is not None and window.to_sequence is None else min(last, past.held.last)
    there = past.held.within(first, upto)
    if window.everything or past.record is None:
        return there
    return there - Sequences.from_text(past.record.deleted)


# --- read from the archive --------------------------------------------------------------------------------------------


async def only_stream(store: Store) -> str:
    """Return the name of the archive's stream. NoArchiveError; RestoreRefusedError if it has none, or several."""
    await require_archive(store)
    names = sorted(one.stream for one in await list_claimed(store))
    if not names:
        raise RestoreRefusedError(f"the archive in {store.url} names no stream in _streams/: see `capture verify`")
    if len(names) > 1:
        raise RestoreRefusedError(f"the archive {store.url} holds {len(names)} streams, {', '.join(names)}: name one")
    return names[0]


async def read_past(natty: Natty | None, config: CaptureConfig, store: Store, window: Window) -> Past:
    """Return the state of `config.stream` at the window's moment.

    Without `natty`, and where NATS has no heads of the archive (its disk was lost), it trusts the newest documents in
    the store. It checks signatures if the configuration names public keys. RestoreRefusedError if something was
    tampered with or is missing, or if nothing was recorded of the stream; ManifestError, also for a newer format;
    NoArchiveError.
    """
    await require_archive(store)
    archive = config.archive or await archive_name(store) or config.name
    heads = head_readers(natty, archive) if natty else {}
    newest_heads = newest_readers(natty, archive, store)
    audited = await audit(store, heads, archive=archive, keys=config.public_keys())
    entries, unreadable = await read_entries(store)
    if problems := (*audited.problems, *unreadable):
        more = f", and {len(problems) - 1:,} more problems" if len(problems) > 1 else ""
        raise RestoreRefusedError(f"{problems[0]}{more}: see `capture verify`")
    objects = await _take_inventory(config, store, newest_heads, archive, entries)
    newest = await read(store, await newest_heads[Recording](), Recording)
    if config.stream not in newest.streams or not newest.streams[config.stream].configurations:
        raise RestoreRefusedError(
            f"nothing is recorded of a stream {config.stream} in {store.url}: its configuration is not known. The"
            f" recorded ones: {', '.join(newest.streams) or 'none'}"
        )
    at = math.inf if window.at_ns is None else window.at_ns / 1e9
    then, later = await recordings_around(store, newest, at)
    configuration = in_force(newest.streams[config.stream].configurations, window.at_ns)
    return Past(
        stream=config.stream,
        archive=archive,
        config=configuration.config,
        configured=configuration.since,
        record=then.streams.get(config.stream) if then else None,
        recorded=then.created if then else 0.0,
        objects=objects,
        held=await objects.find_held(config.stream),
        removed=objects.removed.get(config.stream, Sequences()),
        later=later,
    )


async def _take_inventory(
    config: CaptureConfig, store: Store, heads: HeadReaders, archive: str, entries: Iterable[Stored]
) -> Inventory:
    """Return the objects of the stream, adopted, in the table, or in these entries, which were read before."""

    async def renew() -> Inventory:
        entries, unreadable = await read_entries(store)
        if unreadable:
            raise ManifestError(unreadable[0])
        return await _take_inventory(config, store, heads, archive, entries)

    trust, where = config.trust(archive), Where(stream=config.stream)
    picture = await read_trusted_documents(store, heads[Manifest], heads[Table], trust, where)
    waiting = await find_unadopted(Indexes(store), picture, entries)
    return Inventory(store, picture, waiting, trust=trust, renew=renew)
