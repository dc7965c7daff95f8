"""Hundreds of compactions of one archive, with crashes and new leaders: the store must not grow forever.

`make soak-table`, or: python tests/support/table_soak.py --runs 500
"""

import argparse
import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass
from random import Random

from archived import store_block
from exposing import read_back, sequences_of
from failing import Failing
from indexed import read_whole

from capture.archive import chain
from capture.archive.iceberg_state import Expiry, Iceberg
from capture.archive.manifest import Manifest
from capture.archive.retention import Retention, Rule
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import CompactionError, StoreError
from capture.iceberg import Exposer
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import open as opened
from capture.testing import ArrowEngine, HeadState, MemoryHead

STREAM = "ORDERS"
BEGAN = 1_795_230_000.0  # when the messages of `archived.records` were stored
EVERY = 300.0  # seconds
POLICY = Policy(min_files=2, max_wait=600.0, target_bytes=20_000)
GROWTH = 1.4  # the last runs' largest figures may be this many times the first ones': blocks have random sizes


@dataclass(frozen=True)
class Rules:
    """Limits of retention in seconds, bytes, and stream sequences; after `horizon` runs each has removed objects."""

    grace: float = 900.0
    kept_for: float = 3600.0
    interval: float = 3600.0
    kept_bytes: int = 60_000
    stream_keeps: int = 200
    horizon: int = 80


BRIEF = Rules(grace=300.0, kept_for=900.0, interval=900.0, kept_bytes=15_000, stream_keeps=50, horizon=24)
"""Rules for a soak of a few seconds."""


@dataclass(frozen=True)
class Measured:
    """The store after a run: objects and bytes of each kind, snapshots, manifests, bytes of the newest documents."""

    objects: int
    bytes: int
    table: int
    iceberg: int
    snapshots: int
    manifests: int
    metadata: int
    document: int
    manifest: int
    removed: int
    seconds: float


