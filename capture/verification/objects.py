"""Reads every object of an archive again: hashes it, opens it and compares it with its record."""

from __future__ import annotations

import tempfile
from asyncio import to_thread
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from typing import IO, TYPE_CHECKING

from capture.archive.encryption import Keys
from capture.archive.manifest import TABLE, Stored, is_outside, list_blocks
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import format_of
from capture.errors import CaptureError, CipherError, FormatError, KeyMissingError, NotStoredError
from capture.stores.contract import Store
from capture.verification.verdict import Holdings
from natty.wire.background import map_concurrently

if TYPE_CHECKING:
    from capture.formats.block_format import BlockReader

UNDECODABLE_KEY = "_undecodable"  # the same as `capture.partitioners.UNDECODABLE`; a user's key has another text
OBJECTS_AT_ONCE = 4
CHUNK_BYTES = 8 << 20
"""The number of bytes of an object that are read at a time."""
SPOOL_BYTES = 32 << 20
"""Larger objects are stored in a temporary file while they are checked; blocks are hardly ever larger."""

Progress = Callable[[int, int], None]
"""Called with the number of objects checked so far, and the number of all objects."""

Again = Callable[[], Awaitable[tuple[list[Stored], Picture]]]
"""Reads the entries, and then the picture, again."""


class State(Enum):
    """The state of an object."""

    SOUND = "sound"  # matches its record
    UNCHECKED = "unchecked"  # exists, and no more could be checked
    WRONG = "wrong"  # whole, but does not match its record
    DAMAGED = "damaged"  # changed or cut off: it holds nothing
    GONE = "gone"


BROKEN = frozenset({State.WRONG, State.DAMAGED, State.GONE})


@dataclass(frozen=True)
class Finding:
    """The result of checking one object, and a sentence about its problem.

    `held` and `rows` are set only if they differ from its record, so that thousands of findings take little memory.
    """

    state: State
    sentence: str = ""
    held: Sequences | None = None
    rows: int = 0


SOUND = Finding(State.SOUND)


async def read_archive(
    store: Store,
    picture: Picture,
    *,
    deep: bool = True,
    pending_entries: Iterable[Stored] = (),
    keys: Keys | None = None,
    again: Again | None = None,
    on_progress: Progress | None = None,
) -> dict[str, Holdings]:
    """Return what the archive holds of each stream, by its picture and the entries that wait for the sweep.

    Every object must exist with its size. `deep` reads each one again and compares its SHA-256, and the sequences and
    times of its rows, with its record; encrypted ones need `keys`. A missing or changed object holds nothing. Read the
    pending entries before the picture (see `sweep.read_entries`): otherwise an entry that is adopted in between is in
    neither.

    A missing object may have been compacted and removed after the picture was read: then `again` reads a new picture,
    and the objects that replace it are checked instead. Memory grows with the number of objects, not with their size.
    """
    findings: dict[str, Finding] = {}
    pending_entries = list(pending_entries)
    while True:
        adopted = [*picture.blocks, *picture.files]
        records = [*adopted, *picture.list_unadopted(pending_entries)]
        await _check_objects(
            store, [one for one in records if one.path not in findings], findings, deep, keys, on_progress
        )
        gone = {one.path for one in records if findings[one.path].state is State.GONE}
        if not gone or again is None:
            break
        pending_entries, newer = await again()
        named = {one.path for one in (*newer.blocks, *newer.files, *newer.list_unadopted(pending_entries))}
        if gone <= named:
            break
        picture = newer
        for path in gone & named:
            del findings[path]
    return _add_up_streams(records, adopted, picture, findings, deep)


async def _check_objects(
    store: Store,
    records: list[Stored],
    findings: dict[str, Finding],
    deep: bool,
    keys: Keys | None,
    on_progress: Progress | None,
) -> None:
    """Check a few objects at a time; one listing shows which ones exist."""
    outside = any(is_outside(one.path) for one in records)
    listed = await list_blocks(store, outside=outside) + await store.list(TABLE) if records else []
    sizes = {one.path: one.bytes for one in listed}
    before = len(findings)

    async def look(record: Stored) -> None:
        finding = _check_size(record, sizes.get(record.path))
        if finding is SOUND and deep:
            finding = await _check_object(store, record, keys)
        findings[record.path] = finding
        if on_progress is not None:
            on_progress(len(findings), before + len(records))

    await map_concurrently(records, look, at_once=OBJECTS_AT_ONCE)


