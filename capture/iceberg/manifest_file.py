"""Manifests as Avro files: new entries are encoded, entries that stay are copied as bytes, without decoding them.

pyiceberg writes an entry of a manifest in 0.1 ms and reads it in 0.03 ms. Here a block of encoded entries is copied in
microseconds.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StructType

from capture.iceberg.avro_blocks import COMPRESSION, Records, pack, unpack, write_block
from capture.iceberg.manifest_plan import manifest_name, partition_bounds, sequence_range
from capture.iceberg.memory_catalog import MemoryFiles
from capture.iceberg.position_deletes import masked_location
from capture.iceberg.shapes import OWN_PARTITION

GROUP = 64
"""Entries in a block that is copied: compressed one by one, they take three times the bytes."""

_SEQUENCE = 4
"""The field id of the column `sequence` of an archive's table: only there are manifests without a range."""


@dataclass(frozen=True)
class Entries:
    """Encoded and compressed entries of files in the table: status EXISTING, with explicit sequence numbers."""

    count: int
    packed: bytes


@dataclass(frozen=True)
class Copied:
    """Entries to write into a new manifest as they are, and what a manifest list says about them.

    `content` says whether they are data files or delete files: no manifest has both. `spec` is the number of their
    partition spec. `bounds` are partitions that all
    others are between. `sequences` are the lowest and highest first sequence of the files; None if not known. `oldest`
    is the lowest sequence number of a snapshot that added one of the files.
    """

    content: ManifestContent
    spec: int
    blocks: list[Entries]
    rows: int
    bounds: list[Record]
    sequences: tuple[int, int] | None
    oldest: int

    @property
    def count(self) -> int:
        """The number of entries."""
        return sum(one.count for one in self.blocks)


