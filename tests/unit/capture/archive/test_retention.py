import asyncio

import msgspec
import pytest
from retaining import stored
from set_engine import SetEngine, described, read_back

from capture.archive.chain import Retired, commit
from capture.archive.manifest import Manifest, Removed, encode, entry_path
from capture.archive.picture import read_picture
from capture.archive.retention import Retention, Rule, record_removed, removed_sequences
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import ManifestError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import plan_sweep, preview, sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import MemoryStore, ObjectInfo
from capture.testing import HeadState, MemoryHead

NOW, GRACE = 100_000.0, 1_000.0
HOUR = 3600
YOUNG = 97_200  # an interval that no rule of an hour lets go yet
OLD = Rule(older_than=HOUR)


# --- what the leaders do ---------------------------------------------------------------------------------------------

RETENTION = Retention([OLD], HOUR)


def listing(*blocks):
    return [ObjectInfo(one.path, 1, NOW) for one in blocks]


def test_the_sweep_retires_and_records_expired_blocks_in_one_manifest_and_deletes_nothing_yet():
    old, young = stored(1, 3), stored(4, interval=YOUNG)
    planned = plan_sweep(
        Manifest(blocks=[old, young]), None, [], listing(old, young), now=NOW, grace=GRACE, retention=RETENTION
    )
    assert [one.object for one in planned.expired] == [old]
    assert planned.manifest.blocks == [young]
    assert planned.manifest.retired == [Retired(old.path, NOW)]
    assert planned.manifest.removed == record_removed([], [old], NOW)
    assert planned.remove_objects == []
    later = {"now": NOW + GRACE + 1, "grace": GRACE, "retention": RETENTION}
    assert plan_sweep(planned.manifest, None, [], listing(old, young), **later).remove_objects == [old.path]


def test_a_late_block_of_an_expired_interval_is_adopted_and_removed_at_once_and_counts_as_removed():
    late = stored(7)
    objects = [*listing(late), ObjectInfo(entry_path(late.path), 1, NOW)]
    planned = plan_sweep(Manifest(), None, [late], objects, now=NOW, grace=GRACE, retention=RETENTION)
    assert (planned.adopt, planned.manifest.blocks) == ([late], [])
    assert planned.manifest.retired == [Retired(late.path, NOW)]
    assert planned.remove_entries == [entry_path(late.path)]
    assert list(removed_sequences(planned.manifest.removed)["S"]) == [7]


@pytest.mark.parametrize(
    ("begins", "held", "below"),
    [(500, 20, 20), (15, 20, 15), (500, None, 500), (1, 20, 0), (None, 20, 0)],
    ids=["archive", "stream", "nothing_is_held", "the_stream_has_all", "the_server_does_not_say"],
)
def test_what_neither_archive_nor_stream_has_any_more_is_recorded_by_one_number(begins, held, below):
    record = record_removed([], [stored(3), stored(5, 7), stored(17)], NOW)  # the others were never captured
    blocks = [stored(held, interval=YOUNG)] if held else []
    old = stored(18)  # gone with this sweep, so that there is a manifest to write
    known = {"S": begins} if begins else {}
    told = {"now": NOW, "grace": GRACE, "retention": RETENTION, "begins": known}
    planned = plan_sweep(Manifest(blocks=[old, *blocks], removed=record), None, [], listing(old, *blocks), **told)
    [removed] = planned.manifest.removed
    limit = min(below, 18)  # a block that goes now is still here
    exact = [one for one in (3, 5, 6, 7, 17, 18) if one >= limit]
    assert (removed.below, list(Sequences.from_text(removed.sequences))) == (limit, exact)
    assert (removed.objects, removed.bytes) == (4, 400)
    gone = removed_sequences(planned.manifest.removed)["S"]
    assert gone == Sequences.from_range(1, limit - 1) | Sequences.from_iterable(exact)


def test_a_table_that_the_sweep_does_not_know_keeps_it_from_summing_up():
    record = record_removed([], [stored(3)], NOW)
    manifest = Manifest(blocks=[stored(18)], removed=record, of_table=2)
    told = {"now": NOW, "grace": GRACE, "begins": {"S": 500}}
    late = stored(19)
    planned = plan_sweep(manifest, Table(number=1), [late], listing(late), **told)
    assert planned.manifest.removed == record


