"""An Iceberg table that changes, without a compaction, and a plain model of it."""

import msgspec
from exposing import HOUR, expose_files, static_table, table_file
from pyiceberg.manifest import ManifestEntryStatus

from capture.archive.chain import Retired
from capture.archive.iceberg_state import Expiry, hint_path, version_path
from capture.archive.table import Table
from capture.iceberg import Exposer
from capture.iceberg.manifest_plan import count_live
from capture.stores import open_store


class World:
    """A table that changes, a model of it, and what its commits read from the store and write to it.

    `since` is the number of the snapshot that added a file, by the file's path, and `files` the files by it.
    """

    def __init__(self, folder, **rule):
        self.store = open_store(str(folder))
        self.rule = Expiry(**rule)
        self.table, self.now, self.columns = Table(), float(HOUR), ""
        self.since, self.snapshots, self.number = {}, 0, 0
        self.known, self.read, self.written = {}, [], []
        get, put = self.store.get, self.store.put

        async def watched_get(path):
            self.read.append(path)
            return await get(path)

        async def watched_put(path, data, **options):
            self.written.append(path)
            return await put(path, data, **options)

        self.store.get, self.store.put = watched_get, watched_put
        self.new_leader()

    def new_leader(self):
        self.exposer = Exposer(self.store, self.rule)

    async def file(self, *, key="eu", interval=HOUR, rows=1, **more):
        first, self.number = self.number + 1, self.number + rows
        sequences = list(range(first, self.number + 1))
        return await table_file(self.store, sequences, name=f"{first:06}", key=key, interval=interval, **more)

    async def commit(self, came=(), gone=()):
        """Change the table; `read` and `written` are then the paths of this commit without the data files."""
        paths = {one.path for one in gone}
        self.read.clear()
        self.written.clear()
        table = msgspec.structs.replace(
            self.table,
            files=[*(one for one in self.table.files if one.path not in paths), *came],
            retired=[*self.table.retired, *(Retired(path, self.now) for path in paths)],
            columns=self.columns,
        )
        exposed = await expose_files(self.exposer, self.table.files, table, now=self.now)
        self.table = msgspec.structs.replace(exposed, number=self.table.number + 1)
        if came or gone:
            self.snapshots += 1
            self.since |= {one.path: self.snapshots for one in came}
        opened, stored = list(self.read), list(self.written)
        await self.exposer.announce(self.table)
        self.read, self.written = opened, stored

    @property
    def reader(self):
        return static_table(self.store)

    def manifests(self):
        table = self.reader
        return table.current_snapshot().manifests(table.io)

    def path(self, location):
        return location.removeprefix(f"{self.exposer._base}/")

    def holding(self, files):
        """Return the paths of the manifests that hold these files."""
        wanted, table = {one.path for one in files}, self.reader
        return {
            self.path(manifest.manifest_path)
            for manifest in self.manifests()
            if wanted & {self.path(one.data_file.file_path) for one in manifest.fetch_manifest_entry(table.io)}
        }

    def check(self, came=(), gone=()):
        """Check that the current snapshot is as the model says, for every reader of its metadata."""
        table = self.reader
        current = table.current_snapshot()
        live, added, deleted, counted = {}, {}, {}, [0, 0]
        for manifest in current.manifests(table.io):
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            numbers = []
            for one in entries:
                path = self.path(one.data_file.file_path)
                assert one.sequence_number == one.file_sequence_number == self.since[path]
                if one.snapshot_id == current.snapshot_id and one.status != ManifestEntryStatus.EXISTING:
                    {ManifestEntryStatus.ADDED: added, ManifestEntryStatus.DELETED: deleted}[one.status][path] = one
                if one.status != ManifestEntryStatus.DELETED:
                    assert path not in live
                    live[path] = one.data_file
                    numbers.append(one.sequence_number)
                    assert one.snapshot_id == self.ids[self.since[path]]
            if numbers:
                assert manifest.min_sequence_number <= min(numbers) <= max(numbers) <= manifest.sequence_number
            assert count_live(manifest) == len(numbers)
            counted[0] += len(numbers)
            counted[1] += manifest.added_rows_count + manifest.existing_rows_count
        files = {one.path: one for one in self.table.files}
        assert live.keys() == files.keys()
        assert {path: (one.record_count, one.file_size_in_bytes) for path, one in live.items()} == {
            path: (one.count, one.bytes) for path, one in files.items()
        }
        assert added.keys() == {one.path for one in came}
        assert deleted.keys() == {one.path for one in gone}
        total = [len(files), sum(one.count for one in files.values()), sum(one.bytes for one in files.values())]
        said = current.summary.additional_properties
        assert [int(said[f"total-{name}"]) for name in ("data-files", "records", "files-size")] == total
        assert counted == total[:2]

    @property
    def ids(self):
        """The id of each snapshot, by its number."""
        return self.known | {one.sequence_number: one.snapshot_id for one in self.reader.snapshots()}

    async def paths(self, *prefixes):
        return {one.path for prefix in prefixes for one in await self.store.list(prefix)}


async def needed(world):
    """Return the paths of all that Iceberg's readers open, of every snapshot that is left."""
    table, locations = world.reader, set()
    for one in table.snapshots():
        locations.add(one.manifest_list)
        for manifest in one.manifests(table.io):
            locations.add(manifest.manifest_path)
            locations |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    exposed = world.table.iceberg["S"]
    own = {exposed.metadata, hint_path("S"), version_path("S", exposed.number)}
    return own | {world.path(one) for one in locations}
