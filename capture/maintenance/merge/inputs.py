"""Reads the inputs of a merge: their typed columns, and their rows under one schema."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq

from capture.archive.encryption import Keys
from capture.archive.manifest import TABLE, Stored
from capture.archive.stored_formats import format_of, is_open
from capture.errors import CaptureError, FormatError
from capture.formats.batches import cut
from capture.formats.choose import name_in_errors, reader
from capture.formats.envelope import with_envelope
from capture.formats.parquet import check_version, open_parquet, unfold
from capture.formats.schema import CONFLICTS
from capture.maintenance.engine import FileGroup
from capture.maintenance.merge.schema_evolution import adapt, evolve, find_column, in_table, read_columns, typed_part
from capture.stores.contract import REQUESTS_AT_ONCE, AnyObject, Store, read_ahead
from natty.blocking.loop import Loop
from natty.wire.background import map_concurrently

BATCH_ROWS = 8192
BATCH_BYTES = 2 << 20
"""At most this many rows, or about this many bytes, are decoded at a time, unless a single message is larger."""
FOOTER_BYTES = 64 * 1024
"""This much of a Parquet file's end is read for its footer; a longer footer takes a second read."""


@dataclass(frozen=True)
class Columns:
    """The typed columns of some objects, and the combined ones of the `run`.

    `failed` says why objects could not be read.
    """

    run: pa.Schema
    objects: dict[str, pa.Schema] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def of(self, objects: Iterable[Stored]) -> pa.Schema:
        """Return the columns of a file made of these objects: those of the run that some object has."""
        names = self.run.names
        held = {find_column(one.name, names) for stored in objects for one in self._part(stored).values()}
        return pa.schema([one for one in self.run if one.name in held or (bool(held) and one.name == CONFLICTS)])

    def is_alike(self, stored: Stored) -> bool:
        """Return whether the object is plain Parquet whose typed columns have the run's names and types."""
        raw = self.objects.get(stored.path, pa.schema([]))
        return is_open(stored.format) and all(
            name == one.name == find_column(name, self.run.names)
            and raw.field(name).type == adapt(raw.field(name).type) == self.run.field(name).type
            for name, one in self._part(stored).items()
        )

    def why_not(self, group: FileGroup) -> str:
        """Return why a file group can't be merged, as far as its footers show it; "" if it can."""
        return next((self.failed[one.path] for one in group.inputs if one.path in self.failed), "")

    def _part(self, stored: Stored) -> dict[str, pa.Field]:
        return typed_part(self.objects.get(stored.path, pa.schema([])), of_table=stored.path.startswith(TABLE))


async def columns_of(store: Store, objects: Sequence[Stored], keys: Keys | None, table: str = "") -> Columns:
    """Return the typed columns of these objects, combined with the table's typed columns `table` (`FileGroup.columns`).

    It reads the footers of plain Parquet, and encrypted objects whole. Other formats have no typed columns.
    """
    found: dict[str, pa.Schema] = {}
    failed: dict[str, str] = {}

    async def look(one: Stored) -> None:
        try:
            found[one.path] = await _schema(store, one, keys)
        except CaptureError as error:
            failed[one.path] = str(error) if one.path in str(error) else f"{one.path}: {error}"
        except Exception as error:  # any error of pyarrow about unreadable bytes
            failed[one.path] = f"{one.path} can't be read as Parquet: {error}"

    wanted = [one for one in objects if format_of(one.format).columnar]
    await map_concurrently(wanted, look, at_once=REQUESTS_AT_ONCE)
    columns = Columns(pa.schema([]), found, failed)
    oldest_first = sorted((one for one in wanted if one.path in found), key=lambda one: (one.stored_ns, one.path))
    parts = dict.fromkeys(pa.schema(list(columns._part(one).values())) for one in oldest_first)
    return Columns(evolve(read_columns(table), parts), found, failed)


async def _schema(store: Store, one: Stored, keys: Keys | None) -> pa.Schema:
    if not is_open(one.format):
        return _file(await store.get(one.path), one, keys).schema_arrow
    end = await store.get_range(one.path, max(0, one.bytes - FOOTER_BYTES), FOOTER_BYTES)
    length = int.from_bytes(end[-8:-4], "little") + 8  # of the footer, itself and the magic word behind it
    if length > len(end):
        end = await store.get_range(one.path, max(0, one.bytes - length), length)
    return check_version(pq.ParquetFile(pa.BufferReader(end))).schema_arrow


def input_rows(data: bytes, one: Stored, columns: pa.Schema, keys: Keys | None) -> Iterator[pa.Table]:
    """Yield the rows of an object some at a time, with the envelope's columns and these typed ones of the table.

    It decodes only those rows at a time. FormatError if the object differs in any byte from the stored one, or can't be
    read; CipherError if the keys don't open it.
    """
    if sha256(data).hexdigest() != one.sha256:
        raise FormatError(f"{one.path} was changed: its SHA-256 is not the recorded one")
    of_table, count = one.path.startswith(TABLE), 0
    with name_in_errors(one):
        for rows in _parts(data, one, keys):
            count += len(rows)
            yield in_table(rows, columns, of_table=of_table)
    if count != one.count:
        raise FormatError(f"{one.path} has {count:,} rows, its record says {one.count:,}")


def _parts(data: bytes, one: Stored, keys: Keys | None) -> Iterator[pa.Table]:
    if not format_of(one.format).columnar:
        yield from reader(one.format, keys).parts(pa.BufferReader(data), one, BATCH_BYTES)
        return
    file = _file(data, one, keys)
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    size = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)  # of a row
    for batch in file.iter_batches(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, size))), use_threads=False):
        for some in cut(batch, BATCH_BYTES):
            yield with_envelope(unfold(pa.Table.from_batches([some])))


def _file(data: bytes, one: Stored, keys: Keys | None) -> pq.ParquetFile:
    opened = reader(one.format, keys).open(pa.BufferReader(data), one)
    return open_parquet(opened)


def fetch_blocking(store: Store, objects: Iterable[AnyObject]) -> Generator[tuple[AnyObject, bytes], None, None]:
    """As `read_ahead`, for callers without an event loop: objects are also fetched while the caller works on one."""
    loop = Loop()
    try:
        yield from loop.iterate(aiter(read_ahead(store, objects)))
    finally:
        loop.end()
