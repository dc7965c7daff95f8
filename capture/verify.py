from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from capture.cipher import Keys
from capture.errors import CaptureError, CipherError, NotStored
from capture.manifest import BLOCKS, TABLE, Stored
from capture.picture import Picture
from capture.sequences import Sequences
from capture.stores.contract import Store

UNDECODABLE_KEY = "_undecodable"
OBJECTS_AT_ONCE = 4


# --- the verdict: pure -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StreamView:
    """What the stream says of itself: its first and last sequence, and which between them were deleted.

    `last` may be lower than the stream's, to look only at what was acknowledged. Read it before the archive.
    """

    first: int
    last: int
    deleted: Sequences = field(default_factory=Sequences)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Where every sequence is: `stored`, `undecodable` (stored raw), `deleted`, `expired` or `missing`, never two.

    `waiting` are stored and not yet in the table, `beyond` stored and above the stream's last, `duplicates` rows that
    the table holds too often, `problems` sentences about objects. `asked` is False if the stream was not looked at.
    """

    stored: Sequences
    undecodable: Sequences
    deleted: Sequences
    expired: Sequences
    missing: Sequences
    waiting: Sequences
    beyond: Sequences
    duplicates: int = 0
    problems: tuple[str, ...] = ()
    asked: bool = True

    @property
    def ok(self) -> bool:
        """Tell whether nothing is missing, the table holds nothing twice, and every object is sound."""
        return not self.missing and not self.duplicates and not self.problems

    def sentence(self) -> str:
        """Return the verdict for people, in one sentence; what is wrong comes last."""
        classes = (
            (self.stored, "stored"),
            (self.undecodable, "undecodable and kept raw"),
            (self.deleted, "deleted in the stream"),
            (self.expired, "expired in the stream"),
        )
        found = [f"{len(held):,} {name}" for held, name in classes if held] or ["nothing stored"]
        if self.waiting:
            found.append(f"{len(self.waiting):,} of them not compacted yet")
        wrong = [f"{len(self.missing):,} MISSING ({self.missing.describe()})"] if self.missing else []
        wrong += [f"{self.duplicates:,} twice in the table"] if self.duplicates else []
        wrong += self.problems
        sound = "nothing is missing" if self.asked else "every object is sound; the stream was not asked"
        return f"{', '.join(found)}; {'; '.join(wrong) if wrong else sound}"

    def as_dict(self) -> dict[str, object]:
        """Return counts, what is missing as runs, and the problems: for JSON."""
        counted = ("stored", "undecodable", "deleted", "expired", "missing", "waiting", "beyond")
        return {
            "ok": self.ok,
            **{name: len(getattr(self, name)) for name in counted},
            "missing_runs": [list(run) for run in self.missing.runs()],
            "duplicates": self.duplicates,
            "problems": list(self.problems),
            "stream_asked": self.asked,
        }


def compare(
    stream: StreamView | None,
    stored: Sequences,
    table: Sequences,
    undecodable: Sequences,
    duplicates: int,
    problems: Iterable[str] = (),
) -> Verdict:
    """Say of every sequence where it is. Without a stream nothing can be missing, only damaged.

    `stored` is what the archive holds in all, `undecodable` which of these are stored raw, `table` what is compacted.
    """
    held = stored | table
    view = stream or StreamView(first=1, last=0)
    inside, all_ever = Sequences.from_range(view.first, view.last), Sequences.from_range(1, view.last)
    return Verdict(
        stored=held - undecodable,
        undecodable=held & undecodable,
        deleted=(inside & view.deleted) - held,
        expired=all_ever - inside - held,
        missing=inside - view.deleted - held,
        waiting=held - table,
        beyond=held - all_ever if stream else Sequences(),
        duplicates=duplicates,
        problems=tuple(problems),
        asked=stream is not None,
    )


# --- reading the archive ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What the archive holds of one stream, as far as its objects are there and sound."""

    stored: Sequences = field(default_factory=Sequences)
    table: Sequences = field(default_factory=Sequences)
    undecodable: Sequences = field(default_factory=Sequences)
    duplicates: int = 0
    problems: tuple[str, ...] = ()

    def compare(self, stream: StreamView | None) -> Verdict:
        """Return the verdict on these holdings."""
        return compare(stream, self.stored, self.table, self.undecodable, self.duplicates, self.problems)


@dataclass(frozen=True, kw_only=True)
class ArchiveView:
    """What the archive holds, by stream; `problems` are those of all streams."""

    streams: dict[str, Holdings]

    def of(self, stream: str) -> Holdings:
        """Return the holdings of a stream; empty if the archive has nothing of it."""
        return self.streams.get(stream, Holdings())

    @property
    def problems(self) -> list[str]:
        """Every problem that was found."""
        return [problem for one in self.streams.values() for problem in one.problems]


