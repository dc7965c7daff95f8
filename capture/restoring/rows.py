"""A stream's messages out of blocks and table files: ascending, each once, whatever overlaps, in bounded memory.

Objects are merged as they lie on the line of sequences: one is fetched, checked against its record and opened when the
merge comes near its first sequence. What is decoded of an open one is a window of rows. Where too many overlap at one
place (blocks of many keys), those beyond are merged into one file on the disk first.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from capture.cipher import Keys
from capture.errors import CaptureError, FormatError
from capture.manifest import Stored
from capture.restoring.archive import COLUMNS, as_columns
from capture.sequences import Sequences
from capture.stores.contract import Store
from capture.writers import read_object, reader
from capture.writers.envelope import VERSION, with_envelope
from natty.subjects import covers

FAN_IN = 16
"""Objects that are merged at once; while others are folded into one file, twice as many windows are in memory."""
WINDOW_BYTES = 1 << 20
"""Of an open object, by the average size of its rows, so much is decoded."""
WINDOW_ROWS = 8192
AHEAD = 1  # objects that are fetched before they are needed: a store may be far away
CHUNK_BYTES = 2 << 20  # of an object that are read at a time
READ_BYTES = 64 << 10  # of a file, at a time
T = TypeVar("T")
KEPT = ["sequence", "time_ns", "subject", "subject_raw", "header_block", "payload"]


async def merged_rows(
    store: Store,
    objects: Iterable[Stored],
    *,
    keys: Keys | None = None,
    wanted: Sequences | None = None,
    scratch: Path | None = None,
) -> AsyncGenerator[pa.Table, None]:
    """Yield the messages of these objects of one stream, with `archive.COLUMNS`: ascending, each sequence once.

    `wanted`: only these. Files are made below `scratch`, or where temporary files go: those that are open, and of more
    than FAN_IN objects at one place those beyond. Memory is 2 × FAN_IN windows, and the largest object that has to be
    decoded whole (any but plain Parquet). FormatError, CipherError and NotStored name the object: it is missing or was
    changed, can't be opened, is not what its record says, or is of a format that does not keep messages whole.
    """
    with tempfile.TemporaryDirectory(prefix="capture-rows-", dir=scratch) as folder, ThreadPoolExecutor(1) as thread:
        merge = _Merge(store, keys, Path(folder), thread)
        async with aclosing(merge.run(objects)) as tables:
            async for table in tables:
                chosen = table if wanted is None else only(table, wanted)
                if len(chosen):
                    yield chosen


def only(rows: pa.Table, wanted: Sequences) -> pa.Table:
    """Return the rows of these sequences; `rows` are ascending."""
    first, last = rows["sequence"][0].as_py(), rows["sequence"][-1].as_py()
    here = wanted & Sequences.from_range(first, last)
    if len(here) == last + 1 - first:
        return rows
    return rows.filter(pc.is_in(rows["sequence"], value_set=pa.array(here, pa.int64())))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which messages are chosen by what is in them: stored after and up to these times (Unix ns), on these subjects."""

    after_ns: int | None = None
    upto_ns: int | None = None
    subjects: tuple[str, ...] = ()

    def settles(self, one: Stored) -> bool:
        """Tell whether an object's record says that all of its messages are chosen, or none, by their times."""
        times = one.min_ns, one.max_ns
        return self.takes_all(one) or (one.max_ns > 0 and all(not self._in_time(time) for time in times))

    def takes_all(self, one: Stored) -> bool:
        """Tell whether an object's record says that all of its messages are chosen."""
        return not self.subjects and one.max_ns > 0 and self._in_time(one.min_ns) and self._in_time(one.max_ns)

    def _in_time(self, time_ns: int) -> bool:
        return (self.after_ns is None or time_ns > self.after_ns) and (self.upto_ns is None or time_ns <= self.upto_ns)

    def mask(self, rows: pa.Table) -> pa.Array:
        """Return of each row whether it is chosen."""
        chosen = pa.repeat(True, len(rows))
        if self.after_ns is not None:
            chosen = pc.and_(chosen, pc.greater(rows["time_ns"], self.after_ns).combine_chunks())
        if self.upto_ns is not None:
            chosen = pc.and_(chosen, pc.less_equal(rows["time_ns"], self.upto_ns).combine_chunks())
        if self.subjects:
            encoded = rows["subject"].combine_chunks().dictionary_encode()
            known = [covers(self.subjects, one.decode("utf-8", "replace")) for one in encoded.dictionary.to_pylist()]
            chosen = pc.and_(chosen, pa.array(known, pa.bool_()).take(encoded.indices))
        return chosen


