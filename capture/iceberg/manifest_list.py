"""Manifest lists: their entries are copied as bytes, as a list of a large table has hundreds that stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestFile,
    ManifestListWriterV2,
    PartitionFieldSummary,
    read_manifest_list,
)

from capture.iceberg.avro_blocks import COMPRESSION, Records, pack, unpack, write_block
from capture.iceberg.memory_catalog import MemoryFiles

_TYPES = {-1: ManifestFile, 508: PartitionFieldSummary}
_RECORDS = Records(MANIFEST_LIST_FILE_SCHEMAS[2], "manifest_file", _TYPES, {517: ManifestContent})


@dataclass(frozen=True)
class Listed:
    """An entry of a manifest list, and the bytes that it is encoded in."""

    manifest: ManifestFile
    encoded: bytes


def read_list(data: bytes) -> list[Listed]:
    """Return the entries of a manifest list."""
    blocks = _RECORDS.read_blocks(data, "the manifest list")
    if blocks is None:
        manifests = read_manifest_list(MemoryFiles({"": data}).new_input(""))
        return [Listed(one, _RECORDS.encode(one)) for one in manifests]
    return [Listed(*one) for count, packed in blocks for one in _RECORDS.decode(unpack(packed), count)]


def write_list(
    location: str,
    files: MemoryFiles,
    kept: Sequence[Listed],
    new: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent: int | None,
    sequence_number: int,
) -> list[Listed]:
    """Write a manifest list. Return its entries: the new ones have the snapshot's sequence number."""
    with _Writer(files.new_output(location), snapshot_id, parent, sequence_number, COMPRESSION) as writer:
        assert isinstance(writer, _Writer)
        return writer.write(kept, new)


class _Writer(ManifestListWriterV2):
    def write(self, kept: Sequence[Listed], new: Iterable[ManifestFile]) -> list[Listed]:
        numbered = [self.prepare_manifest(one) for one in new]
        listed = [*(Listed(one, _RECORDS.encode(one)) for one in numbered), *kept]
        if listed:
            write_block(self._writer, len(listed), pack(one.encoded for one in listed))
        return listed
