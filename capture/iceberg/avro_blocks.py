"""Avro files as blocks of encoded records, which are copied from file to file without decoding them."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.schema import Schema

from capture.errors import ManifestError
from capture.iceberg.memory_catalog import MemoryFiles

COMPRESSION: Final = "deflate"
"""The codec of all files, by its name in Avro and in Iceberg."""

_DEFLATED = -15
"""zlib's parameter for a stream without a header, as Avro has it."""


def read_header(decoder: BinaryDecoder) -> AvroFileHeader:
    """Return the header at the beginning of a file."""
    header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    return header


class Records:
    """Records of one schema in files: its name, and pyiceberg's classes by the ids of fields."""

    def __init__(self, schema: Schema, name: str, types: dict[int, Any], enums: dict[int, Any]) -> None:
        self._schema, self._name, self._types, self._enums = schema, name, types, enums

    @cached_property
    def _header(self) -> str:
        """The schema as it is in the header of a file that pyiceberg writes."""
        files, meta = MemoryFiles(), {"write.avro.compression-codec": COMPRESSION}
        with AvroOutputFile[Any](files.new_output(""), self._schema, self._name, metadata=meta):
            pass
        return read_header(new_decoder(files.content[""])).meta["avro.schema"]

    @cached_property
    def _reader(self) -> Reader:
        return resolve_reader(self._schema, self._schema, self._types, self._enums)

    @cached_property
    def _writer(self) -> Writer:
        return resolve_writer(self._schema, self._schema)

    def read_blocks(self, data: bytes, path: str) -> Iterator[tuple[int, bytes]] | None:
        """Return the blocks of the file at `path`: the number of records, and these as they are in it.

        None if they can't be copied into files of this schema. Reading ends in ManifestError if the file is damaged.
        """
        decoder = new_decoder(data)
        header = read_header(decoder)
        if (header.meta["avro.schema"], header.meta["avro.codec"]) != (self._header, COMPRESSION):
            return None
        return _read_blocks(decoder, len(data), header.sync, path)

    def decode(self, raw: bytes, count: int) -> Iterator[tuple[Any, bytes]]:
        """Yield each record of a block, with the bytes that it is encoded in."""
        decoder, end = new_decoder(raw), 0
        for _ in range(count):
            start, record = end, self._reader.read(decoder)
            end = decoder.tell()
            yield record, raw[start:end]

    def encode(self, record: Any) -> bytes:
        """Return an encoded record."""
        raw = io.BytesIO()
        self._writer.write(BinaryEncoder(raw), record)
        return raw.getvalue()


def _read_blocks(decoder: BinaryDecoder, size: int, sync: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    while decoder.tell() < size:
        yield decoder.read_int(), decoder.read_bytes()
        if decoder.read(len(sync)) != sync:
            raise ManifestError(f"{path} is damaged: a block does not end where it should")


def pack(raws: Iterable[bytes]) -> bytes:
    """Return encoded records as the content of a block."""
    deflate = zlib.compressobj(wbits=_DEFLATED)
    return deflate.compress(b"".join(raws)) + deflate.flush()


def unpack(packed: bytes) -> bytes:
    """Return the encoded records of a block."""
    return zlib.decompress(packed, _DEFLATED)


def write_block(file: AvroOutputFile[Any], count: int, packed: bytes) -> None:
    """Write a block of so many records."""
    file.encoder.write_int(count)
    file.encoder.write_bytes(packed)
    file.encoder.write(file.sync_bytes)