def _check_size(record: Stored, found: int | None) -> Finding:
    if found is None:
        return Finding(State.GONE, f"{record.path} is missing")
    if found != record.bytes:
        return Finding(State.DAMAGED, f"{record.path} has {found:,} bytes, not {record.bytes:,}")
    if not recorded_sequences(record):
        return Finding(State.DAMAGED, f"the record of {record.path} has no readable sequences")
    return SOUND


# --- one object ------------------------------------------------------------------------------------------------------


async def _check_object(store: Store, record: Stored, keys: Keys | None) -> Finding:
    """Compare an object with its record: first the hash, then its content."""
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
        try:
            digest = await _copy(store, record, file)
        except NotStoredError:
            return Finding(State.GONE, f"{record.path} is missing")
        except CaptureError as error:
            return Finding(State.UNCHECKED, f"{record.path} can't be read: {error}")
        if digest != record.sha256:
            return Finding(State.DAMAGED, f"{record.path} was changed: its SHA-256 is not the recorded one")
        return await to_thread(_check, record, file, keys)


async def _copy(store: Store, record: Stored, file: IO[bytes]) -> str:
    """Copy an object into the file, in chunks, and return its SHA-256."""
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


def recorded_sequences(record: Stored) -> Sequences:
    """Return the sequences that a record says its object holds; none if they can't be read."""
    try:
        return Sequences.from_text(record.sequences)
    except ValueError:
        return Sequences()


# --- all of them -----------------------------------------------------------------------------------------------------


def _add_up_streams(
    records: list[Stored], adopted: list[Stored], picture: Picture, findings: dict[str, Finding], deep: bool
) -> dict[str, Holdings]:
    """Add up the holdings of every object."""
    paths, removed = {one.path for one in adopted}, picture.removed
    found: dict[str, Holdings] = {}
    for stream in sorted({one.stream for one in records} | removed.keys()):
        mine = [one for one in records if one.stream == stream]
        found[stream] = _add_up(mine, paths, findings, removed.get(stream, Sequences()), deep)
    return found


def _add_up(
    records: list[Stored], adopted: set[str], findings: dict[str, Finding], removed: Sequences, deep: bool
) -> Holdings:
    """Add up some objects. Undecodable: only under the undecodable key. Proven: just read in full."""
    table = [one for one in records if one.path.startswith(TABLE)]

    def find_held(one: Stored) -> Sequences:
        return _sequences_of(one, findings[one.path])

    stored = Sequences.union_of(map(find_held, records))
    tabled = Sequences.union_of(map(find_held, table))
    failed = [one for one in records if findings[one.path].state in BROKEN]
    dangling = [one for one in failed if findings[one.path].state is State.GONE and one.path not in adopted]
    given_up = {one.path for one in dangling}
    broken = [one for one in failed if one.path not in given_up]
    lost = Sequences.union_of(map(recorded_sequences, broken)) - stored
    unchecked = [one for one in records if findings[one.path].state is State.UNCHECKED]
    proofs = (one for one in records if deep and one.path in adopted and _is_proof(one, findings[one.path]))
    return Holdings(
        stored=stored,
        table=tabled,
        undecodable=stored - Sequences.union_of(find_held(one) for one in records if one.key != UNDECODABLE_KEY),
        incomplete=_find_incomplete(records, find_held),
        proven=Sequences.union_of(map(recorded_sequences, proofs)),
        removed=removed - stored - lost,
        lost=lost,
        dangling={findings[one.path].sentence: recorded_sequences(one) - stored - removed for one in dangling},
        duplicates=sum(findings[one.path].rows or one.count for one in table if find_held(one)) - len(tabled),
        problems=tuple(findings[one.path].sentence for one in broken),
        unchecked=tuple(findings[one.path].sentence for one in unchecked),
        objects=len(records),
        bytes=sum(one.bytes for one in records),
    )


def _find_incomplete(records: list[Stored], find_held: Callable[[Stored], Sequences]) -> dict[str, Sequences]:
    """Return the sequences that are in no object of a format that keeps messages whole, by the name of their format."""
    partly: dict[str, list[Sequences]] = defaultdict(list)
    for one in records:
        if not format_of(one.format).restorable:
            partly[one.format.partition(".")[0]].append(find_held(one))
    if not partly:
        return {}
    whole = Sequences.union_of(find_held(one) for one in records if format_of(one.format).restorable)
    return {name: Sequences.union_of(several) - whole for name, several in partly.items()}


def _sequences_of(record: Stored, finding: Finding) -> Sequences:
    return (finding.held or Sequences()) if finding.state in BROKEN else recorded_sequences(record)


def _is_proof(record: Stored, finding: Finding) -> bool:
    """Return whether the object proves its messages: CSV does not store the payloads that it turns into rows."""
    return finding.state is State.SOUND and format_of(record.format).restorable
