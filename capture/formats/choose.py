"""Chooses the writer or reader of a format by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import pyarrow as pa

from capture.archive.encryption import ENDING, Keys
from capture.archive.manifest import Stored
from capture.archive.stored_formats import FORMATS, OWN, STORED, format_of
from capture.decoders import Decoding, decoder
from capture.decoders.json import only_parses
from capture.errors import CaptureError, ConfigError, FormatError
from capture.formats.block_format import BlockReader, BlockWriter
from capture.formats.codecs import ENDINGS, NONE, codec
from capture.formats.contract import Format
from capture.formats.csv import CsvWriter
from capture.formats.decoded import DecodedWriter
from capture.formats.json_text import encode_json, encode_parsed
from capture.formats.ndjson import NdjsonWriter
from capture.formats.own_format import OwnFormat
from capture.formats.parquet import ParquetWriter
from capture.formats.raw import RawWriter
from capture.formats.values import CsvValues, NdjsonValues, RawValues, Values, needs_value
from capture.ingest.block import Writer
from capture.ingest.record import Decoder
from capture.stores.plugin import is_plugin, load_function


def writer(
    name: str | Writer,
    *,
    decode: Decoder[Any] | None = None,
    compression: str = "",
    flatten: str = "",
    envelope: str = "",
    keys: Keys | None = None,
) -> Format | BlockWriter:
    """Return the writer of this format: "parquet", "ndjson", "csv", "raw", or your own.

    Your own is a `Writer`, or "module:function", which is called with the decoder and returns one.

    `compression` is "none", "gzip", "snappy" or "zstd"; Parquet uses it inside, and zstd by default. `decode` gives
    Parquet its typed columns, and CSV its values, which `flatten` ("module:function") turns into rows. `envelope` says
    what is stored beside the decoded value: "columns", "nested" or "none" (see `capture.archive.stored_formats`). With
    `keys` blocks are encrypted. ConfigError, with the known names, if a name is unknown or does not fit.
    """
    decoding = Decoding.of(decode or decoder("raw"))
    own = _load_own(name, decoding)
    name = own.format if own else str(name)
    wanted = format_of(name)
    if flatten and not wanted.flattens:
        able = ", ".join(one.name for one in FORMATS.values() if one.flattens)
        raise ConfigError(f"flatten makes rows for {able}; {name} has none")
    _check_envelope(name, envelope, decoding)
    around = None if wanted.compresses else codec(compression or NONE)
    if own:
        retain = None if decoding is decoder("raw") else needs_value()
        return BlockWriter(own, around, keys, whole=NdjsonWriter(), retain=retain)
    stored = _plain(wanted.envelopes.get(envelope, name), decoding, compression, flatten, envelope)
    if isinstance(stored, Values):
        whole = _plain(name, decoding, compression, flatten)
        return BlockWriter(stored, around, keys, whole=whole, retain=needs_value(stored.encode))
    return BlockWriter(stored, around, keys) if around or keys else stored


def _load_own(name: str | Writer, decoding: Decoding[Any]) -> OwnFormat | None:
    if not isinstance(name, str):
        return OwnFormat.of(name)
    return OwnFormat.load(name, decoding) if is_plugin(name) else None


def _check_envelope(name: str, envelope: str, decoding: Decoding[Any]) -> None:
    """Raise ConfigError if the format has no such envelope, or there is no decoded value to store."""
    known = sorted({one for each in FORMATS.values() for one in each.envelopes})
    if envelope and name.startswith(OWN):
        raise ConfigError(f"envelope {envelope!r} does not apply to your own format: its writer decides what it stores")
    if not envelope or name not in FORMATS:
        return
    if envelope not in known:
        raise ConfigError(f"there is no envelope {envelope!r}; the known ones are {', '.join(known)}")
    if envelope not in FORMATS[name].envelopes:
        able = ", ".join(one.name for one in FORMATS.values() if envelope in one.envelopes)
        raise ConfigError(f"format {name} has no envelope {envelope!r}; {able} {'has' if able in FORMATS else 'have'}")
    if decoding is decoder("raw") and FORMATS[name].envelopes[envelope] != name:
        raise ConfigError(
            f"envelope {envelope!r} stores the decoded value, and the decoder 'raw' makes none: name another decoder"
        )


def _plain(
    name: str,
    decoding: Decoding[Any] | None = None,
    compression: str = "",
    flatten: str = "",
    envelope: str = "",
) -> Format:
    rows_of = load_function(flatten, "flatten", ()) if flatten else None
    to_json = encode_parsed if decoding and only_parses(decoding) else encode_json
    match name:
        case "parquet":
            return ParquetWriter(decoding, compression=compression or "zstd")
        case "ndjson":
            return NdjsonWriter()
        case "csv":
            return CsvWriter(decoding or decoder("raw"), rows_of)
        case "raw":
            return RawWriter()
        case "ndjson-decoded":
            return DecodedWriter(decoding or decoder("raw"), is_nested=envelope == "nested")
        case "ndjson-value":
            return NdjsonValues(to_json)
        case "csv-value":
            return CsvValues(rows_of or (decoding.flatten if decoding else None))
        case "raw-value":
            return RawValues(to_json)
    raise ConfigError(f"there is no writer {name!r}; the known ones are {', '.join(FORMATS)}, and module:function")


def reader(format: str, keys: Keys | None = None) -> BlockReader:
    """Return the reader of this format, as the manifest names it: "parquet", "ndjson.zst.enc". FormatError."""
    plain, *endings = format.split(".")
    encrypted = endings[-1:] == [ENDING]
    compressions = endings[: len(endings) - encrypted]
    is_own = plain.startswith(OWN)
    if not (is_own or plain in STORED) or len(compressions) > 1 or not set(compressions) <= set(ENDINGS):
        raise FormatError(f"{format!r} is not a format that this version reads")
    inside = OwnFormat(plain.removeprefix(OWN)) if is_own else _plain(plain)
    return BlockReader(format, inside, ENDINGS[compressions[0]] if compressions else None, keys)


@contextmanager
def name_in_errors(stored: Stored) -> Iterator[None]:
    """Name the object in errors of the body. An error of a library about unreadable bytes becomes a FormatError."""
    try:
        yield
    except CaptureError as error:
        raise type(error)(f"{stored.path}: {error}") from error
    except Exception as error:
        raise FormatError(f"{stored.path} can't be read as {stored.format}: {error}") from error


def read_object(data: bytes, stored: Stored, keys: Keys | None = None) -> pa.Table:
    """Return the rows of a stored object: the envelope's columns, then the typed ones.

    FormatError if it differs in any byte from the stored one, or can't be read; CipherError if the keys don't open it.
    """
    if sha256(data).hexdigest() != stored.sha256:
        raise FormatError(f"{stored.path} was changed: its SHA-256 is not the recorded one")
    with name_in_errors(stored):
        rows = reader(stored.format, keys).read(data, stored)
    if len(rows) != stored.count:
        raise FormatError(f"{stored.path} has {len(rows):,} rows, its record says {stored.count:,}")
    return rows
