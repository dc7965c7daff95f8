"""Repeated rows are masked by delete files, in the snapshot that adds their data files: each sequence once."""

import pytest
from exposing import sequences_of
from masked_blocks import Masked
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.manifest import ManifestContent

from capture.errors import ManifestError
from capture.iceberg import manifest_file, manifest_plan, snapshot
from capture.iceberg.avro_blocks import read_header
from capture.iceberg.manifest_list import read_list
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.snapshot import NewSnapshot, Opened
from capture.maintenance.compaction_plan import new_name


@pytest.fixture
def world(tmp_path):
    return Masked(tmp_path)


async def test_a_block_whose_first_rows_the_table_holds_is_there_without_them(world):
    await world.commit((1, 10))
    await world.commit((8, 20), (15, 30))
    table = await world.check()
    assert table.current_snapshot().summary.operation.value == "overwrite"
    assert {one.manifest.content for one in world.listed} == {ManifestContent.DATA, ManifestContent.DELETES}
    assert sequences_of(table, table.snapshots()[0].snapshot_id) == list(range(1, 11))
    found = table.scan(row_filter="sequence >= 9 and sequence <= 16", selected_fields=("sequence",)).to_arrow()
    assert sorted(found["sequence"].to_pylist()) == list(range(9, 17))


async def test_a_delete_file_goes_with_the_file_that_it_masks(world):
    [first] = await world.commit((1, 10))
    second, third = await world.commit((8, 20), (15, 30))
    await world.commit((1, 20), gone=[first, second])
    removed = {one.removeprefix(f"{world.base}/") for one in world.removed}
    assert {first, second} < removed
    assert len(removed) == 3
    table = await world.check()
    await world.commit(gone=[third])
    await world.check()
    assert sequences_of(table) != world.held


async def test_a_file_that_is_to_be_removed_must_be_there_itself_and_not_only_its_delete_file(world):
    await world.commit((1, 10))
    [second] = await world.commit((8, 20))
    files, one = MemoryFiles(), world.files[second][0]
    opened = await world.open([one])
    only = [listed for listed in opened.manifests if listed.manifest.content == ManifestContent.DELETES]
    new = NewSnapshot(world.metadata, files, new_name)
    with pytest.raises(ManifestError, match="no manifest holds"):
        new.change(of_these(opened, only), [], frozenset([f"{world.base}/{one.path}"]))


def of_these(opened, manifests):
    return Opened(manifests, opened.content, opened.merge)


@pytest.mark.parametrize("keys", [("eu",), ("eu", "us")])
async def test_manifests_of_delete_files_are_merged_too_and_not_with_those_of_data(world, monkeypatch, keys):
    for module in (manifest_plan, snapshot):
        for name, value in {"FAN": 3, "FULL": 8, "LARGEST": 12}.items():
            monkeypatch.setattr(module, name, value, raising=False)
    monkeypatch.setattr(manifest_file, "GROUP", 4)
    paths = []
    for number in range(12):
        paths += await world.commit((number * 5 + 1, number * 5 + 8), key=keys[number % len(keys)])
    await world.check()
    assert len(world.listed) <= 10
    await world.commit((1, 90), gone=paths[:7])
    table = await world.check()
    for one in table.current_snapshot().manifests(table.io):
        entries = one.fetch_manifest_entry(table.io)
        assert {entry.data_file.content.value for entry in entries} <= {one.content.value}


async def test_a_list_with_manifests_of_both_kinds_is_read_back(world):
    await world.commit((1, 10), (5, 12))
    table = await world.check()
    path = table.current_snapshot().manifest_list.removeprefix(f"{world.base}/")
    listed = read_list(await world.store.get(path))
    assert [one.encoded for one in listed] == [one.encoded for one in world.listed]
    assert [one.manifest.content for one in listed] == [one.manifest.content for one in world.listed]
    for one in world.listed:
        data = await world.store.get(one.manifest.manifest_path.removeprefix(f"{world.base}/"))
        assert read_header(new_decoder(data)).meta["content"] == one.manifest.content.name.lower()
