"""SQL over an archive on DuckDB: blocks and table files as one table, each message once.

DuckDB reads plain Parquet objects directly, and of them only the columns and rows that a query needs. Objects of other
formats, and those that overlap, are merged into a temporary Parquet file first.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from asyncio import to_thread
from base64 import b64encode
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from copy import copy
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import PyFileSystem

from capture.archive.encryption import Keys
from capture.archive.manifest import Manifest, Stored
from capture.archive.picture import Picture
from capture.archive.stored_formats import is_open
from capture.archive.table import Table
from capture.errors import CaptureError, QueryError
from capture.formats.envelope import SCHEMA
from capture.ingest.record import text_or_none
from capture.reading.arrowfs import SmallObjects, StoreFiles
from capture.reading.ddl import fields, quote
from capture.reading.inventory import Inventory
from capture.reading.merge import merge_shares
from capture.reading.pruned import PrunedDataset, match
from capture.reading.shares import Share, plan_shares
from capture.reading.spool import translate_spill_errors
from capture.spark.protocol import DEFAULT_LIMIT, Rows
from capture.stores import Store
from capture.stores.stored_file import Ranges

Check = Callable[[Store, Iterable[Stored]], Awaitable[Ranges]]
"""Compares objects with their records, and returns where exactly their bytes are read."""

VIEW = "messages"
TAIL_BYTES = 64 << 20
"""Rows of a stream that are kept in memory; more are kept in a temporary file."""
INTERRUPT_EVERY = 0.05  # seconds
SETTINGS: dict[str, Any] = {
    "autoinstall_known_extensions": False,  # no downloads
    "autoload_known_extensions": False,
    "python_enable_replacements": False,  # a query sees its views and not our variables
}


async def query(
    store: Store,
    objects: Inventory | Iterable[Stored],
    sql: str,
    *,
    payload_schema: str | None = None,
    keys: Keys | None = None,
    limit: int = DEFAULT_LIMIT,
    check: Check | None = None,
    tail: AsyncGenerator[pa.RecordBatch, None] | None = None,
) -> Rows:
    """Run a query on the view `messages`: every message of these objects, once.

    Objects are left out whose recorded sequences, times and streams don't meet the conditions that DuckDB pushes down.
    `payload_schema` adds fields of the payload as columns (`capture.reading.ddl`), null where a payload has no such
    field. They hide columns of the envelope with the same name. Plain Parquet is read from what `check` returns, if it
    is given, otherwise from the store. `tail` yields more messages, which no object holds. QueryError if DuckDB refuses
    the query; the errors of `Inventory.select`, `reading.merge.merge_shares`, `check` and `tail`.
    """
    if not isinstance(objects, Inventory):
        objects = Inventory(store, Picture(Manifest(blocks=list(objects)), Table()))
    with tempfile.TemporaryDirectory(prefix="capture-") as folder:
        async with AsyncExitStack() as stack:
            archive = _Archive(store, objects, Path(folder), keys, check, stack)
            tables = {"_archive": PrunedDataset(archive.choose)}
            if tail is not None:
                kept = await _keep(tail, Path(folder) / "tail.arrow")
                tables["_tail"] = PrunedDataset(lambda _: kept)
            database = await to_thread(duckdb.connect, config=SETTINGS | {"temp_directory": folder})
            asking = asyncio.create_task(to_thread(_answer, database, tables, sql, payload_schema, limit))
            stack.push_async_callback(_interrupt, database, asking)  # after the exit of each scan's files
            try:
                return await asyncio.shield(asking)
            except QueryError as error:
                raise archive.find_failure() or error from None


class _Archive:
    """The objects of an archive as datasets: one for each scan of a query."""

    def __init__(
        self,
        store: Store,
        objects: Inventory,
        folder: Path,
        keys: Keys | None,
        check: Check | None,
        stack: AsyncExitStack,
    ) -> None:
        self._store, self._objects, self._folder, self._keys = store, objects, folder, keys
        self._check, self._stack = check, stack
        self._loop = asyncio.get_running_loop()
        self._files: list[StoreFiles] = []
        self._number = count()
        self._failed: CaptureError | None = None

    def choose(self, filter: pc.Expression | None) -> ds.Dataset:
        """Return the rows of the objects that may have rows of a filter. Called in threads, not in that of the loop."""
        try:
            return asyncio.run_coroutine_threadsafe(self._choose(filter), self._loop).result()
        except CaptureError as error:
            self._failed = self._failed or copy(error)  # a copy without the traceback
            raise

    def find_failure(self) -> CaptureError | None:
        """Return the first error of a scan, which DuckDB reports as text only."""
        return self._failed or next((one.failed for one in self._files if one.failed), None)

    async def _choose(self, filter: pc.Expression | None) -> ds.Dataset:
        plan = plan_shares(await self._objects.select(partial(match, filter=filter)))
        rest = [share for share in plan if not _is_readable(share)]
        plain = [share.stored for share in plan if _is_readable(share)]
        sizes = {one.path: one.bytes for one in plain}
        contents = await self._check(self._store, plain) if self._check and plain else self._store
        small = await self._stack.enter_async_context(SmallObjects(contents, sizes))
        files = await self._stack.enter_async_context(StoreFiles(small, sizes))
        self._files.append(files)
        prefix = self._folder / f"{next(self._number)}"
        children = [await _merge_rest(self._store, rest, prefix, self._keys), _dataset(files, plain)]
        return ds.UnionDataset(SCHEMA, children)


def _is_readable(share: Share) -> bool:
    return is_open(share.stored.format) and share.is_whole


async def _merge_rest(store: Store, plan: Sequence[Share], prefix: Path, keys: Keys | None) -> ds.Dataset:
    """Merge the objects that DuckDB can't read directly into Parquet files."""
    by_stream: dict[str, list[Share]] = defaultdict(list)
    for share in plan:
        by_stream[share.stored.stream].append(share)
    files: list[str] = []
    for number, mine in enumerate(by_stream.values()):
        files.append(f"{prefix}-{number}.parquet")
        with pq.ParquetWriter(files[-1], SCHEMA, compression="zstd", compression_level=1) as writer:
            async with aclosing(merge_shares(store, mine, keys=keys)) as batches:
                async for batch in batches:
                    await to_thread(writer.write_batch, batch)
    return ds.dataset(files, schema=SCHEMA, format=ds.ParquetFileFormat()) if files else _empty_dataset()


