"""Answers SQL queries in Spark's driver."""

import asyncio
import base64
from typing import Any

from pyspark.sql import Row, SparkSession

from capture.archive.encryption import Keys
from capture.maintenance.merge.inputs import columns_of
from capture.spark.frames import load, with_payload
from capture.spark.protocol import Query, Rows
from capture.stores import open_store


def query(spark: SparkSession, asked: Query) -> Rows:
    """Answer a query over its views only: every query has its own names."""
    scope, store, keys = spark.newSession(), open_store(asked.store), Keys.load(asked.key_file)
    for name, view in asked.views.items():
        columns = asyncio.run(columns_of(store, view.objects, keys))
        messages = load(scope, asked.store, view.objects, columns, key_file=asked.key_file, checked=view.checked)
        if view.repeated:
            messages = messages.dropDuplicates(["stream", "sequence"])
        table = with_payload(messages, view.payload_schema) if view.payload_schema else messages
        table.createOrReplaceTempView(name)
    answer = scope.sql(asked.sql)
    rows = answer.limit(asked.limit + 1).collect()
    plain = [[_plain(cell) for cell in row] for row in rows[: asked.limit]]
    return Rows(columns=answer.columns, rows=plain, truncated=len(rows) > asked.limit)


def _plain(value: Any) -> Any:
    """Return the value as JSON can represent it; dates, times and decimals are left to the encoder."""
    match value:
        case bytes() | bytearray():
            return _text(bytes(value))
        case Row():
            return {name: _plain(cell) for name, cell in value.asDict().items()}
        case dict():
            return {str(_plain(name)): _plain(cell) for name, cell in value.items()}
        case list() | tuple():
            return [_plain(cell) for cell in value]
        case _:
            return value


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()
