"""An archived stream as it was at a moment: its configuration, consumers and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from capture.archive.chain import Document, Head, latest_offline, read
from capture.archive.heads import head_readers
from capture.archive.history import recording_at
from capture.archive.identity import archive_name, list_claimed, require_archive
from capture.archive.index.tree import Where
from capture.archive.manifest import TABLE, Manifest, Stored, is_outside, list_blocks
from capture.archive.recording import Configuration, Recording, StreamRecord
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.archive.trust import read_trusted
from capture.config.settings import CaptureConfig
from capture.errors import RestoreRefusedError
from capture.maintenance.sweep import read_entries
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
    `held` are all sequences that `objects` hold, `removed` those that the archive's retention removed.
    """

    stream: str
    archive: str
    config: dict[str, Any]
    record: StreamRecord | None
    recorded: float
    objects: list[Stored]
    held: Sequences
    removed: Sequences


# --- decisions: pure -------------------------------------------------------------------------------------------------


def in_force(configurations: list[Configuration], at_ns: int | None) -> dict[str, Any]:
    """Return the configuration in force at a time (Unix ns; None: the last). The first also counts before its time."""
    before = [one for one in configurations if at_ns is None or one.since * 1e9 <= at_ns]
    return (before[-1] if before else configurations[0]).config


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
    audited = await audit(store, heads, archive=archive, keys=config.public_keys())
    entries, unreadable = await read_entries(store)
    if problems := (*audited.problems, *unreadable):
        more = f", and {len(problems) - 1:,} more problems" if len(problems) > 1 else ""
        raise RestoreRefusedError(f"{problems[0]}{more}: see `capture verify`")
    trust = config.trust(archive)
    picture = await read_trusted(
        store, _newest(store, heads, Manifest), _newest(store, heads, Table), trust, Where(stream=config.stream)
    )
    newest = await read(store, await _newest(store, heads, Recording)(), Recording)
    if config.stream not in newest.streams or not newest.streams[config.stream].configurations:
        raise RestoreRefusedError(
            f"nothing is recorded of a stream {config.stream} in {store.url}: its configuration is not known. The"
            f" recorded ones: {', '.join(newest.streams) or 'none'}"
        )
    then = newest if window.at_ns is None else await recording_at(store, newest, window.at_ns / 1e9)
    objects = [*picture.blocks, *picture.files, *picture.list_unadopted(entries)]
    trust.check_objects(objects)
    await _check_all_exist(store, objects)
    return Past(
        stream=config.stream,
        archive=archive,
        config=in_force(newest.streams[config.stream].configurations, window.at_ns),
        record=then.streams.get(config.stream) if then else None,
        recorded=then.created if then else 0.0,
        objects=objects,
        held=Sequences.union_of(Sequences.from_bytes(one.sequences) for one in objects),
        removed=picture.removed.get(config.stream, Sequences()),
    )


def _newest(store: Store, heads: HeadReaders, kind: type[Document]) -> Callable[[], Awaitable[Head | None]]:
    async def newest() -> Head | None:
        head = await heads[kind]() if kind in heads else None
        return head or await latest_offline(store, kind)

    return newest


async def _check_all_exist(store: Store, objects: list[Stored]) -> None:
    """RestoreRefusedError unless every object exists with its recorded size."""
    outside = any(is_outside(one.path) for one in objects)
    listed = await list_blocks(store, outside=outside) + await store.list(TABLE) if objects else []
    sizes = {one.path: one.bytes for one in listed}
    wrong = [
        f"{one.path} is missing" if one.path not in sizes else f"{one.path} has another size than its record says"
        for one in objects
        if sizes.get(one.path) != one.bytes
    ]
    if wrong:
        more = f", and {len(wrong) - 1:,} more such objects" if len(wrong) > 1 else ""
        raise RestoreRefusedError(f"{wrong[0]}{more}: see `capture verify`")
