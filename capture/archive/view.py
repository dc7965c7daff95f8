"""What a reader sees of an archive: blocks and table as one, each message once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from capture.archive import chain
from capture.archive.chain import Check, HeadReader
from capture.archive.manifest import Manifest, Stored
from capture.archive.retention import removed_sequences
from capture.archive.sequences import Sequences
from capture.archive.table import Table, first_table, waiting
from capture.errors import ManifestError
from capture.stores.contract import Store

GRACE = 900.0
"""Seconds before a block that nothing names is deleted, and one that the table has consumed.

It is what readers of an older picture get, and what a writer has between a block and its entry. Whoever writes a block
gives up, without an ack, if its entry was not durable within half of this.
"""


@dataclass(frozen=True)
class Picture:
    """An archive at one moment: a manifest, and a table that was committed later."""

    manifest: Manifest
    table: Table

    @property
    def blocks(self) -> list[Stored]:
        """The adopted blocks whose rows the table does not hold."""
        return waiting(self.table, self.manifest)

    @property
    def files(self) -> list[Stored]:
        """The table's files."""
        return self.table.files

    @property
    def removed(self) -> Mapping[str, Sequences]:
        """What retention has removed, by stream: not missing. Other objects may hold some of it all the same."""
        return removed_sequences(self.manifest.removed, self.table.removed)

    @property
    def is_whole(self) -> bool:
        """Whether the two belong together: neither is older than the one that the other was made of."""
        return self.manifest.of_table <= self.table.number and self.table.of_manifest <= self.manifest.number

    def unadopted(self, entries: Iterable[Stored]) -> list[Stored]:
        """Return those of some entries that were read before, whose blocks this picture has not got otherwise."""
        known = {one.path for part in (self.manifest.blocks, self.manifest.retired) for one in part}
        known.update(self.table.consumed)
        return [one for one in entries if one.path not in known]


async def read_picture(
    store: Store, manifest_head: HeadReader, table_head: HeadReader, *, check: Check | None = None
) -> Picture:
    """Return the archive as last committed. ManifestError if what a head names is missing or was changed.

    `check` looks at each document before it is believed.

    The manifest is read first, the table after it: a block that is compacted in between is then in both, and left out
    since the table names it; one that the sweep lets go in between is in the table already. The other way round it
    would be in neither. A reader that was so slow, or an answer so old, that the two don't belong together reads both
    again. It has the sweep's grace time to read the objects: they are not deleted before.
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
