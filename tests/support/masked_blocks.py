"""An Iceberg table of blocks that repeat rows of one another, masked by delete files; changed by snapshots alone."""

import polars
from exposing import HOUR, sequences_of, table_file
from pyiceberg.table import StaticTable

from capture.archive.iceberg_state import archive_location, folder
from capture.iceberg.columns import evolve, new_metadata
from capture.iceberg.facts import data_file, read_footer
from capture.iceberg.manifest_plan import list_holding, list_to_merge
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.position_deletes import delete_entry, write_deletes
from capture.iceberg.snapshot import NewFile, NewSnapshot, Opened
from capture.maintenance.compaction_plan import new_name
from capture.stores import open_store


class Masked:
    """A table in a folder, changed by snapshots alone; `held` are the sequences of each file that are not masked."""

    def __init__(self, root):
        self.store = open_store(str(root))
        self.base = archive_location(self.store)
        self.metadata = evolve(new_metadata(f"{self.base}/{folder('S')}"), "", MemoryFiles())
        self.files, self.listed, self.number = {}, [], 0

    @property
    def held(self):
        return sorted(one for _, sequences in self.files.values() for one in sequences)

    async def block(self, first, last, files, *, own=False, **more):
        """Store a block without field ids; mask the sequences that the table holds."""
        self.number += 1
        name = f"{self.number:04}"
        one = await table_file(self.store, list(range(first, last + 1)), name=name, own=own, **more)
        entry = data_file(f"{self.base}/{one.path}", one, await read_footer(self.store, one), self.metadata.schema())
        repeated = [place for place, sequence in enumerate(range(first, last + 1)) if sequence in set(self.held)]
        deletes = None
        if repeated:
            location = f"{self.metadata.location}/metadata/{name}-deletes.parquet"
            files.write(location, write_deletes(entry.file_path, [*repeated, *repeated]))
            deletes = delete_entry(location, files.content[location], entry)
        kept = [one for one in range(first, last + 1) if one not in self.held]
        self.files[one.path] = (one, kept)
        return NewFile(entry, one.first, deletes)

    async def commit(self, *blocks, gone=(), **more):
        """Add blocks, each a pair of its first and last sequence, and remove files; return their paths."""
        files = MemoryFiles()
        gone = [self.files.pop(path)[0] for path in gone]
        content = await self.open(gone)
        before = set(self.files)
        came = [await self.block(first, last, files, **more) for first, last in blocks]
        new = NewSnapshot(self.metadata, files, new_name)
        new.change(content, came, frozenset(f"{self.base}/{one.path}" for one in gone))
        added = new.finish(HOUR + self.number, {})
        self.metadata, self.listed, self.removed = added.metadata, added.manifests, added.removed
        for location in files.written:
            await self.store.put(location.removeprefix(f"{self.base}/"), files.content[location])
        return [path for path in self.files if path not in before]

    async def open(self, gone):
        manifests = [one.manifest for one in self.listed]
        holding = list_holding(manifests, gone)
        merge = list_to_merge(one for one in manifests if one not in holding)
        paths = [one.manifest_path for one in (*holding, *merge)]
        content = {path: await self.store.get(path.removeprefix(f"{self.base}/")) for path in paths}
        return Opened(self.listed, content, frozenset(one.manifest_path for one in merge))

    async def reader(self):
        """Return the table as pyiceberg reads it, from a metadata file."""
        path = f"{folder('S')}/metadata/v{self.number}-{len(self.metadata.snapshots)}.metadata.json"
        await self.store.put(path, self.metadata.model_dump_json().encode(), if_absent=False)
        return StaticTable.from_metadata(f"{self.base}/{path}")

    async def check(self):
        table = await self.reader()
        assert sequences_of(table) == self.held
        scanned = polars.scan_iceberg(table, reader_override="native").select("sequence").collect()
        assert sorted(scanned["sequence"]) == self.held
        assert polars.scan_iceberg(table).select(polars.len()).collect().item() == len(self.held)
        said = table.current_snapshot().summary.additional_properties
        masks = [one.count - len(kept) for one, kept in self.files.values() if len(kept) < one.count]
        assert int(said["total-data-files"]) == len(self.files)
        assert int(said["total-delete-files"]) == len(masks)
        assert int(said["total-position-deletes"]) == sum(masks)
        return table
