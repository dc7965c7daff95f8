"""A new snapshot of an Iceberg table: adds and removes files in one step. Decides and encodes; reads nothing.

Manifests are merged as they are written, so that their number grows with the table's size and not with its age.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
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

from capture.iceberg.memory_catalog import MemoryFiles

SMALL = 100
"""A manifest with fewer files is small."""
MOST_SMALL = 10
"""If there are more small manifests than this, they are merged into one."""
LONGEST = 1000
"""The most entries of a manifest."""
COMPRESSION: Final = "deflate"

Read = list[tuple[ManifestFile, list[ManifestEntry]]]
"""The manifests of a snapshot, each with the entries of the files in the table."""


@dataclass(frozen=True)
class Added:
    """A new snapshot: the `metadata` with it, its id, and the locations of its manifests."""

    metadata: TableMetadata
    snapshot_id: int
    manifests: frozenset[str]


def add_snapshot(
    metadata: TableMetadata,
    read: Read,
    came: Sequence[DataFile],
    gone: frozenset[str],
    files: MemoryFiles,
    *,
    now: float,
    unique: Callable[[], str],
    said: Mapping[str, str],
) -> Added:
    """Return the table with a new current snapshot. Its manifests and their list are added to `files`.

    `read` are the manifests of the previous snapshot. The files `gone` are removed, the files `came` are added. `said`
    is the snapshot's summary.
    """
    number, before = metadata.new_snapshot_id(), metadata.current_snapshot()
    parent = None if before is None else before.snapshot_id
    kept, rewritten = _sort_out(read, gone)
    entries = [
        *(_entry(ManifestEntryStatus.ADDED, number, one) for one in came),
        *(_entry(ManifestEntryStatus.DELETED, number, one.data_file, one) for one in rewritten if _path(one) in gone),
        *_list_existing(one for one in rewritten if _path(one) not in gone),
    ]
    manifests = [*_write_manifests(metadata, entries, number, files, unique), *kept]
    manifest_list = f"{metadata.location}/metadata/snap-{number}-{unique()}.avro"
    with write_manifest_list(
        2, files.new_output(manifest_list), number, parent, metadata.next_sequence_number(), COMPRESSION
    ) as writer:
        writer.add_manifests(manifests)
    removed = [one.data_file for one in rewritten if _path(one) in gone]
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": metadata.next_sequence_number(),
            "timestamp-ms": max(int(now * 1000), metadata.last_updated_ms + 1),
            "manifest-list": manifest_list,
            "summary": _summary(metadata, came, removed, said),
            "schema-id": metadata.current_schema_id,
        }
    )
    updates: tuple[TableUpdate, ...] = (
        AddSnapshotUpdate(snapshot=snapshot),
        SetSnapshotRefUpdate.model_validate({"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": number}),
    )
    named = frozenset(one.manifest_path for one in manifests)
    return Added(update_table_metadata(metadata, updates), number, named)


def without_snapshots(metadata: TableMetadata, numbers: list[int]) -> TableMetadata:
    """Return the metadata without these past snapshots."""
    if not numbers:
        return metadata
    return update_table_metadata(metadata, (RemoveSnapshotsUpdate.model_validate({"snapshot-ids": numbers}),))


def _sort_out(read: Read, gone: frozenset[str]) -> tuple[list[ManifestFile], list[ManifestEntry]]:
    """Return the manifests that are kept, and the entries of the manifests that are written again."""
    touched = [any(_path(one) in gone for one in entries) for _, entries in read]
    small = sum(not hit and len(entries) < SMALL for hit, (_, entries) in zip(touched, read, strict=True))
    kept: list[ManifestFile] = []
    rewritten: list[ManifestEntry] = []
    for hit, (manifest, entries) in zip(touched, read, strict=True):
        if hit or (small > MOST_SMALL and len(entries) < SMALL):
            rewritten += entries
        elif entries:
            kept.append(manifest)
    return kept, rewritten


def _list_existing(entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
    """Yield groups of entries, sorted by interval, so that a manifest covers a short span of time."""
    for one in sorted(entries, key=lambda one: (one.data_file.partition[1], one.data_file.partition[0])):
        assert one.snapshot_id is not None
        yield _entry(ManifestEntryStatus.EXISTING, one.snapshot_id, one.data_file, one)


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


def _write_manifests(
    metadata: TableMetadata,
    entries: list[ManifestEntry],
    snapshot_id: int,
    files: MemoryFiles,
    unique: Callable[[], str],
) -> Iterator[ManifestFile]:
    for start in range(0, len(entries), LONGEST):
        location = f"{metadata.location}/metadata/{unique()}-m.avro"
        with write_manifest(
            2, metadata.spec(), metadata.schema(), files.new_output(location), snapshot_id, COMPRESSION
        ) as writer:
            for one in entries[start : start + LONGEST]:
                writer.add_entry(one)
        yield writer.to_manifest_file()


def _summary(
    metadata: TableMetadata, came: Sequence[DataFile], removed: Sequence[DataFile], said: Mapping[str, str]
) -> Summary:
    collected = SnapshotSummaryCollector()
    for one in came:
        collected.add_file(one, metadata.schema(), metadata.spec())
    for one in removed:
        collected.remove_file(one, metadata.schema(), metadata.spec())
    operation = Operation.APPEND if not removed else Operation.OVERWRITE if came else Operation.DELETE
    before = metadata.current_snapshot()
    return update_snapshot_summaries(
        Summary(operation, **collected.build(), **said), before.summary if before else None
    )


def _path(entry: ManifestEntry) -> str:
    return entry.data_file.file_path
