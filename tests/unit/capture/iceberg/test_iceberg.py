"""The table as Iceberg's readers see it: snapshots, columns, and what may be deleted when."""

import ast
import logging
import re
from pathlib import Path

import msgspec
import polars
import pyarrow as pa
import pytest
from exposing import HOUR, expose_files, sequences_of, static_table, table_file

from capture.archive.chain import Retired
from capture.archive.iceberg_state import (
    Expiry,
    Iceberg,
    Snapshot,
    archive_location,
    folder,
    hint_path,
    list_expired,
    table_states,
    version_path,
    without,
)
from capture.archive.table import Table
from capture.errors import CompactionError
from capture.iceberg import Exposer
from capture.iceberg.manifest_plan import FAN
from capture.maintenance.merge.schema_evolution import write_columns
from capture.stores import open_store

DAY = 86_400.0


class World:
    """A store and its table, changed without a compaction."""

    def __init__(self, folder, **rule):
        self.store = open_store(str(folder))
        self.exposer = Exposer(self.store, Expiry(**rule), node="node-1")
        self.table = Table()
        self.now = float(HOUR)

    async def commit(self, *files, columns="", announced=True):
        """Make these the table's files; what goes is retired, as the compaction does it."""
        gone = [one.path for one in self.table.files if one not in files]
        retired = [*self.table.retired, *(Retired(path, self.now) for path in gone)]
        table = msgspec.structs.replace(self.table, files=list(files), retired=retired, columns=columns)
        exposed = await expose_files(self.exposer, self.table.files, table, token=7, now=self.now)
        self.table = msgspec.structs.replace(exposed, number=self.table.number + 1)
        if announced:
            await self.exposer.announce(self.table)

    async def file(self, *sequences, **more):
        return await table_file(self.store, list(sequences), name=str(sequences[0]), **more)

    @property
    def read(self):
        return static_table(self.store)

    @property
    def retired(self):
        return {one.path for one in self.table.retired}

    async def paths(self, prefix="iceberg/"):
        return {one.path for one in await self.store.list(prefix)}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


async def test_files_come_and_go_in_one_snapshot_that_says_whose_it_is(world):
    first, second, third = await world.file(1, 2), await world.file(3), await world.file(10)
    await world.commit(first, second, third)
    merged = await world.file(4, 1, 2, 3)
    await world.commit(third, merged)
    table = world.read
    assert sequences_of(table) == [1, 2, 3, 4, 10]
    appended, replaced = table.snapshots()
    assert (appended.summary.operation.value, replaced.summary.operation.value) == ("append", "overwrite")
    assert replaced.parent_snapshot_id == appended.snapshot_id
    said = replaced.summary.additional_properties
    assert (said["capture.epoch"], said["capture.leader"], said["capture.table"]) == ("7", "node-1", "2")
    counts = {
        name: said[name] for name in ("added-data-files", "deleted-data-files", "total-data-files", "total-records")
    }
    assert list(counts.values()) == ["1", "2", "2", "5"]
    assert merged.path not in world.retired
    assert sequences_of(table, appended.snapshot_id) == [1, 2, 3, 10]


async def test_snapshots_follow_one_another_in_time_also_under_a_leader_whose_clock_is_behind(world):
    await world.commit(first := await world.file(1))
    world.now -= 3600
    await world.commit(first, await world.file(2))
    before, after = (one.timestamp_ms for one in world.read.snapshots())
    assert before < after


async def test_what_retention_removes_leaves_by_a_snapshot_too_until_the_table_is_empty(world):
    first, second = await world.file(1), await world.file(2)
    await world.commit(first, second)
    await world.commit(second)
    assert world.read.current_snapshot().summary.operation.value == "delete"
    await world.commit()
    assert sequences_of(world.read) == []
    await world.commit(third := await world.file(3))
    assert sequences_of(world.read) == [3]
    assert third.path not in world.retired


