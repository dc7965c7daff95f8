"""The table: the compacted files, and the blocks that they replace. Only the compaction's leader commits it.

It works for any table format: one commit of one head changes the files and the replaced blocks together.
"""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar, Protocol

import msgspec

from capture.archive.chain import Document, Retired
from capture.archive.iceberg_state import Iceberg, iceberg_paths
from capture.archive.manifest import TABLE, Manifest, Removed, Stored
from capture.archive.retention import record_removed
from capture.stores.contract import Store


class Table(Document, frozen=True, kw_only=True):
    """The table at one moment: its files, and the blocks that they were made of.

    `consumed` are the paths of the blocks whose rows the files hold, as long as the manifest names them; `retired` are
    earlier files that are about to be deleted. `of_manifest` is the number of the manifest that the table was last made
    of: with an older manifest it may show a message twice, since it no longer names blocks which that manifest names.
    `removed` is what retention has removed of the files, by stream. `columns` are the typed columns of all files so far
    (`merge.schema_evolution.read_columns`). `iceberg` is each stream's Iceberg table for other engines; format 1 has
    none.
    """

    FOLDER: ClassVar[str] = "_table/"
    FORMAT: ClassVar[int] = 2

    files: list[Stored] = msgspec.field(default_factory=list)
    consumed: list[str] = msgspec.field(default_factory=list)
    of_manifest: int = 0
    removed: list[Removed] = msgspec.field(default_factory=list)
    columns: str = ""
    iceberg: dict[str, Iceberg] = msgspec.field(default_factory=dict)

    def list_named(self) -> set[str]:
        """Return every path that must not be deleted: files, retired files, and what other engines' readers need."""
        paths = {one.path for part in (self.files, self.retired) for one in part}
        return paths.union(iceberg_paths(self.iceberg))


class Exposure(Protocol):
    """How other engines can read the table: `capture.iceberg.Exposer`, or not at all.

    Its output is valid only when the `Table` that names it is committed: so files and pointers change together.
    """

    def is_due(self, table: Table, now: float) -> bool:
        """Return whether the metadata for engines has to change although the table's files do not."""
        ...

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Write the metadata for engines of the table that is about to be committed; return it with pointers to them.

        Removes paths that older snapshots still name from the table's `retired`, and adds them when those snapshots
        expire.
        """
        ...

    async def announce(self, store: Store, table: Table) -> None:
        """Publish a committed table to readers that have no head. Idempotent; a later call repairs a missed one."""
        ...


class Unexposed:
    """No other engine reads the table."""

    def is_due(self, table: Table, now: float) -> bool:
        """Return True once, to remove earlier metadata; after that it would not change."""
        return bool(table.iceberg)

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Remove the earlier metadata."""
        return msgspec.structs.replace(table, iceberg={})

    async def announce(self, store: Store, table: Table) -> None:
        """Do nothing: there are no readers."""


def first_table(manifest: Manifest) -> Table:
    """Return the initial table of an archive: empty, or as recorded in its manifest of format 1."""
    retired = [one for one in manifest.retired if one.path.startswith(TABLE)]
    return Table(files=manifest.table, retired=retired, of_manifest=manifest.number)


def list_still_named(table: Table, manifest: Manifest) -> list[str]:
    """Return which consumed blocks the table must still name for this manifest, and for later ones.

    The manifest that the table was made of, or an earlier one, named every consumed block. If a later manifest does not
    name it, the sweep has removed it with its entry, and it can't come back. If the same content were ever stored
    again, it would be a block with repeated messages, and a merge leaves those out.
    """
    named = manifest.list_paths()
    return [path for path in table.consumed if path in named]


def list_waiting(table: Table, manifest: Manifest) -> list[Stored]:
    """Return the blocks whose rows the table does not hold."""
    consumed = set(table.consumed)
    return [one for one in manifest.blocks if one.path not in consumed]


def without(table: Table, paths: Container[str], now: float) -> Table:
    """Return the table without the files that retention removes: it retires them and records them as removed."""
    gone = [one for one in table.files if one.path in paths]
    return msgspec.structs.replace(
        table,
        files=[one for one in table.files if one.path not in paths],
        retired=[*table.retired, *(Retired(one.path, now) for one in gone)],
        removed=record_removed(table.removed, gone, now),
    )
