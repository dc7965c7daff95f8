"""A new snapshot of an Iceberg table: adds and removes files in one step. Decides and encodes; reads nothing.

A commit writes its own entries into one new manifest. The manifests that it opened are written again: because it
removes a file of theirs, or because there are many small ones. All others stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
    update_table_metadata,
)
from pyiceberg.types import StructType

from capture.errors import ManifestError
from capture.iceberg.manifest_file import Copied, join, read_live, write_copied, write_entries
from capture.iceberg.manifest_list import Listed, write_list
from capture.iceberg.manifest_plan import LARGEST, count_live, is_full
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.shapes import OWN_PARTITION, partition_types


@dataclass(frozen=True)
class Opened:
    """The manifests of the current snapshot; `content` has those that were opened; `merge` are small ones to merge.

    `types` are those of their partitions, by the number of the partition spec.
    """

    manifests: Sequence[Listed] = ()
    content: Mapping[str, bytes] = field(default_factory=dict)
    merge: frozenset[str] = frozenset()
    types: Mapping[int, StructType] = field(default_factory=lambda: {0: OWN_PARTITION})


@dataclass(frozen=True)
class NewFile:
    """A file to add: its entry, its first sequence, and the entry of a delete file that masks rows of it."""

    entry: DataFile
    first: int
    deletes: DataFile | None = None


@dataclass(frozen=True)
class Added:
    """A new snapshot: the `metadata` with it, its id, its manifests, and the locations of the files it removes."""

    metadata: TableMetadata
    snapshot_id: int
    manifests: list[Listed]
    removed: list[str]


class NewSnapshot:
    """A snapshot that is being made. Its manifests and their list are added to `files`."""

    def __init__(self, metadata: TableMetadata, files: MemoryFiles, unique: Callable[[], str]) -> None:
        self._metadata = metadata
        self._files = files
        self._unique = unique
        self._number = metadata.new_snapshot_id()
        self._manifests: list[ManifestFile] = []
        self._kept: list[Listed] = []
        self._changes = SnapshotSummaryCollector()
        self._adds = self._masks = False
        self._removed: list[str] = []

    def change(self, opened: Opened, came: Sequence[NewFile], gone: frozenset[str]) -> None:
        """Add and remove these files. Raises ManifestError if the opened manifests do not hold a file of `gone`."""
        copied, removed = self._copy(opened, gone)
        if missing := gone - {one.data_file.file_path for one in removed}:
            raise ManifestError(f"no manifest holds {min(missing)}, which is to be removed")
        specs = {one.spec for one in copied} | {one.manifest.partition_spec_id for one in self._kept}
        if left := specs - partition_types(self._metadata).keys():
            raise ManifestError(f"files remain that are partitioned by a deleted column: partition spec {min(left)}")
        self.add(came, removed)
        self._manifests += [
            write_copied(self._metadata, one, self._number, self._files, self._unique()) for one in copied
        ]

    def add(self, came: Sequence[NewFile], removed: Sequence[ManifestEntry] = ()) -> None:
        """Write manifests with these new files, and with the entries of removed ones."""
        came = sorted(came, key=_sort)
        masked = [(one.deletes, one.first) for one in came if one.deletes]
        self._adds, self._masks = self._adds or bool(came), self._masks or bool(masked)
        self._removed += (one.data_file.file_path for one in removed)
        files = [one for one in removed if one.data_file.content == DataFileContent.DATA]
        deletes = [one for one in removed if one.data_file.content != DataFileContent.DATA]
        self._write(ManifestContent.DATA, [(one.entry, one.first) for one in came], files)
        self._write(ManifestContent.DELETES, masked, deletes)

    def _write(
        self, content: ManifestContent, came: Sequence[tuple[DataFile, int]], removed: Sequence[ManifestEntry]
    ) -> None:
        schema, own, specs = self._metadata.schema(), self._metadata.spec(), self._metadata.specs()
        known = partition_types(self._metadata)
        for one, _ in came:
            self._changes.add_file(one, schema, own)
        gone: dict[int, list[ManifestEntry]] = {own.spec_id: []}
        for entry in removed:
            number = entry.data_file.spec_id
            self._changes.remove_file(entry.data_file, schema, specs[number])
            if number in known:  # no manifest can be written for the partitions of a deleted column
                gone.setdefault(number, []).append(entry)
        for number, entries in gone.items():
            self._write_part(content, number, came if number == own.spec_id else (), entries)

    def _write_part(
        self,
        content: ManifestContent,
        spec: int,
        came: Sequence[tuple[DataFile, int]],
        removed: Sequence[ManifestEntry],
    ) -> None:
        number = self._number
        for start in range(0, max(len(came), len(removed)), LARGEST):
            part, gone = came[start : start + LARGEST], removed[start : start + LARGEST]
            entries = [
                *(_entry(ManifestEntryStatus.ADDED, number, one) for one, _ in part),
                *(_entry(ManifestEntryStatus.DELETED, number, one.data_file, one) for one in gone),
            ]
            firsts = [first for _, first in part]
            self._manifests.append(
                write_entries(self._metadata, spec, content, entries, firsts, number, self._files, self._unique())
            )

    def finish(self, now: float, said: Mapping[str, str], *, same_rows: bool = False) -> Added:
        """Write the manifest list. Return the table with the snapshot as the current one; `said` is in its summary.

        If the table has the `same_rows` in other files, the operation is "replace": incremental readers skip it.
        Raises ManifestError if the manifests do not hold as many files and rows as the summary says.
        """
        metadata, number, before = self._metadata, self._number, self._metadata.current_snapshot()
        parent = None if before is None else before.snapshot_id
        replaces = self._removed or self._masks
        operation = Operation.APPEND if not replaces else Operation.OVERWRITE if self._adds else Operation.DELETE
        summary = update_snapshot_summaries(
            Summary(operation, **self._changes.build(), **said),
            before.summary if before else None,
        )
        if same_rows:
            summary = Summary(Operation.REPLACE, **summary.additional_properties)
        _check_totals([*self._manifests, *(one.manifest for one in self._kept)], summary)
        manifest_list = f"{metadata.location}/metadata/snap-{number}-{self._unique()}.avro"
        listed = write_list(
            manifest_list,
            self._files,
            self._kept,
            self._manifests,
            snapshot_id=number,
            parent=parent,
            sequence_number=metadata.next_sequence_number(),
        )
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": number,
                "parent-snapshot-id": parent,
                "sequence-number": metadata.next_sequence_number(),
                "timestamp-ms": max(int(now * 1000), metadata.last_updated_ms + 1),
                "manifest-list": manifest_list,
                "summary": summary,
                "schema-id": metadata.current_schema_id,
            }
        )
        updates: tuple[TableUpdate, ...] = (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate.model_validate({"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": number}),
        )
        return Added(update_table_metadata(metadata, updates), number, listed, self._removed)

    def _copy(self, opened: Opened, gone: frozenset[str]) -> tuple[list[Copied], list[ManifestEntry]]:
        """Keep the other manifests. Return what to copy of those that are written again, and the removed entries."""
        full: list[Copied] = []
        small: dict[tuple[ManifestContent, int], list[Copied]] = defaultdict(list)
        removed: list[ManifestEntry] = []
        for listed in opened.manifests:
            one = listed.manifest
            content = opened.content.get(one.manifest_path)
            if not count_live(one):
                continue
            if content is None:
                self._kept.append(listed)
                continue
            live, found = read_live(one, content, gone, opened.types[one.partition_spec_id])
            for entry in found:
                entry.data_file.spec_id = one.partition_spec_id
            if not found and one.manifest_path not in opened.merge:
                self._kept.append(listed)
            elif live.count:
                (full if is_full(one) else small[one.content, live.spec]).append(live)
            removed += found
        return [*full, *(join(part) for parts in small.values() for part in _split(parts))], removed


def _sort(one: NewFile) -> list[tuple[bool, Any]]:
    """Return the key that files are sorted by in a manifest: the last field of the partition counts first."""
    partition = one.entry.partition
    return [(partition[field] is not None, partition[field]) for field in reversed(range(len(partition)))]


def without_snapshots(metadata: TableMetadata, numbers: list[int]) -> TableMetadata:
    """Return the metadata without these past snapshots."""
    if not numbers:
        return metadata
    return update_table_metadata(metadata, (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": numbers}),))


def _split(small: Iterable[Copied]) -> Iterator[list[Copied]]:
    """Yield parts that make a manifest each."""
    part: list[Copied] = []
    for one in small:
        if part and sum(other.count for other in part) + one.count > LARGEST:
            yield part
            part = []
        part.append(one)
    if part:
        yield part


def _entry(
    status: ManifestEntryStatus, snapshot_id: int, file: DataFile, before: ManifestEntry | None = None
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=before and before.sequence_number,
        file_sequence_number=before and before.file_sequence_number,
        data_file=file,
    )


def _check_totals(manifests: Iterable[ManifestFile], summary: Summary) -> None:
    files = rows = deletes = 0
    for one in manifests:
        if one.content == ManifestContent.DATA:
            files += count_live(one)
            rows += (one.added_rows_count or 0) + (one.existing_rows_count or 0)
        else:
            deletes += count_live(one)
    said = [int(summary[name] or 0) for name in ("total-data-files", "total-records", "total-delete-files")]
    if [files, rows, deletes] != said:
        raise ManifestError(
            f"its manifests hold {files} files, {rows} rows and {deletes} delete files; its summary says {said[0]}, "
            f"{said[1]} and {said[2]}"
        )