async def test_columns_are_added_and_widened_and_keep_their_ids(world):
    def typed(**columns):
        return {pa.field(name, column.type): column for name, column in columns.items()}

    def columns(**types):
        return write_columns(pa.schema(list(types.items())))

    first = await world.file(1, 2, typed=typed(price=pa.array([7, 8], pa.int32())))
    await world.commit(first, columns=columns(price=pa.int32()))
    before = {field.name: field.field_id for field in world.read.schema().fields}
    wide = typed(price=pa.array([2**40], pa.int64()), place=pa.array([{"x": 1.5}], pa.struct([("x", pa.float64())])))
    second = await world.file(3, typed=wide)
    wider = columns(price=pa.int64(), place=pa.struct([("x", pa.float64())]))
    await world.commit(first, second, columns=wider)
    table = world.read
    after = {field.name: field.field_id for field in table.schema().fields}
    assert before.items() <= after.items()
    assert set(after) - set(before) == {"place"}
    rows = table.scan(selected_fields=("sequence", "price", "place")).to_arrow().sort_by("sequence").to_pydict()
    assert rows == {"sequence": [1, 2, 3], "price": [7, 8, 2**40], "place": [None, None, {"x": 1.5}]}
    assert table.scan(row_filter="price > 100", selected_fields=("sequence",)).to_arrow().num_rows == 1
    old = table.scan(snapshot_id=table.snapshots()[0].snapshot_id)
    assert "place" not in old.to_arrow().column_names
    assert {"_conflicts"} <= set(after)


async def test_a_second_snapshot_of_the_same_columns_adds_no_schema(world):
    first = await world.file(1)
    await world.commit(first)
    count = len(world.read.metadata.schemas)
    await world.commit(first, await world.file(2))
    assert len(world.read.metadata.schemas) == count


async def test_files_of_earlier_versions_have_their_key_and_interval_from_the_partition(world):
    await world.commit(await world.file(1, own=False, key="a/b c%"), await world.file(2, key="eu"))
    rows = world.read.scan().to_arrow().select(["sequence", "key", "interval"]).sort_by("sequence").to_pydict()
    assert rows["key"] == ["a/b c%", "eu"]
    assert [one.timestamp() for one in rows["interval"]] == [HOUR, HOUR]


async def test_readers_open_only_the_files_that_may_hold_what_they_ask_for(world):
    later = HOUR + 3600
    files = [await world.file(1, 2), await world.file(3, 4, key="us"), await world.file(5, interval=later)]
    await world.commit(*files)

    def planned(row_filter):
        return {task.file.file_path.rpartition("c-1-")[2] for task in world.read.scan(row_filter).plan_files()}

    assert planned("key = 'us'") == {"3.parquet"}
    assert planned("sequence >= 5") == {"5.parquet"}
    assert planned("subject = 's.2'") == {"1.parquet"}
    assert planned("interval >= '2026-11-21T04:00:00+00:00'") == {"5.parquet"}
    assert planned("message_id is not null") == set()


async def test_each_stream_is_a_table_of_its_own_and_encrypted_files_are_in_none(world):
    secret = msgspec.structs.replace(await world.file(9), format="parquet.enc")
    await world.commit(await world.file(1), await world.file(2, stream="T"), secret)
    assert sequences_of(static_table(world.store, "S")) == [1]
    assert sequences_of(static_table(world.store, "T")) == [2]
    before = world.table.iceberg
    await world.commit(*world.table.files, await world.file(3, stream="T"))
    assert world.table.iceberg["S"] == before["S"]
    assert sequences_of(static_table(world.store, "T")) == [2, 3]


# --- without a catalog -----------------------------------------------------------------------------------------------


async def test_the_version_hint_is_written_after_the_commit_and_made_up_for_later(world):
    first = await world.file(1)
    await world.commit(first)
    await world.commit(first, await world.file(2), announced=False)
    assert sequences_of(world.read) == [1]
    assert not await world.store.list("iceberg/S/metadata/v2.")
    await world.exposer.announce(world.table)
    assert sequences_of(world.read) == [1, 2]
    listed = await world.store.list()
    await world.exposer.announce(world.table)
    assert await world.store.list() == listed


