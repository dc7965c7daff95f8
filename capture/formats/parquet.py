"""The format `parquet`: the envelope's columns, and typed columns of decoded values."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from threading import Lock
from typing import IO, Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.envelope_columns import COLUMNS
from capture.decoders.contract import Decoding, values_of
from capture.errors import ConfigError, FormatError
from capture.formats.contract import Positions
from capture.formats.envelope import VERSION, to_table, with_envelope
from capture.formats.pages import check_pages
from capture.formats.schema import schema_of
from capture.formats.typed_columns import WHOLE, Typed, typed_columns
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Unlayered
from capture.ingest.record import Records
from natty.config.units import write_count

log = logging.getLogger("capture.writers.parquet")

COMPRESSIONS = ("none", "gzip", "snappy", "zstd")
COMPRESSION_LEVEL = 1  # of zstd and gzip: the compaction writes the lasting file
PAGE_BYTES = 1 << 20
"""About the size of a page, unless a message is larger. Reading a file piece by piece takes a page in memory."""
PAGE_ROWS = 8  # values that are written to a page at once, if the size of messages is not known in advance
MOST_PAGE_ROWS = 1024  # if it is known: a larger number is not faster
MOST_TOLD = 1000  # things that the log reports: publishers choose the names of fields
POSITIONS = 65_536  # rows whose sequences and times are read at a time
REPETITIVE = [one.name for one in COLUMNS if one.repeats]  # a dictionary pays off here, but not in other columns
SEARCHED = [one.name for one in COLUMNS if one.is_searched]  # columns with minimum and maximum
COUNTING = {one.name: "DELTA_BINARY_PACKED" for one in COLUMNS if one.rises}  # almost nothing if they ascend


class ParquetWriter(Unlayered):
    """Parquet with page checksums, a page index, the block's facts in the file's metadata, and zstd by default.

    If the decoder has a shape for its values, their fields are columns after the envelope's. A value that does not fit
    its column is counted in `unfit`, by column, and logged; the payload keeps it.
    """

    format: ClassVar[str] = "parquet"

    def __init__(self, decoding: Decoding[Any] | None = None, *, compression: str = "zstd") -> None:
        if compression not in COMPRESSIONS:
            raise ConfigError(f"Parquet has no compression {compression!r}; known are {', '.join(COMPRESSIONS)}")
        self._counting = Lock()
        self._logged: set[str] = set()
        self._compression = compression
        self._decoding = decoding
        shape = None if decoding is None else decoding.shape
        self._schema = None if shape is None else schema_of(shape)
        columns = [] if self._schema is None else [*self._schema.names, WHOLE]
        self.unfit = Counter(dict.fromkeys(columns, 0))

    def write(self, block: SealedBlock) -> bytes:
        """Return the block as a Parquet file."""
        table = to_table(block.records)
        more = self._convert_values(block)
        for field in more.schema:
            table = table.append_column(field, more[field.name])
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.replace_schema_metadata(_facts(block)),
            sink,
            compression=self._compression,
            compression_level=COMPRESSION_LEVEL if self._compression in ("zstd", "gzip") else None,
            use_dictionary=REPETITIVE + _columns(more, pa.types.is_string),
            column_encoding=COUNTING,
            write_statistics=SEARCHED + _columns(more, pa.types.is_primitive, pa.types.is_string),
            sorting_columns=[pq.SortingColumn(table.column_names.index("sequence"))],
            data_page_version="1.0",
            write_page_index=True,
            write_page_checksum=True,
            data_page_size=PAGE_BYTES,
            write_batch_size=_page_rows(block.records),
        )
        return bytes(sink.getvalue())

    def read(self, data: bytes) -> pa.Table:
        """Return the rows; verifies page checksums. FormatError if a newer version wrote it; pyarrow's errors."""
        file = open_parquet(pa.BufferReader(data))
        return with_envelope(unfold(file.read()))

    def parts(self, file: IO[bytes], part_bytes: int) -> Iterator[pa.Table]:
        """Yield all rows in one part: `batches.pieces` reads Parquet in pieces, by its row groups."""
        yield self.read(file.read())

    def positions(self, file: IO[bytes]) -> Positions:
        """Yield the sequence and the time of each row, some at a time: a table's file may be larger than memory."""
        columns = ["sequence", "time_ns"]
        for batch in open_parquet(file, columns, is_checked=False).iter_batches(POSITIONS, columns=columns):
            yield batch["sequence"].to_pylist(), batch["time_ns"].to_pylist()

    def _convert_values(self, block: SealedBlock) -> pa.Table:
        if self._schema is None or self._decoding is None:
            return pa.table({})
        typed = typed_columns(_lines(block.records, self._decoding), self._schema)
        self._log_misfits(block, typed)
        return typed.columns

    def _log_misfits(self, block: SealedBlock, typed: Typed) -> None:
        """Count values that do not fit, and log differences from the decoder's shape, each of them once."""
        said = {
            name: f"{write_count(len(rows), 'value', 'does', 'do')} not fit {name}"
            for name, rows in typed.unfit.items()
        }
        said |= {f"{name} {kind}": f"{name} is {kind} in this block" for name, kind in typed.widened.items()}
        said |= {f"new {name}": f"there is a new field {name}" for name in typed.unknown}
        with self._counting:  # several threads write blocks
            self.unfit.update({name: len(rows) for name, rows in typed.unfit.items()})
            new = said.keys() - self._logged if len(self._logged) < MOST_TOLD else set()
            self._logged |= new
        if new:
            where = f"{block.stream} {block.first}–{block.last}, key {block.key!r}"
            what = ", ".join(sentence for thing, sentence in said.items() if thing in new)
            log.warning("%s: %s; the payloads keep all, more is counted only", where, what, extra={"action": "schema"})