class Soak:
    """An archive with changing leaders, and its clock."""

    def __init__(self, seed=1, rules=None):
        self.rules = rules or Rules()
        self.random, self.now, self.tokens, self.sequence = Random(seed), BEGAN, 0, 0
        self.store = Failing(lambda: self.now, f"soak-{seed}-{time.monotonic_ns()}")
        opened._memory[self.store.url.removeprefix("memory://")] = self.store
        self.manifest, self.table = HeadState(), HeadState()
        self.retention = Retention([Rule(keep_bytes=self.rules.kept_bytes)], self.rules.interval)
        self.crashes = 0
        self.terms = {}

    def term(self, state):
        """Return the leader's term: usually the previous one."""
        if id(state) not in self.terms or self.random.random() < 0.1:
            self.tokens += 1
            self.terms[id(state)] = MemoryHead(self.tokens, state)
        return self.terms[id(state)]

    async def write(self):
        """Store two blocks, with some earlier messages again; every third message is not ours."""
        for _ in range(2):
            again = self.random.randint(0, 3)
            first = max(1, self.sequence - again)
            self.sequence += self.random.randint(6, 12)
            ours = [one for one in range(first, self.sequence + 1) if one % 3]
            interval, key = int(self.now // self.rules.interval * self.rules.interval), self.random.choice(["eu", "us"])
            await store_block(self.store, ours, key=key, interval=interval, clock=lambda: self.now)

    async def run(self, crash):
        """Run a round of both leaders; with `crash` the compaction's leader dies in the middle."""
        self.now += EVERY
        await self.write()
        manifest = self.term(self.manifest)
        told = {"now": self.now, "retention": self.retention}
        begins = {STREAM: max(1, self.sequence - self.rules.stream_keeps)}
        await sweep(Leading(self.store, manifest, self.table.read, grace=self.rules.grace), begins=begins, **told)
        began = time.perf_counter()
        if crash:
            self.crashes += 1
            self.store.left, self.store.after = self.random.randint(1, 60), self.random.random() < 0.5
            with contextlib.suppress(StoreError, CompactionError):
                await self.compact(told)
            self.store.left = -1
        await self.compact(told)
        return await self.measured(time.perf_counter() - began)

    async def compact(self, told):
        exposure = Exposer(self.store, Expiry(keep_for=self.rules.kept_for), node="soak")
        head, read = self.term(self.table), self.manifest.read
        leading = TableLeading(self.store, head, read, grace=self.rules.grace, exposure=exposure)
        await compact(leading, ArrowEngine(), POLICY, **told)

    async def committed(self):
        return await read_whole(self.store, self.table.head, Table)

    async def measured(self, seconds):
        objects, table = await self.store.list(), await self.committed()
        record = [*table.removed, *(await chain.read(self.store, self.manifest.head, Manifest)).removed]
        exposed = table.iceberg.get(STREAM) or Iceberg(location="", number=0, metadata="", sha256="", snapshots=[])
        sizes = {"": 0} | {one.path: one.bytes for one in objects}
        current = (await read_back(self.store, exposed)) if exposed.snapshots and self.random.random() < 0.05 else None
        return Measured(
            objects=len(objects),
            bytes=sum(sizes.values()),
            table=sum(path.startswith("table/") for path in sizes),
            iceberg=sum(path.startswith("iceberg/") for path in sizes),
            snapshots=len(exposed.snapshots),
            manifests=len(current.current_snapshot().manifests(current.io)) if current else 0,
            metadata=sizes[exposed.metadata],
            document=sizes[self.table.head.path],
            manifest=sizes[self.manifest.head.path],
            removed=sum(len(one.sequences) for one in record),
            seconds=seconds,
        )

    async def check(self):
        """Check that Iceberg's readers and the archive's own get the same rows, in every existing snapshot."""
        table = await self.committed()
        reader = await read_back(self.store, table.iceberg[STREAM])
        held = [row for one in table.files for row in Sequences.from_bytes(one.sequences)]
        assert sequences_of(reader) == sorted(held)
        assert len(held) == len(set(held))
        for snapshot in reader.snapshots():
            rows = sequences_of(reader, snapshot.snapshot_id)
            assert len(rows) == len(set(rows))


async def soak(runs, *, crash_every=7, seed=1, rules=None):
    """Return the measurements after each of `runs` runs; check the readers every 50 runs and at the end."""
    world, measured = Soak(seed, rules), []
    for number in range(1, runs + 1):
        measured.append(await world.run(number % crash_every == 0))
        if number % 50 == 0:
            await world.check()
    await world.check()
    return world, measured


FIGURES = ("objects", "bytes", "table", "iceberg", "snapshots", "metadata", "document", "manifest", "removed")


def peaks(measured, horizon):
    """Return the largest values of each figure in the four quarters of the runs after the rules' horizon."""
    quarter = (len(measured) - horizon) // 4
    parts = [measured[horizon + number * quarter :][:quarter] for number in range(4)]
    return {name: [max(getattr(one, name) for one in part) for part in parts] for name in FIGURES}


def grown(measured, horizon):
    """Return the figures that are larger in the last quarter after the horizon than in the first one."""
    found = {name: (values[0], values[3]) for name, values in peaks(measured, horizon).items()}
    return {name: (before, after) for name, (before, after) in found.items() if after > GROWTH * before}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began, cpu = time.perf_counter(), time.process_time()
    world, measured = asyncio.run(soak(given.runs, seed=given.seed))
    print(f"{given.runs} runs, {world.crashes} of them struck, {world.tokens} terms, {world.sequence} messages")
    print(f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU")
    horizon = world.rules.horizon
    for name, values in peaks(measured, horizon).items():
        print(f"{name:10} largest by quarter, from run {horizon} on: {', '.join(f'{value:,}' for value in values)}")
    print(f"manifests of a snapshot, at most: {max(one.manifests for one in measured)}")
    if more := grown(measured, horizon):
        sys.exit(f"still growing: {more}")


if __name__ == "__main__":
    main()
