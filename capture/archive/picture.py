"""An archive at one moment, as its readers see it: blocks and table together, each message once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from capture.archive import chain
from capture.archive.chain import Check, HeadReader
from capture.archive.index.contents import Indexes, load, scan_from
from capture.archive.index.page import place_of
from capture.archive.index.tree import ALL, Where
from capture.archive.index.update import held_of
from capture.archive.manifest import Manifest, Stored
from capture.archive.retention import removed_sequences
from capture.archive.sequences import Sequences
from capture.archive.table import Table, first_table, list_waiting
from capture.errors import ManifestError
from capture.stores.contract import Store

GRACE = 900.0
"""Seconds until a block that no document names, or that the table has consumed, is deleted.

Readers of an older picture have this time, and so has a writer between a block and its entry. The writer of a block
gives up, without an ack, if its entry was not durable within half of this time.
"""


@dataclass(frozen=True)
class Picture:
    """An archive at one moment: a manifest, and a table that was committed later, with the objects that `where` finds.

    Both have them in their lists: see `Indexed`.
    """

    manifest: Manifest
    table: Table
    where: Where = ALL

    @property
    def blocks(self) -> list[Stored]:
        """The adopted blocks whose rows the table does not hold."""
        return list_waiting(self.table, self.manifest)

    @property
    def files(self) -> list[Stored]:
        """The table's files."""
        return self.table.files

    @property
    def removed(self) -> Mapping[str, Sequences]:
        """The sequences that retention has removed, by stream: not missing. Other objects may still hold some."""
        return removed_sequences(self.manifest.removed, self.table.removed)

    @property
    def is_whole(self) -> bool:
        """Whether the two belong together: neither is older than the one that the other was made of."""
        return self.manifest.of_table <= self.table.number and self.table.of_manifest <= self.manifest.number

    def list_unadopted(self, entries: Iterable[Stored]) -> list[Stored]:
        """Return those of the entries, which were read earlier, whose blocks this picture does not name."""
        known = self.manifest.list_paths() | self.table.consumed_paths
        return [one for one in entries if one.path not in known and self.where.finds(one)]


async def read_documents(
    store: Store,
    manifest_head: HeadReader,
    table_head: HeadReader,
    *,
    check: Check | None = None,
    where: Where = ALL,
) -> Picture:
    """Return the archive as last committed, without loading the objects that its indexes name: `scan` reads these.

    ManifestError if a document that a head names is missing or was changed. `check` checks each document before it is
    used.

    Reads the manifest first, then the table. A block that is compacted between the two reads is in both, and is left
    out because the table names it; a block that the sweep removes between them is already in the table. In the other
    order it would be in neither. If the reader was so slow, or an answer so old, that the two do not belong together,
    it reads both again. The reader then has the sweep's grace time to read the pages and the objects: they are not
    deleted earlier.
    """
    before: Picture | None = None
    while True:
        manifest = await chain.read(store, await manifest_head(), Manifest, check=check)
        head = await table_head()
        table = first_table(manifest) if head is None else await chain.read(store, head, Table, check=check)
        picture = Picture(manifest, table, where)
        if picture.is_whole:
            return picture
        if picture == before:
            raise ManifestError(
                f"manifest {manifest.number} and table {table.number} in {store.url} don't belong together: they were"
                f" made of table {manifest.of_table} and manifest {table.of_manifest}; is the store complete?"
            )
        before = picture


async def read_picture(
    store: Store,
    manifest_head: HeadReader,
    table_head: HeadReader,
    *,
    check: Check | None = None,
    where: Where = ALL,
) -> Picture:
    """Return the archive as last committed, with the objects that `where` finds. Raises as `read_documents` does."""
    return await load_objects(store, await read_documents(store, manifest_head, table_head, check=check, where=where))


async def load_objects(store: Store, picture: Picture) -> Picture:
    """Return a picture of `read_documents` with its objects. Raises as `scan`."""
    where = picture.where
    return Picture(await load(store, picture.manifest, where), await load(store, picture.table, where), where)


async def scan(indexes: Indexes, picture: Picture) -> AsyncIterator[list[Stored]]:
    """Yield the objects of a picture, a leaf of its indexes at a time: the blocks that wait, then the table's files.

    ManifestError if a page is missing, was changed or is damaged: pages are deleted after the grace time; StoreError.
    """
    consumed = picture.table.consumed_paths
    async for part in scan_from(indexes.blocks, picture.manifest, picture.where):
        yield [one for one in part if one.path not in consumed]
    async for part in scan_from(indexes.files, picture.table, picture.where):
        yield part


async def find_unadopted(indexes: Indexes, picture: Picture, entries: Iterable[Stored]) -> list[Stored]:
    """Return those of the entries, which were read earlier, whose blocks a picture does not name. Raises as `scan`."""
    entries, manifest = list(entries), picture.manifest
    if manifest.listed:
        return picture.list_unadopted(entries)
    adopted = await indexes.blocks.find(manifest.index, map(place_of, entries))
    known = {place[-1] for place in adopted}
    return [one for one in picture.list_unadopted(entries) if one.path not in known]


async def find_held(indexes: Indexes, picture: Picture, stream: str) -> Sequences:
    """Return the sequences of a stream in the blocks and the table's files. Raises as `scan`."""
    found = []
    for index, document in ((indexes.blocks, picture.manifest), (indexes.files, picture.table)):
        found.append(await held_of(index, document.index, stream))
        found += [Sequences.from_bytes(one.sequences) for one in document.listed if one.stream == stream]
    return Sequences.union_of(found)
