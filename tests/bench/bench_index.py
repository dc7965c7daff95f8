"""What an archive's index costs, by the number of its objects: `python tests/bench/bench_index.py [OBJECTS …]`.

The objects are records only, of 1,000 messages each, in a folder; with 100 or 1,000 keys, neighbouring sequences have
different keys. Each figure is of a process of its own: CPU time, bytes written, and memory beyond what is in use after
the imports. "Cold" is the first commit of a process, "warm" the next one. Beside it stands one document with all
records, as archives of formats 1 and 2 have it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from capture.archive import chain
from capture.archive.chain import Head, latest_offline
from capture.archive.index.contents import Indexes, commit, load_from
from capture.archive.index.tree import Index, Where
from capture.archive.index.update import held_of, update
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest, Partition, Stored, block_path, encode, entry_path
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.maintenance.leading import FEW, Leading
from capture.maintenance.sweep import sweep
from capture.reading.shares import shares
from capture.stores.file import FileStore
from capture.testing import HeadState, MemoryHead

SIZES = (10_000, 100_000, 1_000_000)
KEYS = (1, 100, 1_000)
MOST_IN_A_DOCUMENT = 100_000
MESSAGES = 1_000
PORTION = 10_000
HOURS = 240
NOW = 2e9


def records(objects: int, keys: int, number_of_hours: int = HOURS) -> Iterator[Stored]:
    """Yield records in the order of the index."""
    rounds = objects // keys
    each_hour = max(1, rounds // number_of_hours)
    for begin in range(0, rounds, each_hour):
        for key in sorted(range(keys), key=lambda one: f"customer-{one}"):
            for number in range(begin, min(begin + each_hour, rounds)):
                yield record(number, key, keys, 3600 * (begin // each_hour))


def record(number: int, key: int, keys: int, interval: int) -> Stored:
    first = number * MESSAGES * keys + 1 + key
    if keys == 1:
        held = Sequences.from_range(first, first + MESSAGES - 1)
    else:
        held = Sequences.from_iterable(range(first, first + MESSAGES * keys, keys))
    digest = hashlib.sha256(b"%d %d" % (number, key)).hexdigest()
    name = f"customer-{key}"
    path = block_path(
        Partition("S", name, interval, 3600), first, held.last, MESSAGES, digest, ".parquet", digest[8:16]
    )
    return Stored(
        path=path, stream="S", key=name, interval=interval, first=first, last=held.last, count=MESSAGES,
        bytes=300_000, sha256=digest, format="parquet", sequences=held.to_bytes(), node="node-1",
        stored_ns=(interval + 3600) * 10**9, min_ns=interval * 10**9, max_ns=(interval + 3599) * 10**9,
        plain_bytes=400_000,
    )  # fmt: skip


async def build(folder: Path, objects: int, keys: int, what: str) -> None:
    """Write a table or a manifest with so many records into the folder, by an index, or a table as one document."""
    store, pointer = FileStore(folder), MemoryHead(1, HeadState())
    if what == "document":
        await chain.commit(store, pointer, None, Table(files=list(records(objects, keys))))
        return
    kind = Table if what == "table" else Manifest
    version = await write_index(folder, Index(store, kind.PAGES), records(objects, keys))
    await chain.commit(store, pointer, None, kind(index=version))


async def write_index(folder: Path, index: Index, entries: Iterator[Stored]) -> Version:
    """Return an index of these records, whose pages are in the folder. Not durable: what follows is measured."""
    version = Version()
    while some := list(islice(entries, PORTION)):
        made = await update(index, version, some, [], token=1, number=1)
        for name in made.replaced:
            (folder / index.path(name)).unlink()
        for name, data in made.pages.items():
            (folder / index.path(name)).parent.mkdir(parents=True, exist_ok=True)
            (folder / index.path(name)).write_bytes(data)
        index.remember(made.pages)
        version = made.version
    return version


class Counted(FileStore):
    """A folder that counts what is written and read."""

    written = reads = 0

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        assert isinstance(data, bytes)
        self.written += len(data)
        await super().put(path, data, if_absent=if_absent)

    async def get(self, path: str) -> bytes:
        self.reads += 1
        return await super().get(path)


class Archive:
    """A table in a folder, and the head of a leader that goes on with it."""

    def __init__(self, folder: Path, objects: int, keys: int) -> None:
        self.store, self.objects, self.keys = Counted(folder), objects, keys
        self.indexes = Indexes(self.store)
        self.index = self.indexes.files
        self.began = 0.0
        self.head: Head | None = None
        self.table = Table()

    async def open(self) -> None:
        self.head = await latest_offline(self.store, Table)
        self.table = await chain.read(self.store, self.head, Table)

    @property
    def middle(self) -> int:
        """The hour in the middle of the table."""
        rounds = self.objects // self.keys
        return rounds // 2 // max(1, rounds // HOURS)

    def fresh(self, count: int, later: int = 0) -> list[Stored]:
        """Return new records in the middle of the table, for neighbouring keys."""
        number = 2 * self.objects + later  # sequences that no record has
        return [
            record(number + one // self.keys, one % self.keys, self.keys, 3600 * self.middle) for one in range(count)
        ]

    async def commit(self, count: int, later: int = 0) -> None:
        """Add new records."""
        pointer = MemoryHead(2, HeadState())
        before = self.table.with_listed([])
        after = before.with_listed(self.fresh(count, later))
        self.head, self.table = await commit(self.index, pointer, self.head, before, after, now=NOW, grace=900.0)
        self.table = self.table.with_listed([])

    async def add_to_document(self) -> None:
        pointer = MemoryHead(2, HeadState())
        table = msgspec.structs.replace(self.table, files=[*self.table.files, *self.fresh(1)])
        self.head = await chain.commit(self.store, pointer, self.head, table)

    async def sweep(self, count: int, later: int) -> None:
        """Adopt so many new blocks, as a leader does between two listings of the store."""
        for one in self.fresh(count, later):
            await FileStore.put(self.store, one.path, b"")
            await FileStore.put(self.store, entry_path(one.path), encode(one))
        head = await latest_offline(self.store, Manifest)
        pointer = MemoryHead(2, HeadState(head=head, highest_token=2))
        self.began = time.process_time()
        leading = Leading(self.store, pointer, HeadState().read, objects=FEW + 1, listed=math.inf)  # not a full sweep
        leading.indexes = self.indexes
        report = await sweep(leading, now=NOW)
        assert report.adopted == count, report

    async def status(self) -> None:
        assert self.table.index.messages

    async def hour(self) -> None:
        begins = 3600 * self.middle
        where = Where(stream="S", times=(begins * 10**9, (begins + 3599) * 10**9))
        assert (await load_from(self.index, self.table, where)).files

    async def missing(self) -> None:
        held = await held_of(self.index, self.table.index, "S")
        assert len(held) == self.table.index.streams["S"].held.count

    async def verify(self) -> None:
        assert await self.index.verify(self.table.index)

    async def verify_sets(self) -> None:
        count = 0
        async for part in self.index.scan(self.table.index):
            for one in part:
                count += len(Sequences.from_bytes((await self.index.whole(one)).sequences))
        assert count == self.table.index.messages

    async def plan_restore(self) -> None:
        assert shares((await load_from(self.index, self.table)).files)


async def measure(folder: Path, objects: int, keys: int, what: str) -> dict[str, float]:
    """Run one measurement in this process."""
    archive = Archive(folder, objects, keys)
    steps: dict[str, Callable[[], Awaitable[None]]] = {
        "one": lambda: archive.commit(1),
        "1000": lambda: archive.commit(1_000, 2_000_000),
        "document": archive.add_to_document,
        "sweep 1": lambda: archive.sweep(1, 0),
        "sweep 1000": lambda: archive.sweep(1_000, 1_000_000),
        "status": archive.status,
        "hour": archive.hour,
        "missing": archive.missing,
        "verify": archive.verify,
        "verify sets": archive.verify_sets,
        "plan": archive.plan_restore,
    }
    record(0, 0, 1, 0)  # what is imported late, and compiled once
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    await archive.open()
    await steps[what]()
    began = archive.began or began
    found = {"cold": time.process_time() - began, "kB": archive.store.written / 1e3, "reads": archive.store.reads}
    if what in ("one", "1000"):
        written, began = archive.store.written, time.process_time()
        await archive.commit(*((1, 1_000_000) if what == "one" else (1_000, 3_000_000)))
        found |= {"warm": time.process_time() - began, "warm kB": (archive.store.written - written) / 1e3}
    if what.startswith("sweep"):
        written = archive.store.written
        await archive.sweep(*((1, 5_000_000) if what == "sweep 1" else (1_000, 7_000_000)))
        found |= {"warm": time.process_time() - archive.began, "warm kB": (archive.store.written - written) / 1e3}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {"MB": (peak - before) / 1024}


def run(*arguments: object) -> dict[str, float]:
    """Return the figures of another process."""
    command = [sys.executable, __file__, "--child", *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def show(objects: int, keys: int) -> None:
    """Print the figures of one archive."""
    print(f"{objects:,} objects, {keys:,} {'keys' if keys > 1 else 'key'}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run(folder, objects, keys, "build", "table")
        run(folder, objects, keys, "build", "manifest")
        for what, name in (
            ("one", "commit of 1"),
            ("1000", "commit of 1,000"),
            ("sweep 1", "sweep that adopts 1"),
            ("sweep 1000", "sweep that adopts 1,000"),
        ):
            one = run(folder, objects, keys, what)
            print(
                f"  {name:<26} cold {one['cold'] * 1e3:7,.0f} ms {one['kB']:9,.0f} kB {one['reads']:4.0f} reads,"
                f"  warm {one['warm'] * 1e3:6,.0f} ms {one['warm kB']:9,.0f} kB,  {one['MB']:5,.0f} MB",
                flush=True,
            )
        for what, name in (
            ("status", "totals of a status"),
            ("hour", "the records of one hour"),
            ("missing", "the exact set"),
            ("plan", "plan of a restore"),
        ):
            one = run(folder, objects, keys, what)
            print(
                f"  {name:<26} {one['cold'] * 1e3:12,.0f} ms {one['reads']:14.0f} reads,  {one['MB']:29,.0f} MB",
                flush=True,
            )
        for what, name in (("verify", "verify"), ("verify sets", "verify, each set decoded")):
            one = run(folder, objects, keys, what)
            print(f"  {name:<26} {objects / one['cold']:12,.0f} records a second {one['MB']:31,.0f} MB", flush=True)
    if objects <= MOST_IN_A_DOCUMENT:
        with tempfile.TemporaryDirectory() as folder:
            run(folder, objects, keys, "build", "document")
            one = run(folder, objects, keys, "document")
            print(
                f"  {'one document, commit of 1':<26} cold {one['cold'] * 1e3:7,.0f} ms {one['kB']:9,.0f} kB"
                f" {one['MB']:44,.0f} MB",
                flush=True,
            )


def child(folder: str, objects: str, keys: str, what: str, kind: str = "") -> Any:
    if what == "build":
        asyncio.run(build(Path(folder), int(objects), int(keys), kind))
        return {}
    return asyncio.run(measure(Path(folder), int(objects), int(keys), what))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(child(*sys.argv[2:])))
    else:
        for size in [int(one) for one in sys.argv[1:]] or SIZES:
            for number_of_keys in KEYS:
                show(size, number_of_keys)