def test_the_tables_files_count_but_are_not_the_sweeps_to_remove():
    block, file = stored(2, interval=HOUR), stored(1, folder="table")
    rule = Retention([Rule(keep_bytes=150)], HOUR)

    def planned(manifest, table):
        return plan_sweep(manifest, table, [], listing(block), now=NOW, grace=GRACE, retention=rule)

    assert planned(Manifest(blocks=[block]), Table(number=1, files=[file])).expired == []  # the file is older
    newer = stored(1, interval=2 * HOUR, folder="table")
    assert [one.object for one in planned(Manifest(blocks=[block]), Table(number=1, files=[newer])).expired] == [block]
    lagging = Manifest(blocks=[block], of_table=2)
    assert planned(lagging, Table(number=1, files=[newer])).expired == []


class NoEngine:
    async def merge(self, store_url, groups):
        raise AssertionError(f"nothing was to be merged: {groups}")


class Archive:
    """Two leaders beside a store; blocks and files hold lists of sequences."""

    def __init__(self):
        self.now = NOW
        self.store = MemoryStore(clock=lambda: self.now)
        self.manifest, self.table = HeadState(), HeadState()
        self.retention = RETENTION

    async def block(self, *sequences, interval):
        path = f"blocks/{interval}-{sequences[0]}-{sequences[-1]}"
        record = described(path, list(sequences), interval=interval)
        await self.store.put(path, msgspec.json.encode(sequences))
        await self.store.put(entry_path(path), encode(record))
        return record

    async def sweep(self, token=1):
        leading = Leading(self.store, MemoryHead(token, self.manifest), self.table.read, "", GRACE, lambda: self.now)
        return await sweep(leading, now=self.now, retention=self.retention)

    async def compact(self, engine=None):
        told = {"now": self.now, "retention": self.retention, "check": read_back}
        head, engine = MemoryHead(1, self.table), engine or SetEngine(self.store)
        leading = TableLeading(self.store, head, self.manifest.read, "", GRACE, lambda: self.now)
        return await compact(leading, engine, Policy(min_files=1), **told)

    async def picture(self):
        return await read_picture(self.store, self.manifest.read, self.table.read)

    async def paths(self, prefix):
        return [one.path for one in await self.store.list(prefix)]


async def test_the_compaction_removes_expired_files_without_an_engine_in_a_commit_before_any_deletion():
    archive = Archive()
    archive.retention = Retention()
    for interval in (0, YOUNG):
        await archive.block(interval + 1, interval + 2, interval=interval)
    await archive.sweep()
    await archive.compact()
    archive.retention = RETENTION
    old, young = sorted((await archive.picture()).files, key=lambda one: one.first)
    report = await archive.compact(NoEngine())
    assert (report.expired, report.groups) == (1, 0)
    picture = await archive.picture()
    assert picture.files == [young]
    assert picture.table.retired == [Retired(old.path, NOW)]
    assert list(picture.removed["S"]) == [1, 2]
    assert await archive.paths("table/") == sorted([old.path, young.path])
    archive.now += GRACE + 1
    await archive.compact(NoEngine())
    assert await archive.paths("table/") == [young.path]
    assert (await archive.compact(NoEngine())).expired == 0


async def test_an_expired_block_is_not_merged_first():
    archive = Archive()
    archive.retention = Retention()
    old, young = await archive.block(1, interval=0), await archive.block(2, interval=YOUNG)
    await archive.sweep()
    archive.retention = RETENTION
    report = await archive.compact()
    assert report.inputs == 1
    assert (await archive.picture()).table.consumed_paths == {young.path}
    await archive.sweep()
    assert (await archive.picture()).manifest.retired[-1].path == old.path


async def test_a_deleted_retired_file_is_not_deleted_again_in_every_run():
    archive = Archive()
    await commit(archive.store, MemoryHead(1, archive.table), None, Table(retired=[Retired("table/gone", 1.0)]))
    await archive.sweep()
    deleted = []
    delete = archive.store.delete

    async def noting(path):
        deleted.append(path)
        await delete(path)

    archive.store.delete = noting
    await archive.compact(NoEngine())
    assert deleted == []


