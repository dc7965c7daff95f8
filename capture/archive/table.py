"""The table: what is compacted, and of which blocks. The compaction's leader alone commits it.

The seam to whatever format the table has: its files and what they replace change together, by one commit of one head.
"""

from __future__ import annotations

from collections.abc import Container
from typing import ClassVar, Protocol

import msgspec

from capture.archive.chain import Document, Retired
from capture.archive.iceberg_state import Iceberg, iceberg_paths
from capture.archive.manifest import TABLE, Manifest, Removed, Stored
from capture.archive.retention import recorded
from capture.stores.contract import Store


class Table(Document, frozen=True, kw_only=True):
    """The table at one moment: its files, and what they were made of.

    `consumed` are the paths of the blocks whose rows the files hold, for as long as the manifest names them; `retired`
    are earlier files that are about to be deleted. `of_manifest` is the number of the manifest that it was last made
    of: beside an older one it may show a message twice, since it has forgotten blocks which that one still names.
    `removed` is what retention has removed of the files, by stream. `columns` are the typed columns of all files so far
    (`merge.schema_evolution.read_columns`). `iceberg` has each stream's table as other engines see it; there is none
    in format 1.
    """

    FOLDER: ClassVar[str] = "_table/"
    FORMAT: ClassVar[int] = 2

    files: list[Stored] = msgspec.field(default_factory=list)
    consumed: list[str] = msgspec.field(default_factory=list)
    of_manifest: int = 0
    removed: list[Removed] = msgspec.field(default_factory=list)
    columns: str = ""
    iceberg: dict[str, Iceberg] = msgspec.field(default_factory=dict)

    def named(self) -> set[str]:
        """Return every path that must not be deleted: files, what is retired, and what other engines' readers need."""
        paths = {one.path for part in (self.files, self.retired) for one in part}
        return paths.union(iceberg_paths(self.iceberg))


class Exposure(Protocol):
    """How other engines get to see the table: `capture.iceberg.Exposer`, or not at all.

    Whatever it writes counts only when the `Table` that names it is committed: then files and pointers change together.
    """

    def is_due(self, table: Table, now: float) -> bool:
        """Tell whether what engines see is to change although the table's files do not."""
        ...

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Write what engines read about the table that is about to be committed; return it with pointers to that.

        What snapshots of the past still name is taken out of its `retired`, and put there when they expire.
        """
        ...

    async def announce(self, store: Store, table: Table) -> None:
        """Tell readers that know no head of a committed table. Idempotent; a next call makes up for a missed one."""
        ...


class Unexposed:
    """No other engine sees the table."""

    def is_due(self, table: Table, now: float) -> bool:
        """Once: what engines see would not change any more."""
        return bool(table.iceberg)

    async def expose(self, store: Store, table: Table, *, token: int, now: float) -> Table:
        """Take away what they saw."""
        return msgspec.structs.replace(table, iceberg={})

    async def announce(self, store: Store, table: Table) -> None:
        """Nobody is told."""


def first_table(manifest: Manifest) -> Table:
    """Return the table that an archive begins with: empty, or what its manifest of format 1 told of it."""
    retired = [one for one in manifest.retired if one.path.startswith(TABLE)]
    return Table(files=manifest.table, retired=retired, of_manifest=manifest.number)


def unforgotten(table: Table, manifest: Manifest) -> list[str]:
    """Return which consumed blocks the table has to go on naming beside this manifest, or one that comes after it.

    Every consumed block was named by the manifest that the table was made of, or by one before it. Where a later
    manifest does not name it, the sweep has let it go and deleted it, entry and all, and nothing brings it back: were
    the same content ever stored again, it would be a block like any that repeats messages, and a merge leaves them out.
    """
    named = {one.path for part in (manifest.blocks, manifest.retired) for one in part}
    return [path for path in table.consumed if path in named]


def waiting(table: Table, manifest: Manifest) -> list[Stored]:
    """Return the blocks whose rows the table does not hold."""
    consumed = set(table.consumed)
    return [one for one in manifest.blocks if one.path not in consumed]


def without(table: Table, paths: Container[str], now: float) -> Table:
    """Return the table without those of its files that retention removes: retired, and recorded as removed."""
    gone = [one for one in table.files if one.path in paths]
    return msgspec.structs.replace(
        table,
        files=[one for one in table.files if one.path not in paths],
        retired=[*table.retired, *(Retired(one.path, now) for one in gone)],
        removed=recorded(table.removed, gone, now),
    )