async def test_polars_reads_it_too(world, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    await world.commit(await world.file(1, 2, own=False, key="a%/b"), await world.file(3))
    rows = polars.scan_iceberg(world.read).filter(polars.col("key") == "a%/b").select("sequence", "payload").collect()
    assert rows.to_dict(as_series=False) == {"sequence": [1, 2], "payload": [b"1", b"2"]}


# --- what may be deleted ---------------------------------------------------------------------------------------------


async def test_a_replaced_file_is_retired_only_when_the_last_snapshot_that_names_it_has_expired(tmp_path):
    world = World(tmp_path, keep_for=DAY)
    first, second = await world.file(1), await world.file(2)
    await world.commit(first)
    world.now += 100
    await world.commit(second)
    assert first.path not in world.retired
    assert first.path in world.table.list_named()
    world.now += DAY - 1
    assert not world.exposer.is_due(world.table, world.now)
    world.now += 1
    assert world.exposer.is_due(world.table, world.now)
    lists = {path for path in await world.paths() if "/snap-" in path}
    await world.commit(second)
    assert first.path in world.retired
    assert next(one.since for one in world.table.retired if one.path == first.path) == world.now
    assert len(lists & world.retired) == 1
    assert [one.snapshot_id for one in world.read.snapshots()] == [world.table.iceberg["S"].snapshots[-1].id]
    assert not world.exposer.is_due(world.table, world.now)


async def test_all_that_is_not_retired_is_named_and_all_that_is_named_is_there(world):
    """Else clean-up would delete what a reader needs, or never delete something."""
    files = []
    for number in range(1, 2 * FAN + 4):
        files = [*files[number % 3 == 0 :], await world.file(number)]
        world.now += DAY / 4
        await world.commit(*files)
        assert world.table.list_named() == await world.paths() | await world.paths("table/")
        table = world.read
        assert len(table.current_snapshot().manifests(table.io)) <= FAN + 2
        if number % 8 == 0:
            leading = {hint_path("S"), version_path("S", world.table.iceberg["S"].number)}
            assert world.table.list_named() - world.retired == await needed(world, table) | leading
    assert 4 <= len(world.read.snapshots()) <= 6
    assert sequences_of(world.read) == sorted(one.first for one in files)


async def needed(world, table):
    """Return the paths of all that Iceberg's readers open, of every snapshot that is left."""
    locations = set()
    for snapshot in table.snapshots():
        locations.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            locations.add(manifest.manifest_path)
            locations |= {one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io)}
    base = f"{archive_location(world.store)}/"
    return {world.table.iceberg["S"].metadata, *(one.removeprefix(base) for one in locations)}


def snapshots(*made):
    return [
        Snapshot(id=number, made=at, objects={f"list-{number}": "", f"m-{number}": ""})
        for number, at in enumerate(made)
    ]


@pytest.mark.parametrize(
    ("keep_snapshots", "keep_for", "now", "expired"),
    [
        (1, 0.0, 30.0, 2),
        (1, 10.0, 30.0, 2),
        (1, 10.0, 29.9, 1),
        (1, 10.1, 30.0, 1),
        (1, 20.1, 30.0, 0),
        (2, 0.0, 30.0, 1),
    ],
)
def test_a_snapshot_expires_some_time_after_another_one_took_its_place(keep_snapshots, keep_for, now, expired):
    rule = Expiry(keep_snapshots=keep_snapshots, keep_for=keep_for)
    three = snapshots(0.0, 10.0, 20.0)
    assert list_expired(three, rule, now) == [one.id for one in three[:expired]]
    assert list_expired(snapshots(0.0), rule, 1e9) == []


def test_what_a_later_snapshot_names_stays_when_an_earlier_one_goes():
    first, second, third = snapshots(0.0, 1.0, 2.0)
    first = msgspec.structs.replace(first, dropped=["list-0", "file"])
    second = msgspec.structs.replace(second, dropped=["list-1", "m-0"])
    left, gone = without([first, second, third], [first.id])
    assert gone == ["list-0", "file"]
    assert left[0].objects.keys() == {"m-0", "list-1", "m-1"}
    left, gone = without([first, second, third], [first.id, second.id])
    assert gone == ["list-0", "file", "list-1", "m-0"]
    assert left[0].objects.keys() == {"m-1", "list-2", "m-2"}


# --- where something is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [".metadata.json", "/snap-", "-m.avro"])
async def test_what_is_gone_is_noticed_by_the_next_leader_and_made_anew_of_the_archives_own_documents(
    world, caplog, part
):
    first, second = await world.file(1), await world.file(2)
    await world.commit(first)
    await world.commit(first, second)
    before = world.table.iceberg["S"]
    path = next(path for path in before.objects() if part in path)
    await world.store.delete(path)
    world.exposer = Exposer(world.store)
    assert not world.exposer.is_due(world.table, world.now)
    with caplog.at_level(logging.ERROR):
        await world.exposer.announce(world.table)
    assert f"is created again, without its history: {path} is missing" in caplog.text
    assert world.exposer.is_due(world.table, world.now)
    await world.commit(first, second)
    assert sequences_of(world.read) == [1, 2]
    assert before.objects().keys() <= world.retired
    assert not {first.path, second.path} & world.retired
    assert not world.exposer.is_due(world.table, world.now)


