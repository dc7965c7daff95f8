"""Pipelines over an archive of files, without NATS and Spark: a leader that can be killed, or stopped, at any request.

`ArrowDeriver` is the double of Spark with the same contract, for three queries: all messages (append), their number and
sum by key (upsert), and the rows of the first (append).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import io

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from archived import NOW, STREAM, Archived, store_block

from capture.archive import chain
from capture.archive.index.contents import load
from capture.archive.sequences import Sequences
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, FencedError
from capture.maintenance.merge.schema_evolution import write_columns
from capture.node.pipeline_keeper import PipelineKeeper
from capture.pipelines.commits import PipelineLeading
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Derived, OutputFile, PackedFiles, PackedUnit, Unit
from capture.pipelines.document import Pipelines, file_of
from capture.pipelines.upkeep import SEQUENCE
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead
from natty import LeadershipLostError

ALL = Pipeline(name="every", sql=f"SELECT sequence FROM {STREAM}", mode="append", schedule="every 1s")
SUMS = Pipeline(
    name="sums",
    sql=f"SELECT sequence % 5 AS k, count(*) AS n, sum(sequence) AS total FROM {STREAM} GROUP BY 1",
    mode="upsert",
    key="k",
    buckets=3,
    schedule="every 1s",
)
COPY = Pipeline(name="copy", sql=f"SELECT sequence FROM {ALL.name}", mode="append", schedule="every 1s")
ROW = pa.schema([("sequence", pa.int64())])
GROUP = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])


class Killed(BaseException):
    """The process is gone."""


class Striking:
    """A store whose request number `strike` fails, or waits: before it reaches the store, or after."""

    def __init__(self, store, strike, *, after, act):
        self._store, self._left, self._after, self._act = store, strike, after, act
        self.struck = False

    def __getattr__(self, name):
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args, **options):
            self._left -= 1
            if self._left:
                return await found(*args, **options)
            self.struck = True
            if self._after:
                answer = await found(*args, **options)
                await self._act()
                return answer
            await self._act()
            return await found(*args, **options)

        return call


class ArrowDeriver:
    """Computes the three queries."""

    def __init__(self, store, world, most=None):
        self._store, self._world, self._left = store, world, most

    async def derive(self, asked):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise Killed
        if self._world.fail_with:
            raise self._world.fail_with
        await asyncio.sleep(self._world.takes)
        [(name, given)] = asked.inputs.items()
        if name == ALL.name:
            return await self._copy(asked, given)
        sequences = [
            one
            for part in given.new
            for one in (Sequences.from_text(part.given) if part.given else Sequences.from_bytes(part.stored.sequences))
        ] + (list(Sequences.from_text(given.held.given)) if given.held else [])
        if not asked.key:
            came, count = [], self._world.units
            for unit in range(count):
                table = pa.table({"sequence": [one for one in sequences if one % count == unit]}, schema=ROW)
                if len(table):
                    came.append(await self._write(asked, Unit(bucket=unit), table))
            apart = msgspec.structs.replace(asked, folder=f"{asked.folder}bad-")
            bad = [await self._write(apart, Unit(), table)] if self._world.quarantines else []
            columns = write_columns(ROW)
            figures = {"rows_in": len(sequences), "rows_out": len(sequences)}
            return Derived(came=came, columns=columns, quarantined=bad, quarantine_columns=columns, **figures)
        touched = {one % 5 % asked.buckets for one in sequences}
        old = [one for one in asked.files if one.unit.bucket in touched]
        groups = {}
        for one in old:
            for row in pq.read_table(io.BytesIO(await self._store.get(one.path))).to_pylist():
                groups[row["k"]] = row["n"], row["total"]
        for one in sequences:
            n, total = groups.get(one % 5, (0, 0))
            groups[one % 5] = n + 1, total + one
        came = []
        for bucket in sorted(touched):
            rows = [{"k": k, "n": n, "total": total} for k, (n, total) in groups.items() if k % asked.buckets == bucket]
            came.append(await self._write(asked, Unit(bucket=bucket), pa.Table.from_pylist(rows, schema=GROUP)))
        return Derived(
            came=came,
            gone=[one.path for one in old],
            columns=write_columns(GROUP),
            rows_in=len(sequences),
            rows_out=sum(one.rows for one in came),
        )

    async def _copy(self, asked, given):
        table = pa.concat_tables([await read_numbered(self._store, one.stored) for one in given.new])
        table = table.filter(pc.greater(table[SEQUENCE], given.after)).select(ROW.names)
        assert len(table) == given.rows
        came = [await self._write(asked, Unit(), table)]
        return Derived(came=came, columns=write_columns(ROW), rows_in=len(table), rows_out=len(table))

    async def pack(self, asked):
        self._world.packings += 1
        if self._world.hangs:
            await asyncio.Event().wait()
        if self._world.pack_with:
            raise self._world.pack_with
        units = []
        for files in asked.packs:
            unit = files[0].key
            if why := self._world.pack_fails.get(unit):
                units.append(PackedUnit(unit=unit, failed=why))
                continue
            refused = {one.path: why for one in files if (why := self._world.refused.get(one.path))}
            files = [one for one in files if one.path not in refused]
            parts = [await read_numbered(self._store, one) for one in files]
            came = await self._write(asked, Unit.from_text(unit), pa.concat_tables(parts))
            units.append(PackedUnit(unit=unit, came=[came], gone=[one.path for one in files], refused=refused))
        return PackedFiles(units=units)

    async def _write(self, asked, unit, table):
        content = io.BytesIO()
        pq.write_table(table, content)
        data = content.getvalue()
        digest = hashlib.sha256(data).hexdigest()
        path = f"{asked.folder}{unit.bucket}-{digest[:8]}.parquet"
        await self._store.put(path, data)
        return OutputFile(path=path, unit=unit, rows=len(table), bytes=len(data), sha256=digest)


async def read_numbered(store, one):
    """Return the rows of a file of a table with the numbers of the runs that made them."""
    rows = pq.read_table(io.BytesIO(await store.get(one.path)))
    if SEQUENCE in rows.column_names:
        return rows
    return rows.append_column(SEQUENCE, pa.repeat(pa.scalar(one.first, pa.int64()), len(rows)))


class Keeper(PipelineKeeper):
    """Without NATS: the requests of operators are in `requests`."""

    def __init__(self, requests, *args, **options):
        super().__init__(None, *args, **options)
        self.requests = requests

    async def _read_requests(self):
        return self.requests


class World:
    """An archive, its pipelines, and leaders of them one after the other."""

    def __init__(self, folder, pipelines=(ALL, SUMS)):
        self.folder = folder
        self.archive = Archived(folder=folder)
        self.config = CaptureConfig(stream=STREAM, store=str(folder), archive="orders", pipeline=list(pipelines))
        self.home = open_store(f"{folder}/_pipelines")
        self.head = HeadState()
        self.token, self.now = 0, NOW
        self.stored = set()
        self.requests = {}
        self.fail_with = self.pack_with = None
        self.pack_fails, self.refused, self.packings = {}, {}, 0  # by unit, by path
        self.takes = 0.0
        self.units, self.quarantines, self.hangs = 1, False, False

    def copy(self, folder):
        """Return this world as it is now, whose files were copied to another folder."""
        world = World(folder, self.config.pipeline)
        world.head.head, world.head.highest_token = self.head.head, self.head.highest_token
        world.token, world.now, world.stored = self.token, self.now, set(self.stored)
        for kind, state in self.archive.heads.items():
            world.archive.heads[kind].head = state.head
            world.archive.heads[kind].highest_token = state.highest_token
        world.archive.now = self.archive.now
        return world

    async def store(self, sequences):
        await store_block(self.archive.store, list(sequences))
        await self.archive.sweep()
        self.stored |= set(sequences)

    def lead(self, store=None, deriving=None, **options):
        """Return what the next leader runs: a function for all pipelines that are due. `options`: `PipelineLeading`."""
        self.token += 1
        store = store or self.home
        keeper = self.keeper = Keeper(self.requests, self.config, f"node-{self.token}", clock=lambda: self.now)
        leading = PipelineLeading(store, MemoryHead(self.token, self.head), f"node-{self.token}", **options)
        deriver = self.deriver = self.make_deriver(store, deriving)

        async def run():
            self.now += 10.0
            await keeper.run_due(leading, deriver)
            return dict(keeper.failing)

        return run

    def make_deriver(self, store, most):
        return ArrowDeriver(store, self, most)

    async def list_files(self):
        """Return the records of the files of all committed tables."""
        return (await load(self.home, await chain.read(self.home, self.head.head, Pipelines))).files

    async def read(self):
        """Return the committed tables with their rows, by name."""
        document = await load(self.home, await chain.read(self.home, self.head.head, Pipelines))
        rows = {}
        for one in document.files:
            data = await self.home.get(file_of(one).path)
            assert hashlib.sha256(data).hexdigest() == one.sha256
            rows.setdefault(one.stream, []).extend(pq.read_table(io.BytesIO(data)).to_pylist())
        return rows

    async def check(self):
        """Each table is what one run over all stored messages would have made."""
        rows = await self.read()
        for name in {"every", "copy"} & {one.name for one in self.config.pipeline}:
            assert sorted(one["sequence"] for one in rows.get(name, [])) == sorted(self.stored)
        groups = {k: [one for one in self.stored if one % 5 == k] for k in range(5)}
        expected = [{"k": k, "n": len(some), "total": sum(some)} for k, some in groups.items() if some]
        if SUMS.name in {one.name for one in self.config.pipeline}:
            assert sorted(rows.get("sums", []), key=lambda one: one["k"]) == expected


async def run_struck(run):
    """Run; return whether the leader lived, and led, to the end."""
    try:
        failing = await run()
    except (Killed, FencedError, LeadershipLostError):
        return False
    except CaptureError:
        return False
    return not failing
