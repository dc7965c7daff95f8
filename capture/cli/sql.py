"""`capture sql`: runs a query over the archive's messages."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated

import typer

from capture.archive.identity import archive_name, require_archive
from capture.archive.manifest import Stored
from capture.archive.stored_formats import is_open
from capture.archive.trust import check_contents
from capture.cli import settings
from capture.config.settings import CaptureConfig
from capture.errors import CaptureError, ConfigError
from capture.reading.merge import make_look
from capture.reading.shares import plan_shares
from capture.spark import Rows, SparkDriver, View
from capture.stores import open_store
from capture.stores.own_store import shown
from natty.cli.run import run_async
from natty.cli.tables import print_document, print_table

NOT_INSTALLED = 'DuckDB is not installed here; run: pip install "natty-nats[sql]", or use Spark: --engine spark'


class Engine(StrEnum):
    """The engine that answers queries."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def sql(
    query: Annotated[str, typer.Argument(help="SQL query of the view `messages`.")],
    config: settings.Config = None,
    stream: settings.Stream = None,
    store: settings.Store = None,
    schema: Annotated[
        str | None, typer.Option(help="Fields of the payload to add as columns: 'carrier STRING, …'.")
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="Query engine; default: DuckDB, or Spark if only Spark is installed.")
    ] = None,
    public_key: settings.PublicKey = None,
    encrypted_only: settings.EncryptedOnly = False,
    as_json: settings.Json = False,
) -> None:
    """Query the archive with SQL: blocks and table as one view, `messages`, with one row for each message.

    Needs no server.
    """
    flags = {"stream": stream, "store": store, **settings.checks(public_key, encrypted_only)}
    wanted = settings.archive(config, flags, {}, needs=("store",))
    answer = run_async(_query(wanted, query, schema, engine or best_engine()))
    if as_json:
        print_document([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        print_table(answer.columns, answer.rows)
    if answer.truncated:
        print(f"capture: only the first {len(answer.rows):,} rows are shown", file=sys.stderr)


def best_engine() -> Engine:
    """Return DuckDB, unless only Spark is installed: if neither is, the user should install DuckDB."""
    return Engine.SPARK if find_spec("pyspark") and not find_spec("duckdb") else Engine.DUCKDB


async def _query(config: CaptureConfig, query: str, schema: str | None, engine: Engine) -> Rows:
    store = open_store(config.store)
    await require_archive(store, config.stream)
    trust = config.trust(await archive_name(store))
    objects = await make_look(store, config.stream, trust=trust)()
    contents = None
    if trust.public_keys is not None:  # both engines read plain Parquet directly, without checking its SHA-256
        contents = await check_contents(store, [one for one in objects if is_open(one.format)])
    if engine is Engine.SPARK:
        return await _by_spark(config, objects, query, schema, checked=contents is not None)
    if not find_spec("duckdb"):
        raise ConfigError(NOT_INSTALLED)
    from capture.reading import duck  # here, so that the command line starts without it

    return await duck.query(store, objects, query, payload_schema=schema, keys=config.keys(), contents=contents)


async def _by_spark(
    config: CaptureConfig, objects: list[Stored], query: str, schema: str | None, *, checked: bool
) -> Rows:
    if not objects:
        raise CaptureError(f"the archive in {shown(config.store)} is empty")
    plan = plan_shares(objects)
    view = View(
        objects=[share.stored for share in plan],
        payload_schema=schema,
        repeated=not all(share.is_whole for share in plan),
        checked=checked,
    )
    async with SparkDriver(config.spark.options(queries=True), key_file=config.key_file) as spark:
        return await spark.query(config.store, {"messages": view}, query)
