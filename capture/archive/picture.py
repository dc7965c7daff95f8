"""An archive at one moment, as its readers see it: blocks and table together, each message once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capture.archive import chain
from capture.archive.chain import Check, HeadReader
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
    """An archive at one moment: a manifest, and a table that was committed later."""

    manifest: Manifest
    table: Table

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
        known = self.manifest.list_paths().union(self.table.consumed)
        return [one for one in entries if one.path not in known]


async def read_picture(
    store: Store, manifest_head: HeadReader, table_head: HeadReader, *, check: Check | None = None
) -> Picture:
    """Return the archive as last committed. ManifestError if a document that a head names is missing or was changed.

    `check` checks each document before it is used.

    Reads the manifest first, then the table. A block that is compacted between the two reads is in both, and is left
    out because the table names it; a block that the sweep removes between them is already in the table. In the other
    order it would be in neither. If the reader was so slow, or an answer so old, that the two do not belong together,
    it reads both again. The reader then has the sweep's grace time to read the objects: they are not deleted earlier.
    """
    before: Picture | None = None
    while True:
        manifest = await chain.read(store, await manifest_head(), Manifest, check=check)
        head = await table_head()
        table = first_table(manifest) if head is None else await chain.read(store, head, Table, check=check)
        picture = Picture(manifest, table)
        if picture.is_whole:
            return picture
        if picture == before:
            raise ManifestError(
                f"manifest {manifest.number} and table {table.number} in {store.url} don't belong together: they were"
                f" made of table {manifest.of_table} and manifest {table.of_manifest}; is the store complete?"
            )
        before = picture
