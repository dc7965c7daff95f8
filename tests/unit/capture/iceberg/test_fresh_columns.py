"""Typed columns in the fresh table: a commit adds and widens columns, and a block with another type waits."""

import archived
import pyarrow as pa
import pytest
from exposing import read_back
from fresh_world import ALL, STREAM, Leader, World

from capture.decoders import Decoding
from capture.decoders.json import decode as as_json
from capture.errors import CompactionError
from capture.formats import writer
from capture.ingest.record import Records
from capture.maintenance import fresh
from capture.maintenance.merge.schema_evolution import read_columns
from capture.testing import ArrowEngine


@pytest.fixture
def world(monkeypatch):
    """Return a world whose payloads are {"n": <sequence>, "m": <sequence>}."""

    def records(sequences):
        rows = [*sequences]
        payloads = [b'{"n": %d, "m": %d}' % (one, one) for one in rows]
        count = len(rows)
        return Records(
            STREAM, rows, rows, [b"a"] * count, [b""] * count, payloads, [1] * count, [b"r"] * count, [None] * count
        )

    monkeypatch.setattr(archived, "records", records)
    return World()


async def add(world, sequences, **columns):
    shape = pa.schema([*columns.items()])
    await world.block(sequences, made_by=writer("parquet", decode=Decoding(as_json, shape=shape, is_json=True)))
    world.now += 1


async def read(world, *names):
    """Return these columns of the current snapshot, by sequence; checks the rows of all snapshots."""
    await world.seen()
    engine = await read_back(world.store, (await world.committed()).iceberg[STREAM])
    rows = engine.scan(selected_fields=("sequence", *names)).to_arrow().to_pylist()
    return {row["sequence"]: tuple(row[name] for name in names) for row in rows}


async def test_a_fresh_commit_adds_and_widens_columns(world):
    leader = Leader(world)
    await world.block([1])
    await world.sweep()
    await leader.step()
    await add(world, [2], n=pa.int32())
    await world.sweep()
    assert (await leader.step()).shown == 1
    assert await read(world, "n") == {1: (None,), 2: (2,)}
    await add(world, [3], n=pa.int64(), m=pa.float64())
    await add(world, [3, 4], m=pa.float64())
    await world.sweep()
    assert (await leader.step()).shown == 2
    assert await read(world, "n", "m") == {1: (None, None), 2: (2, None), 3: (3, 3.0), 4: (None, 4.0)}
    columns = read_columns((await world.committed()).columns)
    assert [columns.field(name).type for name in "nm"] == [pa.int64(), pa.float64()]
    await leader.compact()
    assert (await world.committed()).columns
    assert await read(world, "n", "m") == {1: (None, None), 2: (2, None), 3: (3, 3.0), 4: (None, 4.0)}
    assert await world.settle() == [1, 2, 3, 4]


async def test_a_block_with_another_type_waits_for_the_merge(world):
    leader = Leader(world)
    await add(world, [1], n=pa.int64())
    await add(world, [2], n=pa.string())
    await world.sweep()
    report = await leader.step()
    assert (report.shown, report.waiting, leader.fresh.state.waiting) == (1, 1, {fresh.UNFIT: 1})
    assert await read(world, "n") == {1: (1,)}
    await leader.compact()
    assert await read(world, "n") == {1: (1,), 2: (None,)}
    assert await world.settle() == [1, 2]


class Meanwhile(ArrowEngine):
    """An engine beside which a block with these columns is shown while it merges."""

    def __init__(self, world, leader, **columns):
        super().__init__()
        self.world, self.leader, self.columns = world, leader, columns

    async def merge(self, store_url, groups):
        merged = await super().merge(store_url, groups)
        await add(self.world, [3, 4], **self.columns)
        await self.world.sweep()
        assert (await self.leader.step()).shown == 1
        return merged


async def start(world):
    """Return a leader whose table shows nothing and has no columns; a block with column n as text is to be merged."""
    leader = Leader(world)
    await add(world, [1, 2], n=pa.string())
    await world.sweep()
    leader.fresh._limit = lambda blocks: [one for one in blocks if one.first > 2]  # this block is not shown
    return leader


async def test_columns_that_come_while_a_merge_runs_are_kept(world):
    leader = await start(world)
    await leader.compact(Meanwhile(world, leader, m=pa.int64()))
    assert await read(world, "n", "m") == {1: (None, None), 2: (None, None), 3: (None, 3), 4: (None, 4)}
    columns = read_columns((await world.committed()).columns)
    assert [columns.field(name).type for name in "nm"] == [pa.string(), pa.int64()]
    assert await world.settle() == [1, 2, 3, 4]


async def test_a_merge_with_another_type_for_a_column_that_came_meanwhile_is_not_committed_and_runs_again(world):
    leader = await start(world)
    with pytest.raises(CompactionError, match="another type while the merge ran"):
        await leader.compact(Meanwhile(world, leader, n=pa.int64()))
    assert await read(world, "n") == {3: (3,), 4: (4,)}
    await leader.compact(policy=ALL)
    assert await read(world, "n") == {1: (None,), 2: (None,), 3: (3,), 4: (4,)}
    assert await world.settle() == [1, 2, 3, 4]
