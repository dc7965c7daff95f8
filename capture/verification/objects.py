"""Reads every object of an archive again: hashes it, opens it and compares it with its record."""

from __future__ import annotations

import asyncio
import tempfile
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from capture.archive.encryption import Keys
from capture.archive.index.contents import Indexes
from capture.archive.index.page import place_of
from capture.archive.manifest import Stored, is_outside
from capture.archive.picture import Picture, find_unadopted, scan
from capture.archive.sequences import Sequences
from capture.archive.trust import NO_CHECKS, Trust
from capture.errors import CaptureError, CipherError, FormatError, KeyMissingError, ManifestError, NotStoredError
from capture.stores.contract import Store
from capture.verification.fingerprints import Existing, Fingerprints
from capture.verification.holdings import SOUND, Finding, Held, State, Sums, recorded_sequences
from capture.verification.verdict import Holdings
from natty.wire.background import map_concurrently

if TYPE_CHECKING:
    from capture.formats.block_format import BlockReader

OBJECTS_AT_ONCE, LARGE_AT_ONCE = 16, 4
"""Objects that are checked together, and those of them that are not small: they take memory."""
SMALL_BYTES, CHUNK_BYTES = 1 << 20, 8 << 20
"""The size of a small object, and the number of bytes of a larger one that are read at a time."""
SPOOL_BYTES = 32 << 20
"""Larger objects are stored in a temporary file while they are checked; blocks are hardly ever larger."""

Progress = Callable[[int, int], None]
"""Called with the number of objects checked so far, and the number of all objects."""

Again = Callable[[], Awaitable[tuple[list[Stored], Picture]]]
"""Reads the entries, and then the picture, again."""


async def read_archive(
    store: Store,
    picture: Picture,
    *,
    deep: bool = True,
    pending_entries: Iterable[Stored] = (),
    keys: Keys | None = None,
    again: Again | None = None,
    on_progress: Progress | None = None,
    trust: Trust = NO_CHECKS,
) -> dict[str, Holdings]:
    """Return what the archive holds of each stream, by its picture and the entries that wait for the sweep.

    Every object must exist with its size. `deep` reads each one again and compares its SHA-256, and the sequences and
    times of its rows, with its record; encrypted ones need `keys`. A missing or changed object holds nothing. `trust`
    says which objects are refused. Read the pending entries before the picture (see `sweep.read_entries`): otherwise an
    entry that is adopted in between is in neither. The objects are read from the indexes as they are checked: the
    picture of `read_documents` is enough.

    A missing object may have been compacted and removed after the picture was read: then `again` reads a new picture,
    and the objects that replace it are checked instead. It also reads one if the index's pages were replaced and
    deleted meanwhile. Memory grows with the sets of sequences, with what is not sound, and by 24 bytes an object.
    ManifestError if an index can't be read; StoreError.
    """
    work = _Work(store, Indexes(store), deep, keys, on_progress, trust)
    entries, failed = list(pending_entries), ""
    while True:
        try:
            sums = await work.check(picture, entries)
        except ManifestError as error:
            if again is None or not isinstance(error.__cause__, NotStoredError) or str(error) == failed:
                raise
            failed = str(error)
            entries, picture = await again()
            continue
        gone = work.list_gone()
        if not gone or again is None:
            return sums.total(picture.removed)
        entries, newer = await again()
        named = await _find_named(work.indexes, newer, entries, gone)
        if named >= {one.path for one in gone}:
            return sums.total(picture.removed)
        picture = newer


async def _find_named(indexes: Indexes, picture: Picture, entries: list[Stored], gone: list[Stored]) -> set[str]:
    """Return the paths of these objects that a picture, or the entries beside it, still name."""
    paths = {one.path for one in gone}
    found = {one.path for one in await find_unadopted(indexes, picture, entries)}
    for index, document in ((indexes.blocks, picture.manifest), (indexes.files, picture.table)):
        listed = {one.path for one in document.listed}
        found |= listed or {place[-1] for place in await index.find(document.index, map(place_of, gone))}
    return (found & paths) - picture.table.consumed_paths


