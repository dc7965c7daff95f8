"""What a commit opens and writes of an Iceberg table with many manifests, against a plain model of it."""

import json
from hashlib import sha256
from random import Random

import msgspec
import polars
import pyarrow as pa
import pytest
from exposing import HOUR, expose_files, sequences_of
from iceberg_model import World, needed
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    PartitionFieldSummary,
    write_manifest,
    write_manifest_list,
)

from capture.archive.table import Table
from capture.iceberg import exposer, manifest_file, manifest_plan, snapshot
from capture.iceberg.manifest_plan import FAN, FULL, LARGEST, count_live, list_to_merge
from capture.iceberg.memory_catalog import MemoryFiles
from capture.maintenance.merge.schema_evolution import write_columns


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def low(monkeypatch):
    """Limits that a table of some dozen files reaches."""
    for module in (manifest_plan, snapshot, exposer):
        for name, value in {"FAN": 3, "FULL": 8, "LARGEST": 12}.items():
            monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setattr(manifest_file, "GROUP", 4)


# --- which objects a commit opens ------------------------------------------------------------------------------------


async def test_an_append_opens_the_metadata_and_the_list_and_its_own_leaders_next_one_opens_nothing(world):
    for _ in range(FAN - 2):
        await world.commit([await world.file()])
    before = world.table.iceberg["S"]
    world.new_leader()
    await world.commit([await world.file()])
    assert [path.rpartition("/")[2].split("-")[0] for path in world.read[1:]] == ["snap"]
    assert world.read[0] == before.metadata
    assert [one for one in world.written if one.endswith("-m.avro")] == world.written[:1]
    assert len(world.written) == 3  # a manifest, the list, the metadata
    await world.commit([await world.file()])
    assert world.read == []
    world.check(world.table.files[-1:])


async def test_a_replacement_opens_only_the_manifests_that_hold_its_files(world):
    hours = [[await world.file(interval=HOUR + 3600 * hour) for _ in range(2)] for hour in range(6)]
    for files in hours:
        await world.commit(files)
    gone = [*hours[1], hours[4][0]]
    holding = world.holding(gone)
    assert len(holding) == 2
    world.new_leader()
    came = [await world.file(rows=3)]
    await world.commit(came, gone)
    assert {path for path in world.read if path.endswith("-m.avro")} == holding
    assert sum(path.endswith("-m.avro") for path in world.written) == 2  # what came and went; what is left of two
    world.check(came, gone)
    rest = world.holding(world.table.files)
    assert world.holding(hours[0] + hours[2]) <= rest - holding


async def test_files_of_one_key_and_interval_are_found_by_their_sequences(world):
    files = [[await world.file(), await world.file()] for _ in range(6)]
    for part in files:
        await world.commit(part)
    holding = world.holding(files[3])
    world.new_leader()
    await world.commit([], files[3])
    assert {path for path in world.read if path.endswith("-m.avro")} == holding
    world.check([], files[3])


async def test_files_of_near_sequences_are_found_by_their_key_and_interval(world):
    first, late, other, last = (
        await world.file(),
        await world.file(interval=HOUR - 86_400),
        await world.file(key="us"),
        await world.file(),
    )
    for part in ([first, last], [late], [other]):
        await world.commit(part)
    for gone in ([late], [other]):
        holding = world.holding(gone)
        world.new_leader()
        await world.commit([], gone)
        assert {path for path in world.read if path.endswith("-m.avro")} == holding
        world.check([], gone)


async def test_an_expiry_alone_opens_neither_lists_nor_manifests(world):
    first, second = await world.file(), await world.file()
    await world.commit([first])
    await world.commit([second])
    last = world.table.iceberg["S"].snapshots[-1].id
    world.new_leader()
    world.now += 86_400.0
    assert world.exposer.is_due(world.table, world.now)
    await world.commit()
    assert world.read == [path for path in world.read if path.endswith(".metadata.json")]
    assert [one.id for one in world.table.iceberg["S"].snapshots] == [last]
    assert [one.snapshot_id for one in world.reader.snapshots()] == [last]


async def test_a_full_manifest_is_copied_without_the_files_that_go_and_not_mixed_with_others(world, low):
    old, late = [[await world.file(interval=HOUR + day * 86_400) for _ in range(10)] for day in (0, 9)]
    await world.commit(old)
    await world.commit(late)
    await world.commit([], [old[3], late[0]])
    world.check([], [old[3], late[0]])
    held = [world.holding([one]) for one in (old[0], late[1])]
    assert held[0] != held[1]
    await world.commit([], [old[4]])
    world.check([], [old[4]])