async def test_a_preview_says_what_would_go_and_changes_nothing():
    archive = Archive()
    archive.retention = Retention()
    tabled = await archive.block(1, interval=0)
    await archive.sweep()
    await archive.compact()
    await archive.sweep()  # lets go of the block
    waiting = await archive.block(2, interval=0)
    kept = await archive.block(3, interval=YOUNG)
    await archive.store.put("blocks/leftover", b"")
    archive.now += GRACE + 1
    before = await archive.store.list()
    told = {"now": archive.now, "grace": GRACE, "retention": RETENTION}
    seen = await preview(archive.store, archive.manifest.read, archive.table.read, **told)
    assert await archive.store.list() == before
    assert [one.object for one in seen.plan.expired] == [waiting]
    assert seen.plan.adopt == [waiting, kept]
    assert [one.object.first for one in seen.files] == [1]
    assert sorted(seen.plan.remove_objects) == sorted([tabled.path, "blocks/leftover"])
    assert seen.let_go == {tabled.path}


class Dying(MemoryStore):
    """A store whose process is killed at its n-th write, before or after that is done."""

    left, after = -1, False

    async def _count(self, done):
        self.left -= 1
        if self.left == 0 and not self.after:
            done.close()
            raise KilledError
        await done
        if self.left == 0:
            raise KilledError

    async def put(self, path, data, *, if_absent=True):
        await self._count(super().put(path, data, if_absent=if_absent))

    async def delete(self, path):
        await self._count(super().delete(path))


class KilledError(Exception):
    pass


@pytest.mark.parametrize("after", [False, True])
async def test_leaders_that_are_killed_anywhere_remove_and_record_the_same_and_count_it_once(after):
    async def lived(killed_at):
        archive = Archive()
        archive.store = Dying(clock=lambda: archive.now)
        archive.retention = Retention()
        for interval in (0, 3600, YOUNG):
            await archive.block(interval + 1, interval + 2, interval=interval)
        await archive.sweep()
        await archive.compact()
        await archive.block(3, interval=0)
        archive.retention = RETENTION
        archive.store.left, archive.store.after = killed_at, after
        died = False
        for _ in range(3):
            for work in (archive.sweep, archive.compact):
                try:
                    await work()
                except KilledError:
                    died = True
                    await work()
            archive.now += GRACE + 1
        picture = await archive.picture()
        counts = [(one.objects, one.sequences) for one in (*picture.manifest.removed, *picture.table.removed)]
        left = await archive.paths("blocks/") + await archive.paths("_entries/")
        files = [one.path.rpartition("/")[0] for one in picture.files]
        assert {one.path for one in await archive.store.list("table/")} == {one.path for one in picture.files}
        return (counts, left, files, [one.sequences for one in picture.files]), died

    expected, _ = await lived(-1)
    assert [objects for objects, _ in expected[0]] == [1, 2]
    assert expected[1] == []
    number, died = 0, True
    while died:
        number += 1
        found, died = await lived(number)
        assert found == expected, f"killed at write {number}"
    assert number > 10


class Yielding(MemoryStore):
    """A store whose every call lets others run."""

    async def put(self, path, data, *, if_absent=True):
        await asyncio.sleep(0)
        await super().put(path, data, if_absent=if_absent)

    async def get(self, path):
        await asyncio.sleep(0)
        return await super().get(path)

    async def list(self, prefix=""):
        await asyncio.sleep(0)
        return await super().list(prefix)


def test_two_sweepers_at_once_count_what_they_remove_once():
    async def run(delay):
        archive = Archive()
        archive.store = Yielding(clock=lambda: archive.now)
        archive.retention = Retention()
        await archive.block(1, 2, interval=0)
        await archive.sweep()
        archive.retention = RETENTION

        async def late():
            for _ in range(delay):
                await asyncio.sleep(0)
            return await archive.sweep(token=2)

        await asyncio.gather(archive.sweep(), late(), return_exceptions=True)
        (removed,) = (await archive.picture()).manifest.removed
        assert (removed.objects, removed.bytes) == (1, len("[1, 2]"))

    for delay in range(30):
        asyncio.run(run(delay))


@pytest.mark.parametrize("wrong", [{"below": 2**62}, {"sequences": "AAAA"}, {"sequences": "no base64"}])
def test_a_record_of_what_was_removed_that_can_t_be_true_is_damaged(wrong):
    record = Removed(**{"stream": "S", "sequences": "", "objects": 1, "bytes": 1, "at": 0.0} | wrong)
    with pytest.raises(ManifestError, match="the record of what was removed of S is damaged"):
        removed_sequences([record])