class _Work:
    """Checks the objects of a picture, and then those of a newer one that were not checked yet."""

    def __init__(
        self,
        store: Store,
        indexes: Indexes,
        deep: bool,
        keys: Keys | None,
        on_progress: Progress | None,
        trust: Trust,
    ) -> None:
        self.indexes = indexes
        self._store, self._deep, self._keys, self._on_progress, self._trust = store, deep, keys, on_progress, trust
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        self._unsound: dict[str, tuple[Stored, Finding]] = {}
        self._checked: list[Fingerprints] = []  # of each turn the paths that exist
        self._existing = Existing()
        self._done = self._all = 0

    def __repr__(self) -> str:
        return f"_Work({self._store.url}, {self._done:,} of {self._all:,} objects)"

    def list_gone(self) -> list[Stored]:
        """Return the objects that were missing at the last turn."""
        return [record for record, finding in self._unsound.values() if finding.state is State.GONE]

    async def check(self, picture: Picture, entries: list[Stored]) -> Sums:
        """Check the objects that were not checked yet, or were missing, and add up what all objects hold."""
        sums = Sums(deep=self._deep, trust=self._trust)
        for record in self.list_gone():
            del self._unsound[record.path]
        self._existing = await Existing.read(self._store)
        self._checked.append(Fingerprints())
        waiting = await find_unadopted(self.indexes, picture, entries)
        self._done, self._all = 0, _count(picture) + len(waiting)
        async for part in scan(self.indexes, picture):
            sums.add(await self._check_part(part, adopted=True))
        sums.add(await self._check_part(waiting, adopted=False))
        return sums

    async def _check_part(self, part: list[Stored], *, adopted: bool) -> list[Held]:
        if any(is_outside(one.path) for one in part):
            await self._existing.include_outside(self._store)
        recorded = [recorded_sequences(one) for one in part]
        findings = [self._recall(one.path) for one in part]
        fresh = [place for place, finding in enumerate(findings) if finding is None]
        self._done += len(part) - len(fresh)

        async def look(place: int) -> None:
            findings[place] = await self._look(part[place], recorded[place])

        if self._deep:
            await map_concurrently(fresh, look, at_once=OBJECTS_AT_ONCE)
        else:
            for place in fresh:
                await look(place)
        found = zip(part, recorded, findings, strict=True)
        return [Held(record, sequences, finding or SOUND, adopted) for record, sequences, finding in found]

    def _recall(self, path: str) -> Finding | None:
        """Return what an earlier turn found; None if it did not check the object, or did not find it."""
        if len(self._checked) > 1 and any(path in checked for checked in self._checked[:-1]):
            return self._unsound[path][1] if path in self._unsound else SOUND
        return None

    async def _look(self, record: Stored, recorded: Sequences) -> Finding:
        finding = await self._check_size(record, recorded)
        if finding is SOUND and self._deep:
            async with self._large if record.bytes > SMALL_BYTES else nullcontext():
                finding = await _check_object(self._store, record, self._keys)
        if finding is not SOUND:
            self._unsound[record.path] = record, finding
        if finding.state is not State.GONE:
            self._checked[-1].add(record.path)
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, max(self._done, self._all))
        return finding

    async def _check_size(self, record: Stored, recorded: Sequences) -> Finding:
        if not self._existing.has_size(record.path, record.bytes):
            found = await self._find_size(record.path)
            if found is None:
                return Finding(State.GONE, f"{record.path} is missing")
            if found != record.bytes:
                return Finding(State.DAMAGED, f"{record.path} has {found:,} bytes, not {record.bytes:,}")
        if not recorded:
            return Finding(State.DAMAGED, f"the record of {record.path} has no readable sequences")
        return SOUND

    async def _find_size(self, path: str) -> int | None:
        if not self._existing.has(path):
            return None
        return next((one.bytes for one in await self._store.list(path) if one.path == path), None)