@pytest.mark.parametrize("part", [".metadata.json", "/snap-", "-m.avro"])
@pytest.mark.parametrize("announced", [True, False])
async def test_what_was_changed_is_made_anew_by_the_commit_that_opens_it(world, caplog, part, announced):
    first, second = await world.file(1), await world.file(2)
    await world.commit(first)
    before = world.table.iceberg["S"]
    path = next(path for path in before.objects() if part in path)
    await world.store.put(path, await world.store.get(path) + b" ", if_absent=False)
    await world.store.put(hint_path("S"), b"0", if_absent=False)
    world.exposer = Exposer(world.store)
    with caplog.at_level(logging.ERROR):
        if announced:
            await world.exposer.announce(world.table)
        await world.commit(second)
    assert caplog.text.count("is created again, without its history") == 1
    assert f"{path} was changed: its SHA-256 is not the one that the table names" in caplog.text
    assert sequences_of(world.read) == [2]
    assert before.objects().keys() <= world.retired
    assert second.path not in world.retired


async def test_an_archive_that_was_moved_has_its_locations_written_anew(world):
    first = await world.file(1)
    await world.commit(first)
    world.exposer = Exposer(world.store, Expiry(location="s3://bucket/lake/"))
    assert world.exposer.is_due(world.table, world.now)
    await world.commit(first)
    exposed = world.table.iceberg["S"]
    assert exposed.location == "s3://bucket/lake/iceberg/S"
    assert not world.exposer.is_due(world.table, world.now)
    assert first.path not in world.retired
    assert b"file://" not in await world.store.get(exposed.metadata)


async def test_a_file_that_is_not_what_its_record_says_is_not_exposed(world):
    first = await world.file(1)
    await world.store.put(first.path, b"x" * first.bytes, if_absent=False)
    with pytest.raises(CompactionError, match="has no Parquet footer"):
        await world.commit(first)
    other = msgspec.structs.replace(await world.file(2, 3), count=3)
    with pytest.raises(CompactionError, match="has 2 rows by its footer, its record says 3"):
        await world.commit(other)
    assert await world.paths() == set()


async def test_the_docs_programs_read_it(world, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    await world.commit(await world.file(999, 1000, 1001), await world.file(1002, key="us"))
    page = (Path(__file__).parents[4] / "docs" / "table.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    place = f"{archive_location(world.store)}/{folder('S')}"
    scope, answers = {}, []
    for program in programs[:3]:  # of the others, one is run by acceptance/examples/test_pages_python.py
        tree = ast.parse(program.replace("file:///var/lib/orders/iceberg/ORDERS", place))
        last = ast.Expression(tree.body.pop().value)
        exec(compile(tree, "table.md", "exec"), scope)
        answers.append(eval(compile(last, "table.md", "eval"), scope))
    by_pyiceberg, by_polars, by_duckdb = answers
    assert by_pyiceberg["sequence"].to_pylist() == [1000, 1001]
    assert by_polars["sequence"].to_list() == [999, 1000, 1001]
    assert sorted(by_duckdb) == [("eu", 3), ("us", 1)]


def test_what_is_told_of_a_table_says_when_a_snapshot_of_the_past_goes():
    past, now = Snapshot(id=2**62 + 1, made=100.0, objects={}), Snapshot(id=2**62 + 3, made=400.0, objects={})
    exposed = Iceberg(location="s3://lake/iceberg/S", number=7, metadata="", sha256="", snapshots=[past, now])
    [told] = table_states({"S": exposed}, Expiry(keep_for=60.0))
    assert (told.stream, told.location, told.snapshots) == ("S", "s3://lake/iceberg/S", 2)
    assert (told.current, told.made, told.expires) == (str(2**62 + 3), 400.0, 460.0)
    [kept] = table_states({"S": exposed}, Expiry(keep_for=60.0, keep_snapshots=2))
    assert kept.expires is None
