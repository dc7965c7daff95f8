"""Converts rows of a DataFrame into messages to publish. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from capture.archive.envelope_columns import COLUMNS
from capture.errors import ConfigError, SparkError
from capture.formats.envelope import SCHEMA
from capture.spark.jetstream.source_options import WriteOptions, nearest

PUBLISHED = {one.name: one for one in COLUMNS if one.is_published}
CONDITIONS = ("Nats-Msg-Id", "Nats-Expected-", "Nats-Batch-")
"""Prefixes of headers with conditions for storing a message: they do not apply to the stream that it goes to now."""

_TAKEN = {
    "string": (StringType(),),
    "binary": (StringType(), BinaryType()),
    "headers": (MapType(StringType(), StringType()), MapType(StringType(), ArrayType(StringType()))),
}
"""The types that a column of an envelope's type may have in a DataFrame."""


class Outgoing(NamedTuple):
    """A message to publish."""

    subject: str
    payload: bytes
    headers: dict[str, list[str]] | None
    message_id: str


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raise ConfigError unless rows of this schema can be published: it names the column that is missing or wrong.

    Columns of the envelope that are not published, such as `sequence`, are allowed: rows that were read can be written
    as they are.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name in types:
        if name not in SCHEMA.names:
            raise ConfigError(f"there is no column {name} of a message; {nearest(name, PUBLISHED)}")
    if "payload" not in types:
        raise ConfigError("there is no column payload, of text or bytes: a message needs it")
    if "subject" not in types and not options.subject:
        raise ConfigError('there is no column subject: add it, or set one for all rows with .option("subject", …)')
    if "subject" in types and options.subject:
        raise ConfigError("there is a column subject and an option subject: remove one of them")
    for name, column in PUBLISHED.items():
        kinds = _TAKEN[column.type]
        if name in types and not any(_alike(types[name], kind) for kind in kinds):
            names = " or ".join(kind.simpleString() for kind in kinds)
            raise ConfigError(f"column {name} is {types[name].simpleString()}, it must be {names}")


def make_outgoing(batch: pa.RecordBatch, options: WriteOptions, prefix: str, first: int) -> Iterator[Outgoing]:
    """Yield the messages of these rows, the first of which has number `first` in its partition.

    A row without a message id gets `prefix` and its number, unless ids are disabled. SparkError if a row has no
    subject. A null payload becomes an empty one.
    """
    rows = batch.num_rows
    columns = {name: batch.column(name).to_pylist() for name in PUBLISHED if name in batch.schema.names}
    subjects = columns.get("subject") or [options.subject] * rows
    ids = columns.get("message_id") or [None] * rows
    headers = columns.get("headers") or [None] * rows
    for number, (subject, payload, pairs, own) in enumerate(
        zip(subjects, columns["payload"], headers, ids, strict=True), start=first
    ):
        if not subject:
            raise SparkError(f"row {number} of a partition has no subject: a message can't be published without one")
        made = "" if options.message_ids == "none" else f"{prefix}{number}"
        yield Outgoing(subject, _bytes(payload), _headers(pairs), own or made)


def _bytes(payload: Any) -> bytes:
    return payload.encode() if isinstance(payload, str) else payload or b""


def _headers(pairs: list[tuple[str, Any]] | None) -> dict[str, list[str]] | None:
    """Return the headers to publish, without those under which the message was first stored."""
    if not pairs:
        return None
    return {
        name: [values or ""] if not isinstance(values, list) else [value or "" for value in values]
        for name, values in pairs
        if not name.startswith(CONDITIONS)
    }


def _alike(one: Any, other: Any) -> bool:
    """Return whether these are the same types; nullability may differ."""
    return bool(one.simpleString() == other.simpleString())