async def test_manifests_are_merged_when_there_are_many_small_ones_and_no_full_one_is_opened(world, low):
    full = [await world.file() for _ in range(9)]
    await world.commit(full)
    kept = world.holding(full)
    for _ in range(12):
        world.new_leader()
        came = [await world.file()]
        await world.commit(came)
        world.check(came)
        assert len(world.manifests()) <= 3 + 2  # small ones, the full one, and one that has become full
        assert not kept & set(world.read)
        assert kept == world.holding(full)


def listed(number, files, **more):
    summary = PartitionFieldSummary(False, False, b"", b"")
    known = {"manifest_path": f"s3://lake/{number}-m.avro", "manifest_length": 4000, "partition_spec_id": 0}
    counts = {"added_files_count": 0, "existing_files_count": files, "deleted_files_count": 0}
    rows = {"added_rows_count": 0, "existing_rows_count": 0, "deleted_rows_count": 0}
    order = {"sequence_number": number, "min_sequence_number": number, "added_snapshot_id": number}
    order |= {"content": ManifestContent.DATA}
    return ManifestFile.from_args(**known | counts | rows | order | {"partitions": [summary, summary]} | more)


@pytest.mark.long
def test_the_number_of_small_manifests_stays_low_over_many_appends_and_each_merge_is_bounded():
    manifests, most, copied = [], 0, 0
    for number in range(1, 30_001):
        merged = list_to_merge(manifests)
        paths = {one.manifest_path for one in merged}
        total = sum(map(count_live, merged))
        assert total <= LARGEST
        copied += total
        manifests = [one for one in manifests if one.manifest_path not in paths]
        manifests += [listed(f"{number}m", total, sequence_number=number)] if total else []
        manifests.append(listed(number, 1))
        most = max(most, sum(count_live(one) < FULL for one in manifests))
    assert most <= 3 * FAN
    assert len(manifests) <= 3 * FAN + 30_000 / FULL
    assert sum(map(count_live, manifests)) == 30_000
    assert copied <= 3 * 30_000


def test_manifests_of_many_bytes_and_those_without_files_are_not_merged():
    assert list_to_merge([listed(number, 1, manifest_length=8 * 1024 * 1024) for number in range(FAN)]) == []
    assert list_to_merge([listed(number, 0) for number in range(FAN)]) == []
    assert len(list_to_merge([listed(number, 1) for number in range(FAN)])) == FAN
    assert len(list_to_merge([listed(number, FULL - 1) for number in range(FAN)])) == LARGEST // (FULL - 1)


# --- against a model -------------------------------------------------------------------------------------------------


LONG = pytest.mark.long


