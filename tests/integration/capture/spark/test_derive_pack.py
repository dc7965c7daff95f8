"""Small files of tables to which rows are added, merged by Spark's driver: each row once, for each reader, at each commit."""

import asyncio
import os
import random
import signal
from collections import Counter

import msgspec
import pyarrow.parquet as pq
import pytest
from archived import STREAM
from derivations import Table, messages
from pipeline_world import World
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation

from capture.archive.iceberg_state import Expiry, archive_location, folder
from capture.archive.sequences import Sequences
from capture.errors import CaptureError, PipelineError, SparkError
from capture.iceberg import Exposer
from capture.pipelines.definition import Pipeline
from capture.pipelines.derivation import Packing
from capture.pipelines.document import record_of
from capture.pipelines.packing import FAN, plan

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

ROWS = Pipeline(
    name="every",
    sql=(
        "SELECT sequence, sequence % 3 AS part, cast(sequence AS DECIMAL(18,2)) / 4 AS quarter, time, headers, payload,"
        f" array(sequence, NULL) AS list, named_struct('x', subject, 'y', sequence) AS pair FROM {STREAM}"
    ),
    mode="append",
    partition=["part"],
    expect=["sequence % 5 <> 0"],
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


async def test_rows_are_in_few_files_and_each_comes_once_to_each_reader(driver, tmp_path):
    world, dice = SparkWorld(tmp_path, [ROWS, COPY, NEWEST], driver), random.Random(5)
    run, waiting = world.lead(), [*range(1, 61)]
    dice.shuffle(waiting)  # late messages too
    while waiting:
        new = sorted(waiting[: dice.choice([1, 1, 2])])
        waiting = waiting[len(new) :]
        await world.add(new)
        world.config = world.keeper.config = msgspec.structs.replace(
            world.config,
            pipeline=[ROWS, COPY, NEWEST]
            if not waiting
            else [ROWS, *dice.sample([COPY, NEWEST], dice.choice([0, 1, 2]))],
        )
        assert await run() == {}
        good = sorted(one for one in world.stored if one % 5)
        rows = world.scan("every")
        assert sorted(one["sequence"] for one in rows) == good
        assert all(one["quarter"] * 4 == one["sequence"] == one["pair"]["y"] == one["list"][0] for one in rows)
        assert all(one["part"] == one["sequence"] % 3 for one in rows)
    good = sorted(one for one in world.stored if one % 5)
    assert sorted(one["sequence"] for one in world.scan("copy")) == good
    newest = {part: [one for one in world.order if one % 5 and one % 3 == part] for part in range(3)}
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
