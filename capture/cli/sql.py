"""`capture sql`: runs a query over the archive's messages."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capture.archive.identity import archive_name, require_archive
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.archive.stored_formats import is_open
from capture.archive.trust import Trust, check_contents
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, ConfigError
from capture.reading.shares import plan_shares
from capture.spark import Rows, SparkDriver, View
from capture.stores import Store, open_store
from capture.stores.own_store import shown
from natty import Natty
from natty.cli import connect
from natty.cli.run import run_async
from natty.cli.tables import print_document, print_table
from natty.config.units import write_count
from natty.errors import how_to_install

if TYPE_CHECKING:  # pyarrow takes longer to import than the completion of a word may take
    from capture.reading.inventory import Inventory

NOT_LIVE = (
    "Spark's engine reads only the archive: with --live, use --engine duckdb, or in your own program Spark's format"
    " jetstream with its option archive"
)


class Engine(StrEnum):
    """The engine that answers queries."""

    DUCKDB = "duckdb"
    SPARK = "spark"


@connect.options
def sql(
    query: Annotated[str, typer.Argument(help="SQL query of the view `messages`.")],
    *,
    nats: dict[str, Any],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    schema: Annotated[
        str | None, typer.Option(help="Fields of the payload to add as columns: 'carrier STRING, …'.")
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="Query engine; default: DuckDB, or Spark if only Spark is installed.")
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Include the messages that only the stream holds so far.")
    ] = False,
    public_key: settings.PublicKey = None,
    encrypted_only: settings.EncryptedOnly = False,
    as_json: settings.Json = False,
) -> None:
    """Query the archive with SQL: blocks and table as one view, `messages`, with one row for each message.

    With --live also the messages that only the stream holds so far. Needs a server only with --live.
    """
    flags = {"stream": stream, "store": store, **settings.checks(public_key, encrypted_only)}
    wanted = settings.archive(config, flags, nats, needs=("store",))
    answer = run_async(_query(wanted, query, schema, engine or best_engine(), live))
    if as_json:
        print_document([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        print_table(answer.columns, [["NULL" if cell is None else cell for cell in row] for row in answer.rows])
    if answer.truncated:
        print(f"capture: only the first {len(answer.rows):,} rows are shown", file=sys.stderr)


def best_engine() -> Engine:
    """Return DuckDB, unless only Spark is installed: if neither is, the user should install DuckDB."""
    return Engine.SPARK if find_spec("pyspark") and not find_spec("duckdb") else Engine.DUCKDB


async def _query(config: CaptureConfig, query: str, schema: str | None, engine: Engine, live: bool) -> Rows:
    if engine is Engine.DUCKDB and not find_spec("duckdb"):
        raise ConfigError(f"DuckDB is not installed here; {how_to_install('sql')}, or use Spark: --engine spark")
    if live and engine is Engine.SPARK:
        raise ConfigError(NOT_LIVE)
    from capture.reading import duck, tail
    from capture.reading.inventory import take_inventory
    from capture.reading.merge import make_look

    store = open_store(config.store)
    await require_archive(store, config.stream)
    name = await archive_name(store)
    trust = config.trust(name)
    async with AsyncExitStack() as stack:
        rest = None
        objects: Inventory | list[Stored]
        if live:
            natty = await stack.enter_async_context(Natty(**config.nats))
            streams = await tail.list_captured(config, store, natty, trust)
            look = make_look(store, config.stream, natty=natty, archive=name, trust=trust)
            snapshot = await tail.take_snapshot(streams, look, _report_missing)
            objects, rest = snapshot.objects, snapshot.read_tails(_report_gap)
        elif engine is Engine.SPARK:
            return await _by_spark(config, store, query, schema, trust)
        else:
            objects = await take_inventory(store, config.stream, trust=trust)
        keys = config.keys()
        check = None if trust.public_keys is None else check_contents  # DuckDB does not check an object's SHA-256
        return await duck.query(store, objects, query, payload_schema=schema, keys=keys, check=check, tail=rest)


def _report_missing(stream: str) -> None:
    print(f"capture: stream {stream} does not exist any more: its messages are the archive's alone", file=sys.stderr)


def _report_gap(stream: str, gone: Sequences) -> None:
    print(
        f"capture: {write_count(len(gone), 'message')} left stream {stream} during the query, and were not captured:"
        f" {gone.describe()}",
        file=sys.stderr,
    )


async def _by_spark(config: CaptureConfig, store: Store, query: str, schema: str | None, trust: Trust) -> Rows:
    from capture.reading.merge import make_look

    objects = await make_look(store, config.stream, trust=trust)()
    if trust.public_keys is not None:  # Spark reads plain Parquet directly, without checking its SHA-256
        await check_contents(store, [one for one in objects if is_open(one.format)])
    if not objects:
        raise CaptureError(f"the archive in {shown(config.store)} is empty")
    plan = plan_shares(objects)
    view = View(
        objects=[share.stored for share in plan],
        payload_schema=schema,
        repeated=not all(share.is_whole for share in plan),
        checked=trust.public_keys is not None,
    )
    async with SparkDriver(config.spark.options(queries=True), key_file=config.key_file) as spark:
        return await spark.query(config.store, {"messages": view}, query)
