"""The table: the compacted files, and the blocks that they replace. Only the compaction's leader commits it.

It works for any table format: one commit of one head changes the files and the replaced blocks together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, Protocol, TypeVar

import msgspec

from capture.archive.chain import Retired
from capture.archive.iceberg_state import Exposable, Layout
from capture.archive.index.version import Place, Version
from capture.archive.manifest import TABLE, Manifest, Removed, Stored
from capture.archive.retention import record_removed


class Table(Exposable, frozen=True, kw_only=True):
    """The table at one moment: its files, and the blocks that they were made of.

    `consumed` are the places in the manifest's index (before format 3: the paths) of the blocks whose rows the files
    hold, as long as they are in it. `of_manifest` is the number of the manifest that the table was last made
    of: with an older manifest it may show a message twice, since it no longer names blocks which that manifest names.
    `removed` is what retention has removed of the files, by stream. `columns` are the typed columns of all files so far
    (`merge.schema_evolution.read_columns`). `iceberg` is each stream's Iceberg table for other engines; format 1 has
    none. `shown` is an index of the blocks that Iceberg's tables have beside the files, until they are merged. They are
    the manifest's, and not consumed. Their `sequences` are those that they show; a delete file masks their other rows.
    Files hold and shown blocks show each sequence once. `shown_of` is the number of the
    manifest that they were last compared with.
    """

    FOLDER: ClassVar[str] = "_table/"
    FORMAT: ClassVar[int] = 3
    PAGES: ClassVar[str] = "_index/table/"
    LIST: ClassVar[str] = "files"

    files: list[Stored] = msgspec.field(default_factory=list)
    consumed: list[Place | str] = msgspec.field(default_factory=list)
    of_manifest: int = 0
    removed: list[Removed] = msgspec.field(default_factory=list)
    columns: str = ""
    shown: Version = Version()
    shown_of: int = 0

    def list_versions(self) -> list[Version]:
        """Return the versions of indexes that it names: of the files, and of the shown blocks."""
        return [self.index, self.shown]

    @property
    def consumed_paths(self) -> set[str]:
        """The paths of the consumed blocks."""
        return {path_of(one) for one in self.consumed}

    def layout(self, stream: str) -> Layout:
        """Return how its files are laid out: those of all streams have the same columns."""
        return Layout(self.columns)

    def is_brief(self, stream: str) -> bool:
        """Return whether it shows blocks of a stream: the merge replaces them soon."""
        return stream in self.shown.streams


Exposed = TypeVar("Exposed", bound=Exposable)


@dataclass(frozen=True)
class TableChange(Generic[Exposed]):
    """A commit that is being prepared: `table` is about to be committed, of an archive or of pipelines.

    `came` and `gone` are what the commit adds to and removes from the files that `table.iceberg` describes; an object
    that is in both has other sequences than before. If the `same_rows` are in both, readers of what is new skip the
    commit. `files` returns all files of a stream in the table, in lists of any
    length. `token` is the term's, and `now` the time of the commit (Unix seconds).
    """

    table: Exposed
    came: Sequence[Stored]
    gone: Sequence[Stored]
    files: Callable[[str], AsyncIterator[list[Stored]]]
    token: int
    now: float
    same_rows: bool = field(default=False, kw_only=True)


class Exposure(Protocol):
    """How other engines can read the table of an archive: `capture.iceberg.Exposer`, or not at all.

    Its output is valid only when the `Table` that names it is committed: so files and pointers change together.
    """

    def is_due(self, table: Exposable, now: float) -> bool:
        """Return whether the metadata for engines has to change although the table's files do not."""
        ...

    async def expose(self, change: TableChange[Exposed]) -> Exposed:
        """Write the metadata for engines of the table that is about to be committed; return it with pointers to them.

        `change.files` is read only to describe all files of a stream anew. Removes paths that older snapshots still
        name from the table's `retired`, and adds them when those snapshots expire.
        """
        ...

    async def list_fitting(self, table: Table, blocks: Sequence[Stored]) -> tuple[list[Stored], str]:
        """Return those of the blocks that the table can show to engines, and its `columns` with theirs. StoreError.

        A block's record has all its rows as `count`, and as `sequences` those that it shall show, each once.
        """
        ...

    async def announce(self, table: Exposable, *, check: Callable[[], None] = lambda: None) -> None:
        """Publish a committed table to readers that have no head. Idempotent; a later call repairs a missed one.

        `check` raises FencedError if the term is over, and is called before each write: a leader that stood still must
        not replace what its successor has published.
        """
        ...


class Unexposed:
    """No other engine reads the table."""

    def is_due(self, table: Exposable, now: float) -> bool:
        """Return True once, to remove earlier metadata; after that it would not change."""
        return bool(table.iceberg)

    async def expose(self, change: TableChange[Exposed]) -> Exposed:
        """Remove the earlier metadata."""
        return msgspec.structs.replace(change.table, iceberg={})

    async def list_fitting(self, table: Table, blocks: Sequence[Stored]) -> tuple[list[Stored], str]:
        """Return no block."""
        return [], table.columns

    async def announce(self, table: Exposable, *, check: Callable[[], None] = lambda: None) -> None:
        """Do nothing: there are no readers."""


def list_open_streams(table: Exposable) -> set[str]:
    """Return the streams that have files, or shown blocks, which other engines can open."""
    return table.list_open()


def first_table(manifest: Manifest) -> Table:
    """Return the initial table of an archive: empty, or as recorded in its manifest of format 1."""
    retired = [one for one in manifest.retired if one.path.startswith(TABLE)]
    return Table(files=manifest.table, retired=retired, of_manifest=manifest.number)


def path_of(consumed: Place | str) -> str:
    """Return the path of a consumed block."""
    return consumed if isinstance(consumed, str) else consumed[-1]


def list_still_named(table: Table, manifest: Manifest) -> list[Place | str]:
    """Return which consumed blocks the table must still name for this manifest, and for later ones: its own blocks.

    The manifest that the table was made of, or an earlier one, had every consumed block. If a later manifest does not
    have it, the sweep has retired it, and keeps it so until it has removed the block with its entry. So it can't come
    back. If the same content were ever stored again, it would be a block with repeated messages, and a merge leaves
    those out.
    """
    named = {one.path for one in manifest.blocks}
    return [one for one in table.consumed if path_of(one) in named]


def list_waiting(table: Table, manifest: Manifest) -> list[Stored]:
    """Return the blocks whose rows the table does not hold."""
    consumed = table.consumed_paths
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