@dataclass(frozen=True)
class _Looked:
    """One object that was looked at: what it holds, how many rows, and what is wrong with it."""

    record: Stored
    held: Sequences
    rows: int
    problem: str = ""


async def read_archive(
    store: Store,
    picture: Picture,
    *,
    deep: bool = False,
    pending_entries: Iterable[Stored] = (),
    keys: Keys | None = None,
) -> ArchiveView:
    """Return what the archive holds, by its picture and the entries that wait for the sweep.

    Every object must be there with its size. `deep` reads each again: its SHA-256, and the sequence of every row,
    against its record; encrypted ones need `keys`. What is missing or changed holds nothing. Read the pending entries
    before the picture (see `capture.sweep.read_entries`), or one that is adopted in between is in neither.
    """
    blocks = [*picture.blocks, *picture.unadopted(pending_entries)]
    sizes = {one.path: one.bytes for one in await store.list(BLOCKS) + await store.list(TABLE)}
    slots = asyncio.Semaphore(OBJECTS_AT_ONCE)

    async def look(record: Stored) -> _Looked:
        if sizes.get(record.path) != record.bytes:
            return _nothing(record, _size_problem(record, sizes.get(record.path)))
        if not deep:
            return _Looked(record, Sequences.from_text(record.sequences), record.count)
        async with slots:
            return await _read_again(store, record, keys)

    looked_blocks = await asyncio.gather(*map(look, blocks))
    looked_table = await asyncio.gather(*map(look, picture.files))
    return ArchiveView(streams=_by_stream(looked_blocks, looked_table))


def _size_problem(record: Stored, found: int | None) -> str:
    if found is None:
        return f"{record.path} is missing"
    return f"{record.path} has {found:,} bytes, not {record.bytes:,}"


def _nothing(record: Stored, problem: str) -> _Looked:
    return _Looked(record, Sequences(), 0, problem)


async def _read_again(store: Store, record: Stored, keys: Keys | None) -> _Looked:
    try:
        data = await store.get(record.path)
    except NotStored:
        return _nothing(record, f"{record.path} is missing")
    except CaptureError as error:
        return _nothing(record, f"{record.path} can't be read: {error}")
    return await asyncio.to_thread(_check, record, data, keys)


def _check(record: Stored, data: bytes, keys: Keys | None) -> _Looked:
    """Compare an object's bytes with its record: the hash first, then what it holds."""
    if sha256(data).hexdigest() != record.sha256:
        return _nothing(record, f"{record.path} was changed: its SHA-256 is not the recorded one")
    try:
        rows = sequences_in(data, record, keys)
    except CipherError as error:
        return _nothing(record, f"{record.path} can't be opened: {error}")
    except Exception as error:  # whatever a reader raises on bytes that it can't read
        return _nothing(record, f"{record.path} is no {record.format} that can be read: {error}")
    held, recorded = Sequences.from_iterable(rows), Sequences.from_text(record.sequences)
    problem = ""
    if held != recorded:
        problem = (
            f"{record.path} does not hold what its record says: without {(recorded - held).describe()}, "
            f"with {(held - recorded).describe()} besides"
        )
    elif len(rows) != record.count:
        problem = f"{record.path} has {len(rows):,} rows, its record says {record.count:,}"
    return _Looked(record, held, len(rows), problem)


def sequences_in(data: bytes, record: Stored, keys: Keys | None = None) -> list[int]:
    """Return the sequence of every message of an object, or raise what its reader raises."""
    from capture.writers import reader  # here, so that the arithmetic above needs no pyarrow

    return reader(record.format, keys).sequences(data, record)


def _by_stream(blocks: Iterable[_Looked], table: Iterable[_Looked]) -> dict[str, Holdings]:
    """Add up what every object holds. Undecodable is what lies nowhere but under the undecodable key."""
    parts: dict[str, tuple[list[_Looked], list[_Looked]]] = defaultdict(lambda: ([], []))
    for one in blocks:
        parts[one.record.stream][0].append(one)
    for one in table:
        parts[one.record.stream][1].append(one)
    return {stream: _added_up(*looked) for stream, looked in sorted(parts.items())}


def _added_up(blocks: list[_Looked], table: list[_Looked]) -> Holdings:
    everything = [*blocks, *table]
    tabled = Sequences.union_of(one.held for one in table)
    stored = Sequences.union_of(one.held for one in everything)
    decoded = Sequences.union_of(one.held for one in everything if one.record.key != UNDECODABLE_KEY)
    return Holdings(
        stored=stored,
        table=tabled,
        undecodable=stored - decoded,
        duplicates=sum(one.rows for one in table) - len(tabled),
        problems=tuple(one.problem for one in everything if one.problem),
    )
