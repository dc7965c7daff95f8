"""Manifest lists: their entries are copied as bytes, as a list of a large table has hundreds that stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestFile,
    ManifestListWriterV2,
    PartitionFieldSummary,
    read_manifest_list,
)

from capture.iceberg.avro_blocks import (
    COMPRESSION,
    encode,
    has_schema,
    pack,
    read_header,
    unpack,
    write_block,
    write_schema,
)
from capture.iceberg.memory_catalog import MemoryFiles

_SCHEMA = MANIFEST_LIST_FILE_SCHEMAS[2]


@dataclass(frozen=True)
class Listed:
    """An entry of a manifest list, and the bytes that it is encoded in."""

    manifest: ManifestFile
    encoded: bytes


def read_list(data: bytes) -> list[Listed]:
    """Return the entries of a manifest list."""
    decoder = new_decoder(data)
    header = read_header(decoder)
    if not has_schema(header, _avro_schema()):
        manifests = read_manifest_list(MemoryFiles({"": data}).new_input(""))
        return [Listed(one, encode(_writer(), one)) for one in manifests]
    listed: list[Listed] = []
    while decoder.tell() < len(data):
        count = decoder.read_int()
        listed += _decode(unpack(decoder.read_bytes()), count)
        decoder.read(len(header.sync))
    return listed


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
        listed = [*(Listed(one, encode(_writer(), one)) for one in numbered), *kept]
        if listed:
            write_block(self._writer, len(listed), pack(one.encoded for one in listed))
        return listed


def _decode(raw: bytes, count: int) -> Iterator[Listed]:
    decoder, end = new_decoder(raw), 0
    for _ in range(count):
        start, manifest = end, _reader().read(decoder)
        end = decoder.tell()
        yield Listed(manifest, raw[start:end])


@cache
def _avro_schema() -> str:
    return write_schema(_SCHEMA, "manifest_file")


@cache
def _reader() -> Reader:
    types: dict[int, Any] = {-1: ManifestFile, 508: PartitionFieldSummary}
    enums: dict[int, Any] = {517: ManifestContent}
    return resolve_reader(_SCHEMA, _SCHEMA, types, enums)


@cache
def _writer() -> Writer:
    return resolve_writer(_SCHEMA, _SCHEMA)