def read_live(
    manifest: ManifestFile, data: bytes, gone: frozenset[str], types: StructType = OWN_PARTITION
) -> tuple[Copied, list[ManifestEntry]]:
    """Return a manifest's entries without the files `gone`, to be copied, and the decoded entries of those files.

    A delete file goes with the data file that it masks; `gone` are locations of data files.
    Entries of files that an earlier snapshot removed are left out. Only blocks that hold a file of `gone` are decoded,
    and all blocks of a manifest whose ranges are not known. `types` are those of its partitions.
    """
    wanted = [location.encode() for location in gone]
    sequences, bounds, records = sequence_range(manifest), partition_bounds(manifest, types), _records(types)
    whole: list[Entries] = []
    single: list[bytes] = []
    decoded: list[ManifestEntry] = []
    removed: list[ManifestEntry] = []
    for count, packed in _read_blocks(manifest, data, records):
        if count > 1 and not wanted and sequences and bounds:
            whole.append(Entries(count, packed))
            continue
        raw = unpack(packed) if count > 1 else packed
        hit = any(one in raw for one in wanted)
        entries = list(records.decode(raw, count)) if hit or not sequences or not bounds else []
        decoded += (one for one, _ in entries)
        if hit:
            removed += (one for one, _ in entries if masked_location(one.data_file) in gone)
            single += (encoded for one, encoded in entries if masked_location(one.data_file) not in gone)
        elif count > 1:
            whole.append(Entries(count, packed))
        else:
            single.append(raw)
    rows = (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
    copied = Copied(
        content=manifest.content,
        spec=manifest.partition_spec_id,
        blocks=[*whole, *_pack(single)],
        rows=rows - sum(one.data_file.record_count for one in removed),
        bounds=list(bounds or (one.data_file.partition for one in decoded)),
        sequences=sequences or _span([_first_sequence(one) for one in decoded]),
        oldest=manifest.min_sequence_number,
    )
    return copied, removed


def join(parts: Sequence[Copied]) -> Copied:
    """Return the entries of all parts, which have the same content and partition spec."""
    return Copied(
        content=parts[0].content,
        spec=parts[0].spec,
        blocks=[block for one in parts for block in one.blocks],
        rows=sum(one.rows for one in parts),
        bounds=[bound for one in parts for bound in one.bounds],
        sequences=_span([end for one in parts for end in one.sequences or (None,)]),
        oldest=min(one.oldest for one in parts),
    )


def write_copied(
    metadata: TableMetadata, copied: Copied, snapshot_id: int, files: MemoryFiles, unique: str
) -> ManifestFile:
    """Write a manifest of entries that stay in the table. Return its entry for the manifest list."""
    writer = _Writer(metadata, copied.spec, copied.content, copied.sequences, snapshot_id, files, unique)
    with writer:
        writer.copy(copied)
    return writer.to_manifest_file()


def write_entries(
    metadata: TableMetadata,
    spec: int,
    content: ManifestContent,
    entries: Iterable[ManifestEntry],
    firsts: Sequence[int],
    snapshot_id: int,
    files: MemoryFiles,
    unique: str,
) -> ManifestFile:
    """Write a manifest of these entries, each in a block of its own. Return its entry for the manifest list.

    `firsts` are the first sequences of the data files that are in the table, or that are masked.
    """
    with _Writer(metadata, spec, content, _span(firsts), snapshot_id, files, unique) as writer:
        for one in entries:
            writer.add_entry(one)
    return writer.to_manifest_file()


class _Writer(ManifestWriterV2):
    """Writes a manifest; its name has the range of the files' first sequences, if that is known."""

    def __init__(
        self,
        metadata: TableMetadata,
        spec: int,
        content: ManifestContent,
        sequences: tuple[int, int] | None,
        snapshot_id: int,
        files: MemoryFiles,
        unique: str,
    ) -> None:
        name = manifest_name(*sequences, unique) if sequences else f"{unique}-m.avro"
        output = files.new_output(f"{metadata.location}/metadata/{name}")
        super().__init__(metadata.specs()[spec], metadata.schema(), output, snapshot_id, COMPRESSION)
        self._content = content

    def content(self) -> ManifestContent:
        return self._content

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": self._content.name.lower()}

    def copy(self, copied: Copied) -> None:
        """Add entries as they are. The bounds of their partitions may be wider than needed."""
        for one in copied.blocks:
            write_block(self._writer, one.count, one.packed)
        self._existing_files += copied.count
        self._existing_rows += copied.rows
        self._partitions += copied.bounds
        self._min_sequence_number = copied.oldest


# --- blocks of encoded entries ---------------------------------------------------------------------------------------


def _read_blocks(manifest: ManifestFile, data: bytes, records: Records) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of live entries: the number of entries, and these: compressed if there are several.

    Blocks with several entries are from `copy`. pyiceberg writes one entry into a block: its status and its numbers are
    made explicit here.
    """
    blocks = records.read_blocks(data, manifest.manifest_path)
    if blocks is None:
        entries = manifest.fetch_manifest_entry(MemoryFiles({manifest.manifest_path: data}))
        yield from ((1, _make_explicit(records.encode(one), manifest)) for one in entries)
        return
    for count, packed in blocks:
        if count > 1:
            yield count, packed
        elif raw := _make_explicit(unpack(packed), manifest):
            yield 1, raw


def _make_explicit(raw: bytes, manifest: ManifestFile) -> bytes:
    """Return an entry with the status EXISTING, and with the numbers that it inherits; b"" if its file was removed."""
    decoder = new_decoder(raw)
    if decoder.read_int() == ManifestEntryStatus.DELETED.value:
        return b""
    explicit = io.BytesIO()
    encoder = BinaryEncoder(explicit)
    encoder.write_int(ManifestEntryStatus.EXISTING.value)
    assert manifest.added_snapshot_id is not None
    for inherited in (manifest.added_snapshot_id, manifest.sequence_number, manifest.sequence_number):
        encoder.write_int(1)  # of the union's two types: a number
        encoder.write_int(decoder.read_int() if decoder.read_int() else inherited)
    return explicit.getvalue() + raw[decoder.tell() :]


def _pack(raw: Sequence[bytes]) -> Iterator[Entries]:
    for start in range(0, len(raw), GROUP):
        group = raw[start : start + GROUP]
        yield Entries(len(group), pack(group))


def _first_sequence(entry: ManifestEntry) -> int | None:
    bound = (entry.data_file.lower_bounds or {}).get(_SEQUENCE)
    return None if bound is None else int(from_bytes(LongType(), bound))


def _span(numbers: Sequence[int | None]) -> tuple[int, int] | None:
    """Return the lowest and the highest number; None if one is not known, or there are none."""
    known = [one for one in numbers if one is not None]
    return (min(known), max(known)) if known and len(known) == len(numbers) else None


def _records(types: StructType = OWN_PARTITION) -> Records:
    """Return the schema of entries in partitions of these types."""
    return _create_records(str(types), types)


@lru_cache(maxsize=64)
def _create_records(_: str, types: StructType) -> Records:
    file = data_file_with_partition(format_version=2, partition_type=types)
    classes: dict[int, Any] = {-1: ManifestEntry, 2: DataFile}
    enums: dict[int, Any] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    schema = manifest_entry_schema_with_data_file(format_version=2, data_file=file)
    return Records(schema, "manifest_entry", classes, enums)
