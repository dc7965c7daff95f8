"""Compactions that are struck while they change what Iceberg's readers see: killed anywhere, deposed, run again."""

import contextlib
from uuid import uuid4

import msgspec
import pytest
from archived import store_block
from exposing import read_back, sequences_of
from failing import Failing
from indexed import read_whole

from capture.archive import chain
from capture.archive.iceberg_state import Expiry, hint_path, version_path
from capture.archive.manifest import Manifest
from capture.archive.picture import read_picture
from capture.archive.table import Table
from capture.errors import CompactionError, FencedError, StoreError
from capture.iceberg import Exposer
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import open as opened
from capture.testing import ArrowEngine, HeadState, MemoryHead

NOW, GRACE = 1_795_240_000.0, 900.0
ALL = Policy(min_files=1, max_wait=0.0)
NOTHING = Policy(min_files=1000, max_wait=1e18)
STREAM = "ORDERS"


class World:
    """An archive in memory whose compaction makes an Iceberg table."""

    def __init__(self, **rule):
        self.now, self.tokens = NOW, 0
        self.rule = Expiry(**{"keep_for": 0.0} | rule)
        self.store = Failing(lambda: self.now, f"struck-{uuid4().hex}")
        opened._memory[self.store.url.removeprefix("memory://")] = self.store
        self.manifest, self.table = HeadState(), HeadState()

    def term(self, state):
        self.tokens += 1
        return MemoryHead(self.tokens, state)

    async def blocks(self, *blocks):
        for sequences in blocks:
            await store_block(self.store, sequences)
        await sweep(Leading(self.store, self.term(self.manifest), self.table.read, grace=GRACE), now=self.now)

    async def compact(self, term=None, *, policy=ALL, exposer=None):
        exposure = exposer or Exposer(self.store, self.rule, node="node")
        head = term or self.term(self.table)
        leading = TableLeading(self.store, head, self.manifest.read, grace=GRACE, exposure=exposure)
        return await compact(leading, ArrowEngine(), policy, now=self.now)

    async def committed(self):
        return await read_whole(self.store, self.table.head, Table)

    async def seen(self):
        """Return what an Iceberg reader gets, which must be what the archive's own readers get of the table."""
        table = await self.committed()
        if STREAM not in table.iceberg:
            return []
        rows = sequences_of(await read_back(self.store, table.iceberg[STREAM]))
        assert rows == sorted(row for one in table.files for row in range(one.first, one.last + 1))
        return rows

    async def settle(self):
        """Let new leaders do what is left, undisturbed; return what readers see, and every object but documents."""
        self.store.left = -1
        for _ in range(4):
            await sweep(Leading(self.store, self.term(self.manifest), self.table.read, grace=GRACE), now=self.now)
            await self.compact()
            self.now += GRACE * 2
        table = await self.committed()
        folders = [one.path for one in await self.store.list() if one.path.startswith(("table/", "iceberg/"))]
        assert {*folders} == {path for path in table.list_named() if path not in {one.path for one in table.retired}}
        picture = await read_picture(self.store, self.manifest.read, self.table.read)
        assert picture.blocks == []
        return await self.seen(), len(folders)


async def prepared(**rule):
    """An archive with a table that a second compaction is about to change."""
    world = World(**rule)
    await world.blocks([1, 2], [3])
    await world.compact()
    await world.blocks([3, 4], [5])
    return world


@pytest.mark.parametrize("after", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.long)])
async def test_a_compaction_that_is_killed_anywhere_and_run_again_has_the_result_of_one_that_was_not(each, after):
    expected = await (await prepared()).settle()
    assert expected[0] == [1, 2, 3, 4, 5]
    for number in range(1 + after * (each - 1), 200, each):
        world = await prepared()
        world.store.left, world.store.after = number, after
        try:
            await world.compact()
        except (StoreError, CompactionError):
            world.store.left = -1
            assert await world.seen() in ([1, 2, 3], [1, 2, 3, 4, 5]), f"killed at call {number}"
            assert await world.settle() == expected, f"killed at call {number}"
        else:
            assert number > 20
            return
    raise AssertionError("a compaction makes fewer calls than that")


class Interrupted(Exposer):
    """An exposer beside which something happens between writing and committing."""

    def __init__(self, world, happens):
        super().__init__(world.store, world.rule, node="old")
        self._happens = happens

    async def expose(self, change):
        exposed = await super().expose(change)
        await self._happens()
        return exposed


class Late(Exposer):
    """An exposer beside which something happens between committing and announcing."""

    def __init__(self, world, happens):
        super().__init__(world.store, world.rule, node="old")
        self._happens, self._announces = happens, False

    async def announce(self, table, **options):
        self._announces = True
        await super().announce(table, **options)
        self._announces = False

    async def _read(self, path, digest):
        data = await super()._read(path, digest)
        if self._announces:
            await self._happens()
        return data


async def test_a_leader_that_is_deposed_after_its_commit_announces_nothing_in_the_place_of_its_successor():
    world = await prepared()

    async def successor():
        for sequences in ([6], [7]):
            await world.blocks(sequences)
            await world.compact()
            world.now += GRACE + 1
        await world.compact()

    with pytest.raises(FencedError):
        await world.compact(exposer=Late(world, successor))
    exposed = (await world.committed()).iceberg[STREAM]
    assert await world.store.get(hint_path(STREAM)) == str(exposed.number).encode()
    public = [one.path for one in await world.store.list(f"iceberg/{STREAM}/metadata/v")]
    assert public == [version_path(STREAM, exposed.number), hint_path(STREAM)]
    assert await world.seen() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("busy", [True, False], ids=["a successor that compacts", "a successor with nothing to do"])
