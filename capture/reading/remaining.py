"""Which messages of a stream its archive does not hold yet: the position of a capture that has no consumer."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from capture.archive.heads import newest_readers
from capture.archive.identity import read_record
from capture.archive.index.contents import Indexes
from capture.archive.index.tree import Where
from capture.archive.manifest import Manifest
from capture.archive.picture import find_held, find_unadopted, read_documents
from capture.archive.scope import Asked, read_records, write_record
from capture.archive.sequences import MAXIMUM, Sequences
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.errors import ConfigError, NotStoredError
from capture.ingest.durable import ALL, NEW, delivery
from capture.ingest.source import stream_info
from capture.maintenance.sweep import find_existing, read_entries
from capture.reading.stream_times import Deletions, Extent, find_first_since, read_present
from capture.stores import Store
from natty import Natty
from natty.config.units import parse_time

READER = "direct gets"
"""Stands for the durable in the recorded scope. A consumer's name has no blank, so it is not one."""


@dataclass(frozen=True)
class Remaining:
    """The messages of a stream that its archive does not hold: `unread`; `last` is the stream's last sequence.

    `present` are those that the stream has, from the start of the scope on. `stored` are those that the archive holds,
    has in blocks that are not adopted yet, or has removed by its retention.
    """

    present: Sequences
    stored: Sequences
    last: int

    @property
    def unread(self) -> Sequences:
        """The sequences that are still to be read."""
        return self.present - self.stored

    @property
    def floor(self) -> int:
        """The sequence up to which nothing is to be read."""
        return self.unread.first - 1 if self.unread else self.last


class ArchivePosition:
    """Reads which messages of the configuration's stream the archive does not hold.

    It keeps pages of the index (in `indexes`, if others use them, too) and the stream's deleted sequences.
    """

    def __init__(self, natty: Natty, config: CaptureConfig, store: Store, indexes: Indexes | None = None) -> None:
        self._natty, self.config, self._store = natty, config, store
        self._indexes = indexes or Indexes(store)
        self._deletions = Deletions(natty)

    def __repr__(self) -> str:
        return f"ArchivePosition({self.config.stream} in {self._store.url})"

    async def read(self, first: int = 1, last: int = MAXIMUM) -> Remaining:
        """Return what remains of the sequences from `first` to `last`. NattyError; StoreError; ManifestError.

        It reads the stream, then the entries of blocks, then the documents. So a message whose entry was stored before
        this began is `stored`, also if its block is adopted meanwhile.
        """
        extent = Extent.of(self.config.stream, await stream_info(self._natty, self.config.stream))
        present, end = await self._deletions.present(extent)
        entries, _ = await read_entries(self._store)
        readers = newest_readers(self._natty, self.config.name, self._store)
        stream = self.config.stream
        picture = await read_documents(self._store, readers[Manifest], readers[Table], where=Where(stream=stream))
        waiting = await find_unadopted(self._indexes, picture, [one for one in entries if one.stream == stream])
        waiting = await find_existing(self._store, waiting)
        held = await find_held(self._indexes, picture, stream)
        sets = [held, picture.removed.get(stream, Sequences())]
        sets += [Sequences.from_bytes(one.sequences) for one in waiting]
        return Remaining(present.within(first, last), Sequences.union_of(sets), end)


def open_position(
    natty: Natty, config: CaptureConfig, store: Store, indexes: Indexes | None, stream: str
) -> ArchivePosition:
    """Return the position of a capture of this stream."""
    return ArchivePosition(natty, msgspec.structs.replace(config, stream=stream), store, indexes)


async def read_direct_scope(store: Store, stream: str) -> Asked | None:
    """Return the recorded scope of the direct gets of a stream; None if it was never read so. ManifestError."""
    return next((one for one in await read_records(store, stream) if one.durable == READER), None)


async def record_direct_scope(natty: Natty, store: Store, config: CaptureConfig, created: str) -> int:
    """Record where the reading starts, if that is not recorded yet; return the sequence.

    `created` is when the stream was created, in the server's form. ConfigError if another start is recorded.
    """
    wanted = Asked(stream=config.stream, durable=READER, created=created)
    try:
        found = (await read_record(store, wanted.path, Asked)).start
    except NotStoredError:
        start = await find_start(natty, config.stream, config.start)
        await write_record(store, Asked(stream=config.stream, durable=READER, created=created, start=start))
        return (await read_record(store, wanted.path, Asked)).start
    named = {"all": 1}.get(str(config.start)) or (int(config.start) if str(config.start).isdecimal() else found)
    if named != found:
        raise ConfigError(
            f"stream {config.stream} is captured from sequence {found:,} on, as recorded in {store.url}, and start is"
            f" {config.start!r}: write start = {found}. To read earlier messages, too, run capture backfill"
            f" {config.stream} --from {named}"
        )
    return found


async def find_start(natty: Natty, stream: str, start: int | str) -> int:
    """Return the sequence of a start: "all", "new", a sequence, or a time. ConfigError; NattyError."""
    match delivery(start):
        case {"opt_start_seq": int(sequence)}:
            return sequence
        case {"opt_start_time": str(time)}:
            present, last = await read_present(natty, stream)
            found = await find_first_since(natty, stream, present, parse_time(time) / 1e9)
            return last + 1 if found is None else found
    if start == NEW:
        return (await read_present(natty, stream))[1] + 1
    assert start == ALL
    return 1
