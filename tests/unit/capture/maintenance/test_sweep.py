import json

import msgspec
import pytest
from indexed import read_whole
from sweeping import GRACE, NOW, OLD, YOUNG, block, committed, listing, sweep, write

from capture.archive.chain import Retired, document_path
from capture.archive.manifest import Manifest, encode, entry_path
from capture.archive.retention import record_removed
from capture.archive.table import Table
from capture.errors import FencedError
from capture.maintenance.sweep import MOST_SAID, plan_sweep, read_entries
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead


def plan(manifest, entries, objects, table=None):
    return plan_sweep(manifest, table, entries, objects, now=NOW, grace=GRACE)


def test_a_stored_block_is_adopted_and_its_entry_removed():
    one = block(1)
    planned = plan(Manifest(), [one], listing(one, entries=[one]))
    assert planned.adopt == [one]
    assert planned.manifest.blocks == [one]
    assert planned.remove_entries == [entry_path(one.path)]
    assert planned.remove_objects == []


def test_with_nothing_new_nothing_is_committed():
    one = block(1)
    planned = plan(Manifest(blocks=[one]), [], listing(one, at=OLD))
    assert planned.manifest is None
    assert planned.remove_objects == planned.remove_entries == planned.dangling == []


@pytest.mark.parametrize("manifest", [Manifest(blocks=[block(1)]), Manifest(retired=[Retired(block(1).path, NOW)])])
def test_the_entry_of_a_block_that_is_or_was_known_is_removed_and_never_adopted_again(manifest):
    planned = plan(manifest, [block(1)], listing(block(1), entries=[block(1)]))
    assert planned.adopt == []
    assert planned.remove_entries == [entry_path(block(1).path)]


def test_a_block_without_an_entry_is_left_to_its_writer_until_the_grace_is_over():
    assert plan(Manifest(), [], listing(block(1), at=YOUNG)).remove_objects == []
    planned = plan(Manifest(), [], listing(block(1), "table/x/c-1-aa.parquet", "elsewhere/x", at=OLD))
    assert planned.remove_objects == [block(1).path]  # the table's files are the compaction's


def test_an_old_block_whose_entry_waits_is_no_leftover_even_if_the_entry_could_not_be_read():
    assert plan(Manifest(), [], listing(block(1), at=OLD, entries=[block(1)])).remove_objects == []


def test_an_entry_whose_block_is_not_there_is_reported_and_left_alone():
    planned = plan(Manifest(), [block(1)], listing(entries=[block(1)]))
    assert planned.dangling == [block(1).path]
    assert planned.manifest is None
    assert planned.remove_entries == []


def test_an_entry_whose_block_is_gone_and_whose_messages_are_elsewhere_is_removed():
    gone = block(2, 3)
    planned = plan(Manifest(blocks=[block(1, 2)]), [gone], listing(entries=[gone]), Table(number=1, files=[block(3)]))
    assert (planned.dangling, planned.remove_entries) == ([], [entry_path(gone.path)])
    elsewhere = Manifest(blocks=[block(1, 2), block(3, stream="T")])
    assert plan(elsewhere, [gone], listing(entries=[gone])).dangling == [gone.path]
    retained = Manifest(blocks=[block(1, 2)], removed=record_removed([], [block(3)], NOW))
    assert plan(retained, [gone], listing(entries=[gone])).dangling == []


def test_a_retired_object_is_deleted_after_its_grace_and_forgotten_when_it_is_gone():
    retired = Manifest(retired=[Retired(block(1).path, OLD), Retired(block(2).path, YOUNG)])
    planned = plan(retired, [], listing(block(1), block(2), at=OLD))
    assert planned.remove_objects == [block(1).path]
    assert planned.manifest is None
    assert plan(retired, [], listing(block(2), at=OLD)).manifest.retired == [Retired(block(2).path, YOUNG)]


def test_a_retired_object_is_not_forgotten_while_its_entry_is_there():
    retired = Manifest(retired=[Retired(block(1).path, OLD)])
    planned = plan(retired, [], listing(entries=[block(1)]))
    assert planned.manifest is None
    assert planned.remove_entries == [entry_path(block(1).path)]


def test_old_manifests_are_removed():
    objects = listing(*(document_path(Manifest, number, 1) for number in range(1, 31)), at=OLD)
    assert plan(Manifest(number=30), [], objects).remove_objects == [
        document_path(Manifest, n, 1) for n in range(1, 11)
    ]


def test_a_block_that_the_table_has_consumed_is_let_go_and_deleted_a_grace_time_later():
    table = Table(number=7, consumed=[block(1).path, "blocks/forgotten"])
    manifest = Manifest(blocks=[block(1), block(2)])
    planned = plan(manifest, [], listing(block(1), block(2), at=OLD), table)
    assert planned.manifest.blocks == [block(2)]
    assert planned.manifest.retired == [Retired(block(1).path, NOW)]
    assert planned.manifest.of_table == 7
    assert planned.let_go == 1
    assert planned.remove_objects == []
    assert plan(planned.manifest, [], listing(block(1), at=OLD), table).manifest is None


def test_a_table_that_is_older_than_the_last_one_takes_nothing_back():
    table = Table(number=6, consumed=[block(1).path])
    planned = plan(Manifest(blocks=[block(1)], of_table=7), [], listing(block(1)), table)
    assert planned.manifest.blocks == []
    assert planned.manifest.of_table == 7


