"""Small files of tables to which rows are added, merged by Spark's driver: each reader has each row once, always."""

import asyncio
import random
import signal
from collections import Counter

import msgspec
import pyarrow.parquet as pq
import pytest
from archived import STREAM
from derivations import Table, messages
from pipeline_world import ALL, Killed, World, run_struck
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation
from spark_processes import send

from capture.archive.iceberg_state import Expiry, archive_location, folder
from capture.iceberg import Exposer
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Packing
from capture.pipelines.document import record_of
from capture.pipelines.packing import FAN
from natty.elections.guard import members

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session")]

ROWS = Pipeline(
    name="every",
    sql=(
        "SELECT sequence, sequence % 2 AS part, cast(sequence AS DECIMAL(18,2)) / 4 AS quarter, time, headers, payload,"
        f" array(sequence, NULL) AS list, named_struct('x', subject, 'y', sequence) AS pair FROM {STREAM}"
    ),
    mode="append",
    partition=["part"],
    expect=["sequence % 3 <> 0"],
    on_violation="quarantine",
    schedule="every 1s",
)
COPY = Pipeline(name="copy", sql="SELECT sequence, part FROM every", mode="append", schedule="every 1s")
NEWEST = Pipeline(
    name="newest",
    sql="SELECT part, last(sequence) AS newest, count(*) AS n FROM every GROUP BY part",
    mode="upsert",
    key="part",
    buckets=2,
    schedule="every 1s",
)
FOR_EVER = Expiry(keep_snapshots=10_000, keep_for=1e9)


class SparkWorld(World):
    """Its queries are computed by Spark, and other engines can read its tables."""

    def __init__(self, folder, pipelines, driver):
        super().__init__(folder, pipelines)
        self.driver, self.order = driver, []

    def make_deriver(self, store, most):
        return self.driver

    def lead(self):
        return super().lead(exposure=Exposer(self.home, FOR_EVER))

    async def add(self, sequences):
        await self.store(sequences)
        self.order += sequences

    def scan(self, name, snapshot_id=None):
        return self.reader(name).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()

    def reader(self, name):
        return StaticTable.from_metadata(f"{archive_location(self.home)}/{folder(name)}")


def appended(reader):
    """Return the rows that a reader finds that takes only what snapshots add, and skips those that change no row."""
    found = []
    for one in reader.snapshots():
        operation = one.summary.operation
        assert operation in (Operation.APPEND, Operation.REPLACE), operation
        if operation is Operation.APPEND:
            for manifest in one.manifests(reader.io):
                if manifest.added_snapshot_id == one.snapshot_id:
                    for entry in manifest.fetch_manifest_entry(reader.io, discard_deleted=True):
                        if entry.snapshot_id == one.snapshot_id:
                            found += pq.read_table(entry.data_file.file_path.removeprefix("file://")).to_pylist()
    return found


@pytest.mark.long
async def test_rows_are_in_few_files_and_each_comes_once_to_each_reader(driver, tmp_path):
    world, dice = SparkWorld(tmp_path, [ROWS, COPY, NEWEST], driver), random.Random(5)
    run, waiting = world.lead(), [*range(1, 35)]
    dice.shuffle(waiting)  # late messages too
    while waiting:
        await world.add([waiting.pop()])
        others = dice.sample([COPY, NEWEST], dice.choice([0, 1, 2]) if waiting else 2)
        world.keeper.config = msgspec.structs.replace(world.config, pipeline=[ROWS, *others])
        assert await run() == {}
        good = sorted(one for one in world.stored if one % 3)
        rows = world.scan("every")
        assert sorted(one["sequence"] for one in rows) == good
        assert all(one["quarter"] * 4 == one["sequence"] == one["pair"]["y"] == one["list"][0] for one in rows)
        assert all(one["part"] == one["sequence"] % 2 for one in rows)
    good = sorted(one for one in world.stored if one % 3)
    assert sorted(one["sequence"] for one in world.scan("copy")) == good
    newest = {part: [one for one in world.order if one % 3 and one % 2 == part] for part in range(2)}
    found = {one["part"]: (one["newest"], one["n"]) for one in world.scan("newest")}
    assert found == {part: (some[-1], len(some)) for part, some in newest.items()}
    await check_snapshots(world, good)
    files = Counter((one.stream, one.key) for one in await world.list_files())
    assert max(count for (name, _), count in files.items() if name != "newest") < FAN
    assert {name for name, _ in files} == {"every", "copy", "newest", "every__quarantine"}
    merged = {one.stream for one in await world.list_files() if one.first < one.last}
    assert merged == {"every", "copy", "every__quarantine"}


async def check_snapshots(world, good):
    bad = sorted(world.stored - set(good))
    for name, wanted in (("every", good), ("copy", good), ("every__quarantine", bad)):
        reader = world.reader(name)
        assert sorted(one["sequence"] for one in appended(reader)) == wanted
        rows = 0
        for one in reader.snapshots():
            found = [row["sequence"] for row in world.scan(name, one.snapshot_id)]
            assert len(set(found)) == len(found) >= rows
            rows = len(found)
        assert rows == len(wanted)
        assert not [one for one in reader.scan().to_arrow().column_names if one.startswith("__")]


