"""The archive of `archive_world` with a fresh table: each compactor also shows blocks, and engines read every snapshot.

Fresh commits take turns with merges of the same leader; a deposed leader goes on with both.
"""

import asyncio
import json
from collections import Counter

import msgspec
from archive_world import GRACE, POLICY, Believing, World
from set_engine import SetEngine, read_back

from capture.archive import chain
from capture.archive.chain import Retired
from capture.archive.iceberg_state import Expiry, Iceberg, Snapshot, folder, list_expired, without
from capture.archive.index.contents import Indexes
from capture.archive.index.update import held_of
from capture.archive.manifest import is_block
from capture.archive.sequences import Sequences
from capture.archive.table import Table, list_open_streams
from capture.errors import NotStoredError
from capture.maintenance.compaction import compact
from capture.maintenance.fresh import FreshTable
from capture.maintenance.table_commits import TableLeading

STREAM = "S"


class SetExposure:
    """Keeps the state that `capture.iceberg.Exposer` keeps, with JSON in place of manifests and delete files.

    A snapshot is an object with the path of each of its files and the sequences that it shows of it. The metadata name
    the object of each snapshot.
    """

    def __init__(self, world):
        self._world = world

    def is_due(self, table, now):
        shown = table.iceberg.get(STREAM)
        return bool(list_expired(shown.snapshots, self._world.rule, now) if shown else list_open_streams(table))

    async def expose(self, change):
        store, table, came, gone, now = self._world.store, change.table, change.came, change.gone, change.now
        before = table.iceberg.get(STREAM)
        expired = list_expired(before.snapshots, self._world.rule, now) if before else []
        if not (came or gone or expired) or not (before or list_open_streams(table)):
            return table
        live, snapshots, let_go = {}, [], []
        if before:
            metadata, snapshots = json.loads(await store.get(before.metadata)), before.snapshots
            live, let_go = json.loads(await store.get(metadata[-1][1])), [before.metadata]
        else:
            metadata, came = [], [one async for part in change.files(STREAM) for one in part]
        if came or gone:
            leave, arrive = (
                {one.path for one in gone},
                {one.path: Sequences.from_bytes(one.sequences).to_text() for one in came},
            )
            assert leave <= live.keys(), "a file leaves the table that is not in it"
            assert live.keys() - leave == live.keys() - leave - arrive.keys(), "a file comes that is in the table"
            live = {one: shown for one, shown in live.items() if one not in leave} | arrive
            path = self._name("list")
            await store.put(path, json.dumps(live).encode())
            if before:
                dropped = [*sorted(leave - arrive.keys()), metadata[-1][1]]
                snapshots = [*snapshots[:-1], msgspec.structs.replace(snapshots[-1], dropped=dropped)]
            number = self._world.random.getrandbits(62)
            metadata = [*metadata, (number, path)]
            blocks = [one for one in sorted(arrive.keys() - leave) if is_block(one)]
            is_brief = STREAM in table.shown.streams
            made = Snapshot(id=number, made=now, objects={path: ""}, came=blocks, is_brief=is_brief)
            snapshots = [*snapshots, made]
        left, over = without(snapshots, list_expired(snapshots, self._world.rule, now))
        kept = {one.id for one in left}
        path = self._name("metadata")
        await store.put(path, json.dumps([one for one in metadata if one[0] in kept]).encode())
        exposed = Iceberg(location="", number=table.number + 1, metadata=path, sha256="", snapshots=left)
        held = exposed.list_held()
        retired = {one: Retired(one, now) for one in (*let_go, *over)}
        retired |= {one.path: one for one in table.retired if one.path not in held}
        return msgspec.structs.replace(
            table, iceberg={STREAM: exposed}, retired=[one for path, one in retired.items() if path not in held]
        )

    async def list_fitting(self, table, blocks):
        return list(blocks), table.columns

    async def announce(self, table, *, check):
        pass

    def _name(self, kind):
        return f"{folder(STREAM)}/metadata/{self._world.random.getrandbits(64):016x}.{kind}.json"


class Leader:
    """A compactor's term: its merges and fresh commits take turns."""

    def __init__(self, world, term):
        self._world, self._fresh = world, FreshTable(POLICY)
        self._leading = TableLeading(world.store, term, world.manifest.read, "node", GRACE, lambda: world.now)
        self._leading.exposure = SetExposure(world)

    async def show(self):
        await self._fresh.step(self._leading, self._world.now)

    async def compact(self):
        world = self._world
        more = {"check": read_back, "retention": world.retention, "now": world.now}
        await compact(self._leading, SetEngine(world.store), POLICY, **more)


class FreshWorld(World):
    """`engines` counts the snapshots that engines have read."""

    def __init__(self, random, rules=()):
        super().__init__(random, rules)
        self.rule = Expiry(keep_for=GRACE)
        self.engines = self.with_blocks = 0

    async def _compacts(self, token):
        term = Believing(self, token, self.table)
        leader = Leader(self, term)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._rounds(term, leader.compact))
                tasks.create_task(self._rounds(term, leader.show))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _compact(self, term):
        leader = Leader(self, term)
        await leader.show()
        await self.read_snapshots()
        await leader.compact()
        await self.read_snapshots()

    async def _reads(self):
        await (super()._reads() if self.chance(2) else self.read_snapshots())

    async def read_snapshots(self):
        """Read every snapshot of the committed table, as an engine that asks the catalog."""
        head = await self.table.read_now()
        if head is None:
            return
        try:
            table, index = await chain.read(self.store, head, Table), Indexes(self.store).files
            if STREAM not in table.iceberg:
                assert not any(one.root or one.leaf for one in table.list_versions()), "no engine sees the table"
                return
            metadata = json.loads(await self.store.get(table.iceberg[STREAM].metadata))
            assert [number for number, _ in metadata] == [one.id for one in table.iceberg[STREAM].snapshots]
            for _, place in metadata:
                files, rows = json.loads(await self.store.get(place)), Counter()
                for path, shown in files.items():
                    stored = json.loads(await self.store.get(path))
                    rows.update(row for row in stored if row in Sequences.from_text(shown))
                assert not [row for row, count in rows.items() if count > 1], "a snapshot holds a message twice"
                assert rows.keys() <= self.copies.keys(), "a snapshot holds what no writer wrote"
                self.engines += 1
                self.with_blocks += any(map(is_block, files))
            held = [await held_of(index, one, STREAM) for one in table.list_versions()]
        except NotStoredError as error:
            raise AssertionError(f"an object that engines need is gone: {error}") from error
        assert set(held[0] | held[1]) == set(rows), "the newest snapshot has other rows than the documents say"
        assert held[0].isdisjoint(held[1]), "files and shown blocks hold a message twice"

    async def settle(self):
        picture, rows = await super().settle()
        assert not picture.table.shown.objects
        stored = {one.path for one in await self.store.list("iceberg/")}
        assert stored == set(picture.table.iceberg[STREAM].objects()) if rows else True
        return picture, rows