def test_the_entry_of_a_consumed_block_is_removed_and_never_adopted_even_if_the_manifest_has_forgotten_the_block():
    table = Table(number=7, consumed=[block(1).path])
    planned = plan(Manifest(of_table=7), [block(1)], listing(block(1), at=OLD, entries=[block(1)]), table)
    assert planned.adopt == []
    assert planned.manifest is None
    assert planned.remove_entries == [entry_path(block(1).path)]
    assert planned.remove_objects == []
    assert plan(Manifest(of_table=7), [], listing(block(1), at=OLD), table).remove_objects == [block(1).path]


def test_what_format_1_told_of_its_table_stays_until_there_is_a_table():
    old = Manifest(table=[block(8)], retired=[Retired("table/x", OLD), Retired("blocks/gone", OLD)])
    planned = plan(old, [], listing())
    assert planned.manifest.table == [block(8)]
    assert planned.manifest.retired == [Retired("table/x", OLD)]
    planned = plan(planned.manifest, [], listing(), Table(number=1, files=[block(8)]))
    assert (planned.manifest.table, planned.manifest.retired, planned.manifest.of_table) == ([], [], 1)


async def test_a_sweep_adopts_what_nodes_stored():
    store, pointer = MemoryStore(clock=lambda: NOW), MemoryHead()
    await write(store, block(1, 5), block(6, 8))
    report = await sweep(store, pointer, now=NOW, grace=GRACE, node="leader-1")
    assert (report.adopted, report.messages, report.removed_entries) == (2, 8, 2)
    manifest = await committed(store, pointer)
    assert manifest.blocks == [block(1, 5), block(6, 8)]
    assert (manifest.leader, manifest.created) == ("leader-1", NOW)
    assert await store.list("_entries/") == []


async def test_a_second_sweep_finds_nothing_to_do():
    store, pointer = MemoryStore(clock=lambda: NOW), MemoryHead()
    await write(store, block(1))
    first = await sweep(store, pointer, now=NOW)
    second = await sweep(store, pointer, now=NOW)
    assert second.head == first.head
    assert (second.adopted, second.removed_entries, second.removed_objects) == (0, 0, 0)


async def test_a_deposed_leader_removes_nothing():
    store, state = MemoryStore(clock=lambda: NOW), HeadState()
    old, new = MemoryHead(1, state), MemoryHead(2, state)
    await new.read()
    await write(store, block(1))
    before = {one.path for one in await store.list("_entries/")}
    with pytest.raises(FencedError):
        await sweep(store, old, now=NOW)
    assert {one.path for one in await store.list("_entries/")} == before
    assert state.head is None


async def test_a_bad_entry_is_reported_and_stops_nobody():
    store, pointer = MemoryStore(clock=lambda: NOW), MemoryHead()
    await write(store, block(1), block(2), block(3))
    await store.put(entry_path(block(1).path), b"{half", if_absent=False)
    await store.put(entry_path(block(2).path), encode(block(9)), if_absent=False)
    report = await sweep(store, pointer, now=NOW)
    assert (await committed(store, pointer)).blocks == [block(3)]
    assert [text.split(".json ")[1].split(":")[0].split(",")[0] for text in report.unreadable] == [
        "is damaged",
        "is the entry of another block",
    ]
    assert len(await store.list("_entries/")) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sequences": "AAAA"}, "not a set of sequences"),
        ({"sequences": "no base64"}, "Invalid base64"),
        ({"sequences": ""}, "its sequences are not from 1 to 1"),
        ({"first": 2}, "its sequences are not from 2 to 1"),
        ({"interval": 2**70}, "$.interval"),
        ({"interval": 2**62}, "$.interval"),  # of no year that has a date
        ({"first": -1}, "$.first"),
    ],
)
async def test_an_entry_that_no_index_can_hold_stops_nobody(wrong, said):
    store, pointer = MemoryStore(clock=lambda: NOW), MemoryHead()
    await write(store, block(1), block(2))
    forged = msgspec.to_builtins(block(1)) | wrong
    await store.put(entry_path(block(1).path), json.dumps(forged).encode(), if_absent=False)
    report = await sweep(store, pointer, now=NOW)
    assert (await committed(store, pointer)).blocks == [block(2)]
    assert said in report.unreadable[0]


async def test_an_archive_whose_head_was_lost_keeps_its_blocks():
    store = MemoryStore(clock=lambda: OLD - 1)
    await write(store, block(1))
    await sweep(store, MemoryHead(), now=NOW, grace=GRACE)
    report = await sweep(store, MemoryHead(2), now=NOW, grace=GRACE)
    assert report.removed_objects == 0
    assert (await read_whole(store, report.head, Manifest)).blocks == [block(1)]
    assert await store.get(block(1).path)


async def test_thousands_of_bad_entries_are_counted_and_one_that_is_too_large_is_not_read(monkeypatch, caplog):
    monkeypatch.setattr("capture.maintenance.sweep.MOST_ENTRY_BYTES", 1000)
    store = MemoryStore()
    for number in range(300):
        await store.put(f"_entries/{number}.json", b"no JSON")
    await store.put("_entries/large.json", b" " * 1001)
    entries, unreadable = await read_entries(store)
    assert entries == []
    assert len(unreadable) == 301
    assert "_entries/large.json has 1,001 bytes, and no entry has more than 1,000" in unreadable
    said = [one.getMessage() for one in caplog.records]
    assert len(said) == MOST_SAID + 1
    assert said[-1] == "301 entries can't be read, more than are named"
