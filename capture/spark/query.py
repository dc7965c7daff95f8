import base64
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Row, SparkSession

from capture.spark.protocol import Rows, View
from capture.spark.table import load, with_payload


def query(spark: SparkSession, store_url: str, views: Mapping[str, View], sql: str, *, limit: int) -> Rows:
    """Run `sql` over these views, and no others: every query has names of its own. At most `limit` rows."""
    scope = spark.newSession()
    for name, view in views.items():
        messages = load(scope, store_url, view.paths)
        table = with_payload(messages, view.payload_schema) if view.payload_schema else messages
        table.createOrReplaceTempView(name)
    answer = scope.sql(sql)
    rows = answer.limit(limit + 1).collect()
    plain = [[_plain(cell) for cell in row] for row in rows[:limit]]
    return Rows(columns=answer.columns, rows=plain, truncated=len(rows) > limit)


def _plain(value: Any) -> Any:
    """As JSON can say it; dates, times and decimals are left to the encoder."""
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
