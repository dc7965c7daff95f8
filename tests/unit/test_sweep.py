import asyncio
import contextlib
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture import chain
from capture.chain import Retired, commit, document_path
from capture.errors import Fenced, StoreError
from capture.manifest import Manifest, Stored, block_path, encode, entry_path
from capture.sequences import Sequences
from capture.stores import MemoryStore, ObjectInfo
from capture.sweep import plan_sweep
from capture.sweep import sweep as sweep_with
from capture.table import Table
from capture.testing import HeadState, MemoryHead

NOW, GRACE = 100_000.0, 1_000.0
OLD, YOUNG = NOW - GRACE - 1, NOW - 10


def block(first, last=None, stream="S"):
    last = first if last is None else last
    content = f"{stream} {first} {last}".encode()
    sha256 = hashlib.sha256(content).hexdigest()
    return Stored(
        path=block_path(stream, "k", 0, 3600, first, last, last - first + 1, sha256, ".parquet"),
        stream=stream,
        key="k",
        interval=0,
        first=first,
        last=last,
        count=last - first + 1,
        bytes=len(content),
        sha256=sha256,
        format="parquet",
        sequences=Sequences.from_range(first, last).to_text(),
    )


def listing(*blocks, at=YOUNG, entries=()):
    objects = [ObjectInfo(one if isinstance(one, str) else one.path, 1, at) for one in blocks]
    return objects + [ObjectInfo(entry_path(one.path), 1, at) for one in entries]


def plan(manifest, entries, objects, table=None):
    return plan_sweep(manifest, table, entries, objects, now=NOW, grace=GRACE)


async def sweep(store, pointer, *, table=None, **options):
    """Sweep beside this table, or none."""
    return await sweep_with(store, pointer, (table or HeadState()).read, **options)


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


async def write(store, *blocks, entries=True):
    for one in blocks:
        await store.put(one.path, f"{one.stream} {one.first} {one.last}".encode())
        if entries:
            await store.put(entry_path(one.path), encode(one))


async def committed(store, pointer):
    return await chain.read(store, pointer.state.head, Manifest)


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
    with pytest.raises(Fenced):
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


async def test_an_archive_whose_head_was_lost_keeps_its_blocks():
    store = MemoryStore(clock=lambda: OLD - 1)
    await write(store, block(1))
    await sweep(store, MemoryHead(), now=NOW, grace=GRACE)
    report = await sweep(store, MemoryHead(2), now=NOW, grace=GRACE)
    assert report.removed_objects == 0
    assert (await chain.read(store, report.head, Manifest)).blocks == [block(1)]
    assert await store.get(block(1).path)