async def chosen_rows(
    store: Store, objects: Sequence[Stored], choice: Choice, *, keys: Keys | None = None, wanted: Sequences
) -> Sequences:
    """Return which of the wanted sequences are chosen. Objects are read only where their records don't say it.

    Raises what `merged_rows` does.
    """
    sure = Sequences.union_of(Sequences.from_text(one.sequences) for one in objects if choice.takes_all(one))
    found = [sure & wanted]
    doubtful = [one for one in objects if not choice.settles(one)]
    async with aclosing(merged_rows(store, doubtful, keys=keys, wanted=wanted)) as tables:
        async for rows in tables:
            chosen = rows.filter(choice.mask(rows))["sequence"]
            found.append(Sequences.from_iterable(chosen.to_pylist()))
    return Sequences.union_of(found)


def unfit(objects: Iterable[Stored]) -> list[str]:
    """Return the paths of objects of which nothing can be restored exactly: their format does not keep messages whole.

    FormatError if this version does not know a format.
    """
    return [one.path for one in objects if not reader(one.format).restorable]


@dataclass(frozen=True)
class _Run:
    """Objects that were merged into one file already."""

    file: Path
    first: int
    last: int


class _Open:
    """An open object: what is decoded of it, `rows`, and where the rest comes from."""

    def __init__(self, source: Stored | _Run, batches: Iterator[pa.Table], closing: ExitStack) -> None:
        self.last = source.last
        self.rows = COLUMNS.empty_table()
        self._name = source.path if isinstance(source, Stored) else ""
        self._batches, self._closing = batches, closing
        self._seen = 0
        self._left = source.count if isinstance(source, Stored) else 0

    @property
    def reach(self) -> int:
        """The last sequence that is decoded: what comes after it is unknown."""
        return int(self.rows["sequence"][-1].as_py())

    def advance(self) -> bool:
        """Decode the next window, when nothing is left of this one; tell whether there was one, else close."""
        for table in self._batches:
            if len(table):
                self.rows = table
                self._check()
                return True
        self._closing.close()
        if self._left:
            raise FormatError(f"{self._name} does not hold as many rows as its record says")
        return False

    def take(self, upto: int) -> pa.Table:
        """Return the rows up to this sequence, and keep the others."""
        sequences = self.rows["sequence"]
        count = len(sequences) if self.reach <= upto else pc.sum(pc.less_equal(sequences, upto)).as_py()
        taken, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return taken

    def _check(self) -> None:
        if not self._name:
            return
        sequences = self.rows["sequence"]
        self._left -= len(sequences)
        if sequences[0].as_py() < self._seen or not _ascends(sequences, strictly=False):
            raise FormatError(f"the rows of {self._name} are not in order")
        self._seen = self.reach

    def close(self) -> None:
        """Close the file."""
        self._closing.close()