def _page_rows(records: Records[Any]) -> int:
    """Return how many messages are written between two checks of a page's size: a page exceeds it by at most these."""
    largest = max(map(len, chain(records.payloads, records.header_blocks)), default=0)
    return min(MOST_PAGE_ROWS, PAGE_BYTES // max(1, min(largest, PAGE_BYTES)))


def open_parquet(
    file: IO[bytes], columns: Sequence[str] = (), *, is_checked: bool = True, buffer_bytes: int | None = None
) -> pq.ParquetFile:
    """Return a file for reading these columns, or all; page checksums are verified if it `is_checked`.

    A row group is read as a whole, which is pyarrow's default, or with `buffer_bytes` this many bytes at a time.

    Columns with a dictionary keep it, so that a value that a thousand rows have takes its size once: `unfold` makes
    them plain. FormatError if a page needs too much memory, or a newer version wrote the file; otherwise pyarrow's
    errors.
    """
    metadata = pq.read_metadata(file)
    repeated = check_pages(file, metadata, columns or metadata.schema.to_arrow_schema().names)
    return check_version(
        pq.ParquetFile(
            file,
            metadata=metadata,
            read_dictionary=sorted(repeated),
            page_checksum_verification=is_checked,
            buffer_size=buffer_bytes or 0,
            pre_buffer=buffer_bytes is None,
        )
    )


def unfold(table: pa.Table) -> pa.Table:
    """Return the table with plain values in place of dictionaries."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = table.column(index).cast(field.type.value_type)
            table = table.set_column(index, field.with_type(field.type.value_type), plain)
    return table


def check_version(file: pq.ParquetFile) -> pq.ParquetFile:
    """Return the file if this version reads its format. FormatError."""
    version = int((file.schema_arrow.metadata or {}).get(b"capture.version", VERSION))
    if version > VERSION:
        raise FormatError(f"it has format {version}; this version reads up to {VERSION}")
    return file


def _lines(records: Records[Any], decoding: Decoding[Any]) -> list[bytes]:
    """Return each message's value as JSON; empty for the undecodable ones."""
    if not decoding.is_json:
        return [b"" if value is None else _json(value) for value in values_of(records, decoding)]
    if not records.errors:
        return records.payloads
    return [b"" if index in records.errors else payload for index, payload in enumerate(records.payloads)]


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):  # not of its shape: nothing fits, and that is logged
        return b"null"


def _columns(table: pa.Table, *kinds: Callable[[pa.DataType], bool]) -> list[str]:
    return [field.name for field in table.schema if any(is_kind(field.type) for is_kind in kinds)]


def _facts(block: SealedBlock) -> dict[str, str]:
    return {
        "capture.version": str(VERSION),
        "capture.stream": block.stream,
        "capture.first": str(block.first),
        "capture.last": str(block.last),
        "capture.count": str(block.count),
    }
