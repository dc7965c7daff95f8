"""The messages between client and driver: one JSON object per line."""

from collections.abc import Mapping
from typing import Any

import msgspec

from capture.archive.manifest import Stored
from capture.maintenance.engine import FileGroup, Merged
from capture.pipelines.derivation import Derivation, Following, Packing
from capture.spark.options import SparkOptions

DEFAULT_LIMIT = 10_000
"""Rows of a query's answer; it is collected in one piece."""

SMALL_BYTES = 4 * 1024 * 1024
"""A file group whose inputs have at most this many bytes is merged in one job with others."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A table that a query may name: these objects of any format, with the envelope's and their typed columns.

    With `payload_schema`, the fields of the payload are columns. It is in Spark's DDL: "year INT, carrier STRING". If
    messages are `repeated`, in one object or in several, one of them is shown. If they must be `checked`, Spark itself
    reads no object: our client compares each with its SHA-256.
    """

    objects: list[Stored]
    payload_schema: str | None = None
    repeated: bool = False
    checked: bool = False


class Start(msgspec.Struct, tag_field="op", tag="start", kw_only=True):
    """The first request: start Spark. Answered by `Pong`."""

    id: int = 0
    options: SparkOptions


class Ping(msgspec.Struct, tag_field="op", tag="ping", kw_only=True):
    """Check that the driver responds. Answered by `Pong`."""

    id: int = 0


class Merge(msgspec.Struct, tag_field="op", tag="merge", kw_only=True):
    """Compact these file groups, side by side. Answered by `MergeDone`, in their order."""

    id: int = 0
    store: str
    groups: list[FileGroup]
    key_file: str = ""
    small_bytes: int = SMALL_BYTES


class Query(msgspec.Struct, tag_field="op", tag="query", kw_only=True):
    """Run `sql` over these views. Answered by `Rows`."""

    id: int = 0
    store: str
    views: Mapping[str, View]
    sql: str
    limit: int = DEFAULT_LIMIT
    key_file: str = ""


class Derive(msgspec.Struct, tag_field="op", tag="derive", kw_only=True):
    """Compute a pipeline's run. Answered by `Derived`."""

    id: int = 0
    derivation: Derivation


class Pack(msgspec.Struct, tag_field="op", tag="pack", kw_only=True):
    """Merge small files of a pipeline's table. Answered by `PackedFiles`."""

    id: int = 0
    packing: Packing


class Follow(msgspec.Struct, tag_field="op", tag="follow", kw_only=True):
    """Start a pipeline's streaming query. Answered by `Done`."""

    id: int = 0
    following: Following


class NextBatch(msgspec.Struct, tag_field="op", tag="next_batch", kw_only=True):
    """Let the batch with the number `after` go. Answered by the next `Batch`, as soon as there is one."""

    id: int = 0
    pipeline: str
    after: int = -1


class Unfollow(msgspec.Struct, tag_field="op", tag="unfollow", kw_only=True):
    """End a pipeline's streaming query, if there is one. Answered by `Done`."""

    id: int = 0
    pipeline: str


Request = Start | Ping | Merge | Query | Derive | Pack | Follow | NextBatch | Unfollow


class Done(msgspec.Struct, frozen=True):
    """It is done."""


class Pong(msgspec.Struct, frozen=True, kw_only=True):
    """The running versions of Spark and Java."""

    spark: str
    java: str


class MergeDone(msgspec.Struct, frozen=True, kw_only=True):
    """The result of each file group."""

    merged: list[Merged]


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """A query's answer: plain values of JSON. Bytes are text if they are UTF-8, otherwise base64."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool = False
    """There were more rows than the limit."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to the request with this id: `error` is one sentence, otherwise the result for its kind of request.

    `of_pipeline` says that the pipeline failed, not Spark; `plan` is then Spark's plan of its query.
    """

    id: int
    ok: bool = False
    error: str = ""
    of_pipeline: bool = False
    plan: str = ""
    result: msgspec.Raw = msgspec.Raw(b"null")