async def _keep(tail: AsyncGenerator[pa.RecordBatch, None], path: Path) -> ds.Dataset:
    """Return these rows as a table: in memory, or in a file from TAIL_BYTES on."""
    held: list[pa.RecordBatch] = []
    size = 0
    async with aclosing(tail):
        async for batch in tail:
            held.append(batch)
            size += batch.nbytes
            if size >= TAIL_BYTES:
                await _spill(held, tail, path)
                return ds.dataset(str(path), schema=SCHEMA, format="ipc")
    return ds.dataset(pa.Table.from_batches(held, SCHEMA))


async def _spill(held: list[pa.RecordBatch], rest: AsyncGenerator[pa.RecordBatch, None], path: Path) -> None:
    with translate_spill_errors(), pa.ipc.new_file(path, SCHEMA) as file:
        for batch in held:
            await to_thread(file.write_batch, batch)
        held.clear()
        async for batch in rest:
            await to_thread(file.write_batch, batch)


def _dataset(files: StoreFiles, objects: Sequence[Stored]) -> ds.Dataset:
    if not objects:
        return _empty_dataset()
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    parquet = ds.ParquetFileFormat(default_fragment_scan_options=options)
    return ds.FileSystemDataset.from_paths(
        [one.path for one in objects], schema=SCHEMA, format=parquet, filesystem=PyFileSystem(files)
    )


def _empty_dataset() -> ds.Dataset:
    return ds.dataset(pa.Table.from_pylist([], SCHEMA))


async def _interrupt(database: duckdb.DuckDBPyConnection, asking: asyncio.Task[Rows]) -> None:
    """Have a query that was cancelled end: its thread would work on, and Python waits for it at the end."""
    while not asking.done():
        with suppress(duckdb.Error):  # closed
            database.interrupt()  # it has no effect between two statements
        await asyncio.wait([asking], timeout=INTERRUPT_EVERY)
    asking.exception()  # retrieved


def _answer(
    database: duckdb.DuckDBPyConnection, tables: dict[str, ds.Dataset], sql: str, payload_schema: str | None, limit: int
) -> Rows:
    with database:
        for name, table in tables.items():
            database.register(name, table)
        view = _view(list(tables), payload_schema)
        try:
            database.execute(view)
            if not database.extract_statements(sql):  # blank, or only comments
                raise QueryError("the query is empty: write a statement, such as SELECT count(*) FROM messages")
            found = database.execute(sql)
            rows = found.fetchmany(limit + 1)
        except (duckdb.Error, OSError) as error:
            raise QueryError(_sentence(error)) from error
        columns = [one[0] for one in found.description or ()]
    plain = [[_plain(cell) for cell in row] for row in rows[:limit]]
    return Rows(columns=columns, rows=plain, truncated=len(rows) > limit)


def _view(tables: Sequence[str], payload_schema: str | None) -> str:
    """Return the statement that creates the view. It parses each payload once."""
    everything = " UNION ALL ".join(f"SELECT * FROM {name}" for name in tables)
    if not payload_schema:
        return f"CREATE VIEW {VIEW} AS {everything}"
    kinds = fields(payload_schema)
    hidden = {name.lower() for name in kinds}
    kept = [name for name in SCHEMA.names if name not in hidden]
    structure = json.dumps(kinds).replace("'", "''")
    text = "try(decode(payload))"
    parsed = f"json_transform(CASE WHEN json_valid({text}) THEN {text} END, '{structure}')"
    columns = ", ".join([*kept, *(f"_parsed.{quote(name)} AS {quote(name)}" for name in kinds)])
    return f"CREATE VIEW {VIEW} AS SELECT {columns} FROM (SELECT *, {parsed} AS _parsed FROM ({everything}))"


def _sentence(error: Exception) -> str:
    """Return the first paragraph of an error as one line, without the query that DuckDB adds and Arrow's traceback."""
    lines = str(error).split("\n\n")[0].split(". Detail: Python exception:")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip())


def _plain(value: Any) -> Any:
    """Return a value as a value of JSON: bytes as text if they are UTF-8, otherwise in base64."""
    match value:
        case bytes():
            return text if (text := text_or_none(value)) is not None else b64encode(value).decode()
        case dict():
            return {str(_plain(name)): _plain(cell) for name, cell in value.items()}
        case list() | tuple():
            return [_plain(cell) for cell in value]
        case None | bool() | int() | float() | str():
            return value
    return msgspec.to_builtins(value)
