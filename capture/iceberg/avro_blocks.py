"""Avro files as blocks of encoded records, which are copied from file to file without decoding them."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable
from typing import Any, Final

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.avro.writer import Writer
from pyiceberg.schema import Schema

from capture.iceberg.memory_catalog import MemoryFiles

COMPRESSION: Final = "deflate"
"""The codec of all files, by its name in Avro and in Iceberg."""

_DEFLATED = -15
"""zlib's parameter for a stream without a header, as Avro has it."""


def read_header(decoder: BinaryDecoder) -> AvroFileHeader:
    """Return the header at the beginning of a file."""
    header: AvroFileHeader = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    return header


def has_schema(header: AvroFileHeader, schema: str) -> bool:
    """Return whether records of this file can be copied into files with this schema."""
    return (header.meta["avro.schema"], header.meta["avro.codec"]) == (schema, COMPRESSION)


def write_schema(schema: Schema, name: str) -> str:
    """Return the schema as it is in the header of a file that pyiceberg writes."""
    files = MemoryFiles()
    meta = {"write.avro.compression-codec": COMPRESSION}
    with AvroOutputFile[Any](files.new_output(""), schema, name, metadata=meta):
        pass
    return read_header(new_decoder(files.content[""])).meta["avro.schema"]


def encode(writer: Writer, record: Any) -> bytes:
    """Return an encoded record."""
    raw = io.BytesIO()
    writer.write(BinaryEncoder(raw), record)
    return raw.getvalue()


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