async def test_a_leader_that_is_deposed_after_it_has_written_the_metadata_commits_nothing(busy):
    world = await prepared(keep_for=1e9)
    old = world.term(world.table)
    between = []

    async def successor():
        between.append(world.table.head)
        await world.compact(policy=ALL if busy else NOTHING)
        between.append(world.table.head)

    with pytest.raises(FencedError):
        await world.compact(old, exposer=Interrupted(world, successor))
    assert world.table.head == between[1] != between[0]
    assert await world.seen() == ([1, 2, 3, 4, 5] if busy else [1, 2, 3])
    exposed = (await world.committed()).iceberg[STREAM]
    assert await world.store.get(hint_path(STREAM)) == str(exposed.number).encode()
    snapshots = (await read_back(world.store, exposed)).snapshots()
    assert str(old.token) not in [one.summary["capture.epoch"] for one in snapshots]
    leftovers = {one.path for one in await world.store.list("iceberg/")} - (await world.committed()).list_named()
    assert [path for path in leftovers if path.endswith(".metadata.json")]
    world.now += GRACE + 1
    await world.compact()
    assert not {one.path for one in await world.store.list("iceberg/")} - (await world.committed()).list_named()
    assert await world.seen() == [1, 2, 3, 4, 5]


async def test_a_leader_that_died_between_its_document_and_the_head_is_followed_with_its_metadata():
    world = await prepared()

    class Silent(MemoryHead):
        async def commit(self, head):
            raise StoreError("killed")

    term = world.term(world.table)
    await world.compact(term, policy=NOTHING)
    with pytest.raises(StoreError):
        await world.compact(Silent(term.token, world.table))
    assert await world.seen() == [1, 2, 3]
    await world.compact(policy=NOTHING)
    assert await world.seen() == [1, 2, 3, 4, 5]
    exposed = (await world.committed()).iceberg[STREAM]
    assert await world.store.get(version_path(STREAM, exposed.number)) == await world.store.get(exposed.metadata)


async def test_a_file_that_a_snapshot_of_the_past_names_outlives_every_grace_until_that_expires():
    world = await prepared(keep_for=1e9)
    before = (await world.committed()).files
    await world.compact()
    for _ in range(3):
        world.now += 10 * GRACE
        await world.compact()
    for one in before:
        assert await world.store.get(one.path)
    exposed = (await world.committed()).iceberg[STREAM]
    assert sequences_of(await read_back(world.store, exposed), exposed.snapshots[0].id) == [1, 2, 3]
    world.rule = Expiry(keep_for=0.0)
    await world.compact()
    for one in before:
        assert await world.store.get(one.path)  # whoever has just opened that snapshot gets the grace time
    world.now += GRACE + 1
    await world.compact()
    assert not {one.path for one in before} & {one.path for one in await world.store.list("table/")}


async def test_an_archive_of_an_earlier_version_becomes_an_iceberg_table_by_the_first_run():
    """What the table's document looked like at format 1: it is stored here as it was written then."""
    world = World()
    await world.blocks([1, 2], [3])
    await compact(
        TableLeading(world.store, world.term(world.table), world.manifest.read, grace=GRACE),
        ArrowEngine(),
        ALL,
        now=world.now,
    )
    table = msgspec.to_builtins(await world.committed())
    for field in ("iceberg", "columns", "index", "outdated"):
        del table[field]
    data = msgspec.json.encode(table | {"format": 1})
    path = world.table.head.path
    await world.store.put(path, data, if_absent=False)
    world.table.head = msgspec.structs.replace(world.table.head, sha256=chain.hashlib.sha256(data).hexdigest())
    assert (await world.committed()).format == 1
    assert await world.seen() == []
    report = await world.compact(policy=NOTHING)
    assert report.groups == 0
    assert await world.seen() == [1, 2, 3]
    assert (await world.committed()).format == 3
    head = world.table.head
    await world.compact(MemoryHead(world.tokens, world.table), policy=NOTHING)
    assert world.table.head == head  # once is enough


async def test_a_version_that_knows_no_iceberg_refuses_to_lead():
    """Else it would commit a table without it, and delete what snapshots name."""
    world = await prepared()

    class Earlier(Table, frozen=True, kw_only=True):
        FORMAT = 1

    with pytest.raises(chain.ManifestError, match="has format 3; this version reads up to 1"):
        await chain.read(world.store, world.table.head, Earlier)


async def test_the_sweep_leaves_the_metadata_alone():
    world = await prepared()
    before = [one.path for one in await world.store.list("iceberg/")]
    world.now += 10 * GRACE
    await world.blocks([6])
    assert [one.path for one in await world.store.list("iceberg/")] == before
    assert (await read_whole(world.store, world.manifest.head, Manifest)).blocks
    with contextlib.suppress(FencedError):
        await world.compact()
    assert await world.seen() == [1, 2, 3, 4, 5, 6]