class _Merge:
    """One merge: its folder, and its thread."""

    def __init__(self, store: Store, keys: Keys | None, folder: Path, thread: ThreadPoolExecutor) -> None:
        self._store, self._keys, self._folder, self._thread = store, keys, folder, thread
        self._files = 0

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do it in the one thread of this merge: several would each keep memory for later."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def run(self, sources: Iterable[Stored | _Run]) -> AsyncGenerator[pa.Table, None]:
        """Yield the rows of all sources."""
        waiting = deque(sorted(sources, key=lambda one: (one.first, one.last)))
        fetching: dict[int, asyncio.Task[Path]] = {}
        opened: list[_Open] = []
        emitted = 0
        try:
            while waiting or opened:
                upto = min((one.reach for one in opened), default=None)
                if waiting and (upto is None or waiting[0].first <= upto):
                    if len(opened) >= FAN_IN:
                        await _cancel(fetching)
                        end = min(one.last for one in opened)
                        crowd = [waiting.popleft() for _ in range(sum(one.first <= end for one in waiting))]
                        source: Stored | _Run = await self._folded(crowd)
                    else:
                        source = waiting.popleft()
                    await self._open(source, waiting, fetching, opened)
                    continue
                assert upto is not None
                rows = await self._do(_united, [one.take(upto) for one in opened], emitted)
                if len(rows):
                    yield rows
                emitted = upto
                for one in [one for one in opened if not len(one.rows)]:
                    if not await self._do(one.advance):
                        opened.remove(one)
        finally:
            await _cancel(fetching)
            for one in opened:
                one.close()

    async def _open(
        self,
        source: Stored | _Run,
        waiting: deque[Stored | _Run],
        fetching: dict[int, asyncio.Task[Path]],
        opened: list[_Open],
    ) -> None:
        """Open a source, and begin to fetch what comes after it."""
        for one in [source, *(waiting[place] for place in range(min(AHEAD, len(waiting))))]:
            if isinstance(one, Stored) and id(one) not in fetching:
                fetching[id(one)] = asyncio.create_task(self._fetch(one))
        if isinstance(source, _Run):
            one_open = await self._do(_opened, source, source.file)
        else:
            file = await fetching.pop(id(source))
            alone = not opened and not (waiting and waiting[0].first <= source.last)
            one_open = await self._do(self._open_object, source, file, alone)
        if await self._do(one_open.advance):
            opened.append(one_open)

    async def _folded(self, crowd: list[Stored | _Run]) -> _Run:
        """Merge sources into one file, in as many passes as it takes."""
        while True:
            parts = [crowd[start : start + FAN_IN] for start in range(0, len(crowd), FAN_IN)]
            crowd = [await self._merged(part) for part in parts]
            if len(crowd) == 1:
                (run,) = crowd
                assert isinstance(run, _Run)
                return run

    async def _merged(self, part: list[Stored | _Run]) -> _Run:
        file = self._new_file()
        with _written(file) as write:
            async with aclosing(self.run(part)) as tables:
                async for table in tables:
                    await self._do(write, table)
        return _Run(file, min(one.first for one in part), max(one.last for one in part))

    async def _fetch(self, record: Stored) -> Path:
        """Copy an object to the disk, and compare it with its record."""
        if not reader(record.format).restorable:
            raise FormatError(f"{record.path} is {record.format}, which does not keep messages whole")
        path, digest = self._new_file(), sha256()

        def take(data: bytes, file: IO[bytes]) -> None:
            digest.update(data)
            file.write(data)

        with path.open("wb") as file:
            for start in range(0, record.bytes, CHUNK_BYTES):
                await self._do(take, await self._store.get_range(record.path, start, CHUNK_BYTES), file)
        if digest.hexdigest() != record.sha256:
            raise FormatError(f"{record.path} was changed or cut off: its SHA-256 is not the recorded one")
        return path

    def _open_object(self, record: Stored, file: Path, alone: bool) -> _Open:
        """Open a fetched object. Parquet that is alone is read as it lies; the others are laid out as windows first.

        A page of Parquet may be as large as a block, and several objects are open at once.
        """
        closing = ExitStack()
        closing.callback(file.unlink)
        try:
            if record.format == "parquet":
                parquet = closing.enter_context(
                    pq.ParquetFile(file, page_checksum_verification=True, buffer_size=READ_BYTES)
                )
                batches = _decoded(parquet)
                if alone:
                    return _Open(record, _named(record, batches), closing)
            else:
                batches = iter([as_columns(read_object(file.read_bytes(), record, self._keys))])
            with closing:
                laid_out = self._new_file()
                with _written(laid_out) as write:
                    for table in batches:
                        write(table)
        except Exception as error:
            closing.close()
            raise _naming(record, error) from error
        return _opened(record, laid_out)

    def _new_file(self) -> Path:
        self._files += 1
        return self._folder / str(self._files)


