"""An archive in memory whose leaders sweep, compact and show new blocks, and a model of what engines may see."""

from uuid import uuid4

from archived import store_block
from exposing import read_back, sequences_of
from failing import Failing
from indexed import read_whole

from capture.archive.iceberg_state import Expiry
from capture.archive.index.contents import Indexes
from capture.archive.picture import read_picture
from capture.archive.retired_pages import RETIRED
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.iceberg import Exposer
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.fresh import FreshTable
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import open as opened
from capture.testing import ArrowEngine, HeadState, MemoryHead

NOW, GRACE = 1_795_240_000.0, 900.0
ALL = Policy(min_files=1, max_wait=0.0)
STREAM = "ORDERS"


class Leader:
    """A term of the compaction's leader: merges and fresh commits take turns."""

    def __init__(self, world):
        self.world, self.head = world, world.term(world.table)
        self.exposer = Exposer(world.store, world.rule, node="node")
        self.leading = TableLeading(world.store, self.head, world.manifest.read, "node", GRACE, lambda: world.now)
        self.leading.exposure = self.exposer
        self.fresh = FreshTable(ALL)

    async def step(self):
        return await self.fresh.step(self.leading, self.world.now)

    async def compact(self, engine=None, policy=ALL, **more):
        return await compact(self.leading, engine or ArrowEngine(), policy, **{"now": self.world.now} | more)


class World:
    """`rows` are those of each committed snapshot, by its id, as the documents say them."""

    def __init__(self, **rule):
        self.now, self.tokens = NOW, 0
        self.rule = Expiry(**{"keep_for": 3600.0} | rule)
        self.store = Failing(lambda: self.now, f"fresh-{uuid4().hex}")
        opened._memory[self.store.url.removeprefix("memory://")] = self.store
        self.manifest, self.table = HeadState(), HeadState()
        self.rows, self.stored = {}, set()

    def term(self, state):
        self.tokens += 1
        return MemoryHead(self.tokens, state)

    async def block(self, sequences, **more):
        await store_block(self.store, sequences, clock=lambda: self.now, **more)
        self.stored |= set(sequences)

    async def sweep(self, **more):
        leading = Leading(self.store, self.term(self.manifest), self.table.read, "", GRACE, lambda: self.now)
        return await sweep(leading, **{"now": self.now} | more)

    async def committed(self):
        return await read_whole(self.store, self.table.head, Table)

    async def shown(self):
        table = await self.committed()
        index = Indexes(self.store).files
        return [await index.whole(one) async for part in index.scan(table.shown) for one in part]

    async def snapshots(self):
        table = await self.committed()
        return table.iceberg[STREAM].snapshots if STREAM in table.iceberg else []

    async def seen(self):
        """Return the rows of the current snapshot, which are those of files and shown blocks, each once.

        Checks that the other snapshots that are kept are as they were.
        """
        if self.table.head is None:
            return []
        table = await self.committed()
        if STREAM not in table.iceberg:
            assert not table.files
            assert not table.shown.root
            return []
        exposed = table.iceberg[STREAM]
        engine = await read_back(self.store, exposed)
        assert [one.snapshot_id for one in engine.metadata.snapshots] == [one.id for one in exposed.snapshots]
        assert exposed.list_held().isdisjoint(await self.needed())
        objects = [*table.files, *await self.shown()]
        said = sorted(row for one in objects for row in Sequences.from_bytes(one.sequences))
        assert len(said) == len(set(said))
        self.rows.setdefault(exposed.snapshots[-1].id, said)
        for one in exposed.snapshots:
            found = sequences_of(engine, one.id)
            assert found == self.rows.setdefault(one.id, found)
            assert len(found) == len(set(found))
        return said

    async def picture(self):
        """Return the sequences that the archive's own readers see."""
        picture = await read_picture(self.store, self.manifest.read, self.table.read)
        return sorted({row for one in (*picture.blocks, *picture.files) for row in Sequences.from_bytes(one.sequences)})

    async def needed(self):
        """Return the paths that a reader needs who opens the table now."""
        table = await self.committed()
        exposed = table.iceberg[STREAM]
        objects = {path for one in exposed.snapshots for path in one.objects} - exposed.list_held()
        blocks = {one.path for one in await self.shown()}
        return objects | blocks | {exposed.metadata} | {one.path for one in table.files}

    async def settle(self):
        """Let new leaders do what is left, undisturbed, until all is merged and deleted; return what engines see."""
        self.store.left = -1
        for _ in range(6):
            await self.sweep()
            leader = Leader(self)
            await leader.step()
            await self.seen()
            await leader.compact()
            await self.seen()
            self.now += GRACE * 2 + self.rule.keep_for
        await self.sweep()
        table = await self.committed()
        assert not table.shown.root
        left = [one.path for one in await self.store.list() if one.path.startswith(("blocks/", "_entries/"))]
        assert left == []
        live = {one.path for one in table.files}
        assert {one.path for one in await self.store.list("table/")} == live
        pages = {name for v in table.list_versions() for name in await Indexes(self.store).files.reach(v)}
        pages |= {name for one in table.outdated for name in one.pages}
        index = Indexes(self.store).files
        assert {one.path for one in await self.store.list("_index/table/")} <= {index.path(one) for one in pages}
        assert {one.path for one in await self.store.list("iceberg/")} <= table.list_named()
        assert {one.path for one in await self.store.list(RETIRED)} <= {one.path for one in table.retired_pages}
        return await self.seen()