async def pack(driver, table, records):
    """Merge these files as a leader has it done; return the rows of the merged ones."""
    asked = Packing(
        table=table.name,
        store=(table.store / "_pipelines").as_uri(),
        folder=f"table/{table.name}/merged-{len(records)}/",
        columns=table.columns,
        packs=[records],
    )
    [done] = (await driver.pack(asked)).units
    paths = [one.path for one in done.came]
    return done, [row for one in paths for row in pq.read_table(table.store / "_pipelines" / one).to_pylist()]


@pytest.mark.long
async def test_columns_that_came_later_are_null_in_earlier_rows_and_wider_types_hold_all(driver, store):
    table, records = (
        Table(driver, store, "SELECT sequence, n, s, l FROM S", schema="n INT, s STRUCT<a: INT>, l ARRAY<INT>"),
        [],
    )
    for number in range(1, 11):
        if number == 6:
            table.schema = "n BIGINT, s STRUCT<a: BIGINT, b: STRING>, l ARRAY<BIGINT>, more STRING"
            table.settings["sql"] = "SELECT sequence, n, s, l, more FROM S"
        body = {"n": number, "s": {"a": number, "b": "x"}, "l": [number, None], "more": "y"}
        done = await table.run([messages(store, f"m{number}", {number: body})])
        records += [record_of(one, "p", number) for one in done.came]
    done, rows = await pack(driver, table, records)
    assert done.gone == [one.path for one in records]
    later = [number > 5 for number in range(1, 11)]
    assert [(one["sequence"], one["n"], one["l"], one["__sequence"]) for one in rows] == [
        (number, number, [number, None], number) for number in range(1, 11)
    ]
    assert [one["s"] for one in rows] == [
        {"a": number, "b": "x" if is_later else None} for number, is_later in enumerate(later, 1)
    ]
    assert [one["more"] for one in rows] == ["y" if is_later else None for is_later in later]


@pytest.mark.long
async def test_a_small_file_that_was_changed_is_not_merged(driver, store):
    table = Table(driver, store, "SELECT sequence FROM S")
    records = []
    for number in (1, 2, 3):
        done = await table.run([messages(store, f"m{number}", {number: {}})])
        records += [record_of(one, "p", number) for one in done.came]
    path = store / "_pipelines" / records[1].path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done, rows = await pack(driver, table, records)
    assert [one["sequence"] for one in rows] == [1, 3]
    assert done.gone == [records[0].path, records[2].path]
    assert "was changed" in done.refused[records[1].path]


@pytest.mark.long
async def test_a_merge_that_is_given_up_does_not_end_spark(driver, store):
    table = Table(driver, store, "SELECT sequence FROM S")
    done = await table.run([messages(store, "m", {1: {}})])
    session, records = driver.session, [record_of(one, "p", 1) for one in done.came]
    merging = asyncio.create_task(pack(driver, table, records * 2))
    await asyncio.sleep(0)
    merging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await merging
    await driver.ping()
    assert driver.session == session is not None


class Struck:
    """Spark, whose processes are killed while it merges files, or right after that."""

    def __init__(self, driver, *, after):
        self._driver, self._after, self.struck = driver, after, 0

    async def derive(self, asked):
        return await self._driver.derive(asked)

    async def pack(self, asked):
        self.struck += 1
        pids = members(self._driver.session)
        if self._after:
            await self._driver.pack(asked)
        send(pids, signal.SIGKILL if self._after else signal.SIGSTOP)
        if self._after:
            await self._driver.kill()  # the next leader's Spark is another one: wait for the end of this
            raise Killed
        merging = asyncio.create_task(self._driver.pack(asked))
        await asyncio.sleep(0)
        send(pids, signal.SIGKILL)
        return await merging


@pytest.mark.parametrize("after", [False, True], ids=["spark", "leader"])
@pytest.mark.long
async def test_what_is_killed_while_files_are_merged_neither_loses_nor_doubles_a_row(driver, tmp_path, caplog, after):
    world = SparkWorld(tmp_path, [ALL], driver)
    run = world.lead()
    for sequence in range(1, FAN):
        await world.add([sequence])
        assert await run() == {}
    await world.add([FAN])
    world.driver = struck = Struck(driver, after=after)
    assert await run_struck(world.lead()) is not after
    assert struck.struck == 1
    assert ("Spark's driver has ended" in caplog.text) is not after
    await world.check()
    assert len(await world.list_files()) == FAN
    world.driver = driver
    await world.add([FAN + 1])
    assert await world.lead()() == {}
    await world.check()
    [merged] = await world.list_files()
    assert (merged.first, merged.last, merged.count) == (1, FAN + 1, FAN + 1)
    assert sorted(one["sequence"] for one in world.scan("every")) == [*range(1, FAN + 2)]