async def _cancel(fetching: dict[int, asyncio.Task[Path]]) -> None:
    """End what is fetched ahead: nothing may write into the folder any more."""
    for task in fetching.values():
        task.cancel()
    await asyncio.gather(*fetching.values(), return_exceptions=True)
    fetching.clear()


def _decoded(parquet: pq.ParquetFile) -> Iterator[pa.Table]:
    """Yield a Parquet file's rows, a window at a time."""
    version = int((parquet.schema_arrow.metadata or {}).get(b"capture.version", VERSION))
    if version > VERSION:
        raise FormatError(f"it has format {version}; this version reads up to {VERSION}")
    columns = [name for name in KEPT if name in parquet.schema_arrow.names]
    for group in range(parquet.metadata.num_row_groups):
        facts = parquet.metadata.row_group(group)
        rows = max(1, min(WINDOW_ROWS, WINDOW_BYTES * facts.num_rows // max(1, facts.total_byte_size)))
        for batch in parquet.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
            yield as_columns(with_envelope(pa.Table.from_batches([batch])))


def _named(record: Stored, batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Say of which object it is whatever goes wrong."""
    try:
        yield from batches
    except Exception as error:
        raise _naming(record, error) from error


def _naming(record: Stored, error: Exception) -> Exception:
    if str(error).startswith(record.path):
        return error
    kind = type(error) if isinstance(error, CaptureError) else FormatError
    return kind(f"{record.path} can't be read: {error}")


@contextmanager
def _written(file: Path) -> Iterator[Any]:
    """Give a function that writes rows into a file, as windows."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, COLUMNS) as writer:

        def write(rows: pa.Table) -> None:
            size = max(1, min(WINDOW_ROWS, WINDOW_BYTES * len(rows) // max(1, rows.nbytes)))
            writer.write_table(rows, max_chunksize=size)

        yield write


def _opened(source: Stored | _Run, file: Path) -> _Open:
    """Open a file of windows; it is removed when it has been read."""
    closing = ExitStack()
    closing.callback(file.unlink)
    batches = pa.ipc.open_file(closing.enter_context(pa.OSFile(str(file), "rb")))
    tables = (pa.Table.from_batches([batches.get_batch(place)]) for place in range(batches.num_record_batches))
    return _Open(source, tables, closing)


def _united(parts: list[pa.Table], emitted: int) -> pa.Table:
    """Return the rows of several objects that come after sequence `emitted` as one table, ascending, each once."""
    rows = pa.concat_tables(one for one in parts if len(one))
    if rows["sequence"][0].as_py() <= emitted or len(parts) > 1:
        rows = rows.filter(pc.greater(rows["sequence"], emitted))
    if _ascends(rows["sequence"], strictly=True):
        return rows
    rows = rows.combine_chunks().sort_by("sequence")
    sequences = rows["sequence"].combine_chunks()
    is_new = pc.not_equal(sequences[1:], sequences[:-1])
    return rows.filter(pa.concat_arrays([pa.array([True]), is_new]))


def _ascends(sequences: pa.ChunkedArray, *, strictly: bool) -> bool:
    sequences = sequences.combine_chunks()
    compare = pc.greater if strictly else pc.greater_equal
    return len(sequences) < 2 or bool(pc.all(compare(sequences[1:], sequences[:-1])).as_py())