def _count(picture: Picture) -> int:
    """Return about how many objects a picture has."""
    stream, count = picture.where.stream, -len(picture.table.consumed)
    for document in (picture.manifest, picture.table):
        totals = document.index.streams
        chosen = totals.values() if stream is None else [totals[stream]] if stream in totals else []
        count += len(document.listed) or sum(one.objects for one in chosen)
    return max(0, count)


# --- one object ------------------------------------------------------------------------------------------------------


async def _check_object(store: Store, record: Stored, keys: Keys | None) -> Finding:
    """Compare an object with its record: first the hash, then its content."""
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
        try:
            digest = await copy_object(store, record, file)
        except NotStoredError:
            return Finding(State.GONE, f"{record.path} is missing")
        except CaptureError as error:
            return Finding(State.UNCHECKED, f"{record.path} can't be read: {error}")
        if digest != record.sha256:
            return Finding(State.DAMAGED, f"{record.path} was changed: its SHA-256 is not the recorded one")
        return await to_thread(_check, record, file, keys)


async def copy_object(store: Store, record: Stored, file: IO[bytes]) -> str:
    """Copy an object into the file, in chunks, and return its SHA-256. NotStoredError; StoreError."""
    digest = sha256()

    def take(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    for start in range(0, record.bytes, CHUNK_BYTES):
        await to_thread(take, await store.get_range(record.path, start, CHUNK_BYTES))
    file.seek(0)
    return digest.hexdigest()


def _check(record: Stored, file: IO[bytes], keys: Keys | None) -> Finding:
    from capture.formats import reader  # imported here, so that the arithmetic needs no pyarrow

    try:
        layers = reader(record.format, keys)
        if layers.identifies:
            return _compare(record, _positions_of(record, file, layers))
        opened = layers.open(file, record)
        while opened.read(CHUNK_BYTES):
            pass
        return SOUND
    except KeyMissingError as error:
        return Finding(State.UNCHECKED, f"{record.path} can't be opened: {error}")
    except CipherError as error:
        return Finding(State.DAMAGED, f"{record.path} can't be opened: {error}")
    except Exception as error:  # any error of a format's reader on bytes that it can't read
        return Finding(State.DAMAGED, f"{record.path} is not readable as {record.format}: {error}")


@dataclass(frozen=True)
class _Positions:
    """The position of an object's rows: their sequences, their number, and the earliest and latest time (ns)."""

    held: Sequences
    rows: int
    min_ns: int
    max_ns: int


def _positions_of(record: Stored, file: IO[bytes], layers: BlockReader) -> _Positions:
    held, rows = Sequences(), 0
    earliest, latest = [], []
    for sequences, times_ns in layers.positions(file, record):
        held = held | Sequences.from_iterable(sequences)
        rows += len(sequences)
        if times_ns:
            earliest.append(min(times_ns))
            latest.append(max(times_ns))
    if not rows:
        raise FormatError("it has no rows")
    return _Positions(held, rows, min(earliest), max(latest))


def _compare(record: Stored, found: _Positions) -> Finding:
    recorded = recorded_sequences(record)
    if found.held != recorded:
        sentence = (
            f"{record.path} differs from its record: without {(recorded - found.held).describe()}, "
            f"with {(found.held - recorded).describe()} in addition"
        )
    elif found.rows != record.count:
        sentence = f"{record.path} has {found.rows:,} rows, its record says {record.count:,}"
    elif wrong := _find_wrong_facts(record, found):
        sentence = f"{record.path} differs from its record: {', '.join(wrong)}"
    else:
        return SOUND
    return Finding(State.WRONG, sentence, found.held, found.rows)


def _find_wrong_facts(record: Stored, found: _Positions) -> list[str]:
    """Return the wrong facts of the record; early records have no times."""
    facts = [("first", record.first, found.held.first), ("last", record.last, found.held.last)]
    if record.max_ns:
        facts += [("min_ns", record.min_ns, found.min_ns), ("max_ns", record.max_ns, found.max_ns)]
    wrong = [f"{name} is {is_}, recorded as {said}" for name, said, is_ in facts if said != is_]
    if found.min_ns < record.interval * 1_000_000_000:
        wrong.append(f"a message has the time {found.min_ns} ns, before its interval begins")
    return wrong