class Failing(MemoryStore):
    """A store that dies at its n-th call, before or after having done what it was asked."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.left, self.after = -1, False

    async def _call(self, done):
        self.left -= 1
        if self.left == 0 and not self.after:
            done.close()
            raise StoreError("killed")
        result = await done
        if self.left == 0:
            raise StoreError("killed")
        return result

    async def put(self, path, data, *, if_absent=True):
        return await self._call(super().put(path, data, if_absent=if_absent))

    async def get(self, path):
        return await self._call(super().get(path))

    async def list(self, prefix=""):
        return await self._call(super().list(prefix))

    async def delete(self, path):
        return await self._call(super().delete(path))


async def prepared():
    """An archive with everything that a sweep meets: new, adopted, retired, forgotten, left over."""
    clock = [OLD]
    store, pointer = Failing(lambda: clock[0]), MemoryHead()
    await write(store, block(1), block(2), block(3), block(4))
    await write(store, block(90), entries=False)  # its writer died
    manifest = Manifest(
        blocks=[block(1)],
        retired=[Retired(block(2).path, OLD), Retired(block(3).path, YOUNG), Retired("blocks/gone", OLD)],
    )
    await commit(store, pointer, None, manifest)  # a sweep died right after this: the entries are still there
    clock[0] = YOUNG
    await write(store, block(91), entries=False)  # its writer is about to write the entry
    await write(store, block(5), block(6))
    return store, pointer


async def settle(store, pointer):
    store.left = -1
    for number in range(1, 5):
        await sweep(store, pointer, now=NOW + 2 * GRACE * number, grace=GRACE)
    manifest = await committed(store, pointer)
    objects = [one.path for one in await store.list() if not one.path.startswith("_manifest/")]
    return sorted(one.path for one in manifest.blocks), manifest.retired, objects


@pytest.mark.parametrize("after", [False, True])
async def test_a_sweep_that_is_killed_anywhere_and_run_again_has_the_result_of_one_that_was_not(after):
    expected = await settle(*await prepared())
    assert expected[0] == sorted(one.path for one in (block(1), block(4), block(5), block(6)))
    assert expected[1] == []
    assert expected[2] == sorted(one.path for one in map(block, (1, 4, 5, 6)))
    for number in range(1, 100):
        store, pointer = await prepared()
        store.left, store.after = number, after
        try:
            await sweep(store, pointer, now=NOW, grace=GRACE)
        except StoreError:
            assert await settle(store, pointer) == expected, f"killed at call {number}"
        else:
            assert number > 15
            return
    raise AssertionError("a sweep makes fewer calls than that")


class Yielding(Failing):
    async def _call(self, done):
        await asyncio.sleep(0)
        return await super()._call(done)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40))
def test_two_sweeps_at_once_have_the_result_of_one(delay):
    async def run():
        expected = await settle(*await prepared())
        store, pointer = await prepared()
        store.__class__ = Yielding
        other = MemoryHead(2, pointer.state)

        async def late():
            for _ in range(delay):
                await asyncio.sleep(0)
            await sweep(store, other, now=NOW, grace=GRACE)

        results = await asyncio.gather(sweep(store, pointer, now=NOW, grace=GRACE), late(), return_exceptions=True)
        assert all(
            result is None or not isinstance(result, Exception) or isinstance(result, Fenced) for result in results
        )
        assert await settle(store, other) == expected

    asyncio.run(run())


async def test_an_entry_survives_no_longer_than_the_record_of_its_retired_block():
    """However often sweeps die between commit and clean-up, a compacted block is never adopted a second time."""
    store, pointer = Failing(lambda: OLD), MemoryHead()
    await write(store, block(1))

    class Undeletable(Failing):
        async def delete(self, path):
            raise StoreError("killed")

    store.__class__ = Undeletable
    for _ in range(3):
        with pytest.raises(StoreError):
            await sweep(store, pointer, now=NOW, grace=GRACE)
    table = HeadState()
    await commit(store, MemoryHead(1, table), None, Table(consumed=[block(1).path]))
    for now in (OLD, NOW):
        with pytest.raises(StoreError):
            await sweep(store, pointer, table=table, now=now, grace=GRACE)
    store.__class__ = Failing
    for _ in range(4):
        await sweep(store, pointer, table=table, now=NOW, grace=GRACE)
        assert (await committed(store, pointer)).blocks == []
    assert (await committed(store, pointer)).retired == []
    assert await store.list("blocks/") == await store.list("_entries/") == []


class Hooked(MemoryStore):
    """A store in which something happens right after its n-th listing."""

    def __init__(self, number, happens):
        super().__init__(clock=lambda: OLD)
        self.left, self.happens = number, happens

    async def list(self, prefix=""):
        found = await super().list(prefix)
        self.left -= 1
        if self.left == 0:
            await self.happens(self)
        return found


@pytest.mark.parametrize("number", range(1, 5))
async def test_a_block_that_another_sweep_adopts_meanwhile_is_no_leftover(number):
    state = HeadState()

    async def successors_sweep(store):
        await sweep(store, MemoryHead(2, state), now=NOW, grace=GRACE)

    store = Hooked(number, successors_sweep)
    await write(store, block(1))
    with contextlib.suppress(Fenced):
        await sweep(store, MemoryHead(1, state), now=NOW, grace=GRACE)
    assert (await committed(store, MemoryHead(2, state))).blocks == [block(1)]
    assert [one.path for one in await store.list("blocks/")] == [block(1).path]


async def test_a_block_whose_entry_is_written_while_objects_are_listed_is_no_leftover():
    async def write_entry(store):
        await store.put(entry_path(block(1).path), encode(block(1)))

    store, pointer = Hooked(1, write_entry), MemoryHead()
    await write(store, block(1), entries=False)
    await sweep(store, pointer, now=NOW, grace=GRACE)
    assert (await committed(store, pointer)).blocks == [block(1)]
    assert await store.get(block(1).path)
