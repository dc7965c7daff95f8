"""Reads a stored object as rows, some at a time, in order of their sequences, and checks them against its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.archive.stored_formats import format_of
from capture.errors import FormatError
from capture.formats.choose import name_in_errors, reader
from capture.formats.envelope import SCHEMA
from capture.formats.parquet import open_parquet

PIECE_ROWS = 8192
"""The most rows of a piece."""
PIECE_BYTES = 1 << 20
"""The most bytes of a piece, unless a single message is larger."""
LARGEST = 256 << 20
"""Bytes of a message in all columns: servers take 64 MiB with its headers, and two columns hold the headers."""
READ_BYTES = 64 << 10
"""This much of a column is read from a file at a time."""


Source = bytes | IO[bytes]
"""An object's bytes, or a file that has them."""


def pieces(
    source: Source,
    stored: Stored,
    keys: Keys | None = None,
    *,
    columns: Sequence[str] = SCHEMA.names,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stored object, with these columns of the envelope, which must include `sequence`.

    The file is read, decrypted and decompressed page by page, or about `piece_bytes` at a time. The tag of an encrypted
    file is checked before the first row is yielded. FormatError if the object can't be read, does not keep whole
    messages, or has other rows than its record says; CipherError.
    """
    with name_in_errors(stored):
        for rows in _check(_pieces(source, stored, keys, columns, piece_bytes), stored):
            yield from cut(rows, piece_bytes)


def _pieces(
    source: Source, stored: Stored, keys: Keys | None, columns: Sequence[str], piece_bytes: int
) -> Iterator[pa.RecordBatch]:
    layers = reader(stored.format, keys)
    if not layers.restorable:
        raise FormatError(f"{stored.format} does not keep messages whole: they can't be read back from it")
    file = pa.BufferReader(source) if isinstance(source, bytes) else source
    if format_of(stored.format).columnar:
        yield from _of_parquet(layers.open(file, stored), columns, piece_bytes)
    else:
        for rows in layers.parts(file, stored, piece_bytes):
            yield from rows.select(list(columns)).combine_chunks().to_batches(max_chunksize=PIECE_ROWS)


def _of_parquet(file: IO[bytes], columns: Sequence[str], piece_bytes: int) -> Iterator[pa.RecordBatch]:
    parquet = open_parquet(file, columns, buffer_bytes=READ_BYTES)
    held = [name for name in columns if name in parquet.schema_arrow.names]
    for group in range(parquet.num_row_groups):
        facts = parquet.metadata.row_group(group)
        most = _piece_rows(facts.num_rows, facts.total_byte_size, piece_bytes)
        for batch in parquet.iter_batches(most, row_groups=[group], columns=held, use_threads=False):
            for some in cut(batch, piece_bytes):
                yield _of_envelope(some, columns)


def _piece_rows(rows: int, size: int, piece_bytes: int) -> int:
    return max(1, min(PIECE_ROWS, piece_bytes * rows // max(1, size)))


def cut(rows: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield rows in pieces of at most `most_bytes`, unless a row is larger. FormatError if no server takes it.

    Sizes are those of the rows without dictionaries.
    """
    size = plain_size(rows)
    if size <= most_bytes or len(rows) < 2:
        if size > LARGEST and len(rows) == 1:
            raise FormatError(f"a message in it has {size:,} bytes: no server takes one as large")
        yield rows
        return
    half = len(rows) // 2
    yield from cut(rows[:half], most_bytes)
    yield from cut(rows[half:], most_bytes)


def plain_size(rows: pa.RecordBatch) -> int:
    """Return the size of rows when each row has a copy of its dictionary value."""
    size = 0
    for column in rows.columns:
        if pa.types.is_dictionary(column.type):
            lengths = pc.binary_length(column.dictionary)
            size += pc.sum(lengths.take(column.indices).cast(pa.int64())).as_py() or 0
        else:
            size += column.nbytes
    return size


def _of_envelope(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return these columns with the envelope's types; null if an earlier version did not write one."""
    fields = [SCHEMA.field(name) for name in columns]
    held = set(batch.schema.names)
    found = [
        batch.column(field.name).cast(field.type) if field.name in held else pa.nulls(len(batch), field.type)
        for field in fields
    ]
    return pa.RecordBatch.from_arrays(found, schema=pa.schema(fields))


def _check(rows: Iterator[pa.RecordBatch], stored: Stored) -> Iterator[pa.RecordBatch]:
    """Raise FormatError if the rows are not in order, or not as many as recorded."""
    count, last = 0, 0
    for batch in rows:
        if not len(batch):
            continue
        sequences = batch.column("sequence")
        if sequences[0].as_py() < last or not pc.all(pc.less_equal(sequences[:-1], sequences[1:]), min_count=0).as_py():
            raise FormatError("its rows are not in order of their sequences")
        count, last = count + len(batch), sequences[-1].as_py()
        if count > stored.count:
            raise FormatError(f"it has at least {count:,} rows, its record says {stored.count:,}")
        yield batch
    if count != stored.count:
        raise FormatError(f"it has {count:,} rows, its record says {stored.count:,}")