@pytest.mark.parametrize(("seed", "steps"), [(0, 16), *(pytest.param(seed, 60, marks=LONG) for seed in range(1, 5))])
async def test_any_appends_replacements_expiries_and_merges_leave_what_the_model_says(tmp_path, low, seed, steps):
    world, random = World(tmp_path, keep_for=600.0), Random(seed)
    typed = {}
    for step in range(steps):
        world.now += random.choice([1, 100, 400])
        if random.random() < 0.3:
            world.new_leader()
        if step == steps // 2:  # a column comes
            typed = {pa.field("price", pa.int64()): pa.array([7], pa.int64())}
            world.columns = write_columns(pa.schema([("price", pa.int64())]))
        size = random.choice([0, 1, 1, 2, 3, 15])
        hours = [HOUR + 3600 * random.choice([step // 8, step // 8, 0]) for _ in range(size)]
        came = [await world.file(key=random.choice("abc"), interval=hour, typed=typed) for hour in hours]
        gone = random.sample(world.table.files, min(len(world.table.files), random.choice([0, 0, 1, 2, 9])))
        await world.commit(came, gone)
        world.known = world.ids if world.table.iceberg else {}
        if came or gone:
            world.check(came, gone)
        if world.table.iceberg:
            assert world.table.list_named() == await world.paths("iceberg/", "table/")
            assert world.table.list_named() - {one.path for one in world.table.retired} == await needed(world)
            assert len(world.manifests()) <= 2 * 3 + 3 + len(world.table.files) / 4
    rows = sorted(one.first for one in world.table.files)
    assert sequences_of(world.reader) == rows
    assert sorted(polars.scan_iceberg(world.reader).select("sequence").collect()["sequence"]) == rows
    for one in world.reader.snapshots():
        assert len(sequences_of(world.reader, one.snapshot_id)) == int(one.summary["total-records"])


# --- state of earlier versions, and state that is not right ----------------------------------------------------------


async def test_a_file_that_no_manifest_holds_makes_the_table_be_created_again(world, caplog):
    first, second, third = [await world.file() for _ in range(3)]
    await world.commit([first])
    await expose_files(world.exposer, [third], Table(iceberg=world.table.iceberg), now=HOUR)
    assert "no manifest holds" in caplog.text
    assert third.path in caplog.text
    await world.commit([second])
    assert sequences_of(world.reader) == [1, 2]


async def as_written_earlier(world):
    """Make the table's manifests one, as earlier versions did: entries of every status, and a name without a range."""
    table, exposed = world.reader, world.table.iceberg["S"]
    current = table.current_snapshot()
    entries = [
        entry
        for one in current.manifests(table.io)
        for entry in one.fetch_manifest_entry(table.io, discard_deleted=False)
    ]
    location = f"{exposed.location}/metadata/0123456789abcdef0123456789abcdef-m.avro"
    files, number = MemoryFiles(), current.snapshot_id
    with write_manifest(2, table.spec(), table.schema(), files.new_output(location), number, "deflate") as writer:
        for one in entries:
            own = one.snapshot_id == number
            status = one.status if own else ManifestEntryStatus.EXISTING
            since = None if own and status == ManifestEntryStatus.ADDED else one.sequence_number
            writer.add_entry(
                ManifestEntry.from_args(
                    status=status,
                    snapshot_id=one.snapshot_id,
                    sequence_number=since,
                    file_sequence_number=since,
                    data_file=one.data_file,
                )
            )
    with write_manifest_list(
        2, files.new_output(current.manifest_list), number, None, current.sequence_number, "deflate"
    ) as lists:
        lists.add_manifests([writer.to_manifest_file()])
    newest = exposed.snapshots[-1]
    named = {one.manifest_path for one in current.manifests(table.io)}
    for one in files.written:
        await world.store.put(world.path(one), files.content[one], if_absent=False)
    objects = {world.path(one): sha256(files.content[one]).hexdigest() for one in files.written}
    for one in exposed.snapshots[:-1]:
        assert not named & one.objects.keys()
    snapshots = [*exposed.snapshots[:-1], msgspec.structs.replace(newest, objects=objects)]
    iceberg = {"S": msgspec.structs.replace(exposed, snapshots=snapshots)}
    world.table = msgspec.structs.replace(world.table, iceberg=iceberg)
    world.new_leader()


async def test_a_table_of_an_earlier_version_is_continued_with_its_history(world, caplog):
    first = [await world.file(key=key) for key in "ab"]
    await world.commit(first)
    second = [await world.file(key="c")]
    await world.commit(second, first[:1])
    await as_written_earlier(world)
    world.check(second, first[:1])
    third = [await world.file(key="d")]
    await world.commit(third)
    world.check(third)
    assert not any(path.endswith("-m.avro") for path in world.read)
    await world.commit([], second)
    world.check([], second)
    assert [path for path in world.read if path.endswith("-m.avro")] == [
        "iceberg/S/metadata/0123456789abcdef0123456789abcdef-m.avro"
    ]
    await world.commit([], first[1:])
    world.check([], first[1:])
    assert [len(sequences_of(world.reader, one.snapshot_id)) for one in world.reader.snapshots()] == [2, 2, 3, 2, 1]
    assert "created again" not in caplog.text


async def test_a_manifest_of_another_schema_is_read_by_its_own(world, monkeypatch):
    """As when pyiceberg adds a field to the entries that it writes."""
    first = [await world.file() for _ in range(3)]
    await world.commit(first)
    monkeypatch.setattr(manifest_file._records(), "_header", "another")
    await world.commit([], first[:1])
    world.check([], first[:1])
    await world.commit([], first[1:2])
    world.check([], first[1:2])


@pytest.mark.parametrize("total", ["total-data-files", "total-records"])
async def test_a_table_whose_summary_does_not_add_up_is_created_again(world, caplog, total):
    files = [await world.file() for _ in range(2)]
    await world.commit(files[:1])
    exposed = world.table.iceberg["S"]
    metadata = json.loads(await world.store.get(exposed.metadata))
    metadata["snapshots"][-1]["summary"][total] = "7"
    data = json.dumps(metadata).encode()
    await world.store.put(exposed.metadata, data, if_absent=False)
    exposed = msgspec.structs.replace(exposed, sha256=sha256(data).hexdigest())
    world.table = msgspec.structs.replace(world.table, iceberg={"S": exposed})
    world.new_leader()
    await world.commit(files[1:])
    assert "is created again" in caplog.text
    assert "its summary says" in caplog.text
    assert sequences_of(world.reader) == [1, 2]
