"""The columns of the envelope: what an archive stores of every message. Every format, reader and table uses them.

Adding a column to the envelope means adding a `Column` here: see docs/extending.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

MESSAGE_ID, ORIGIN = "Nats-Msg-Id", "Nats-Stream-Source"
HEADER_BLOCKS = "header_blocks"
"""The source of the columns that are computed from headers."""

_SEQUENCE = re.compile("[0-9]{1,18}", re.ASCII)  # fits into 64 bits


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: its name, its type, and its source.

    `source` is the field of `capture.ingest.record.Records` that holds its values. A column with a `header` holds the
    first value of that header, or what `read` returns for that value (None: null). A nullable column may be null.
    """

    name: str
    type: Literal["string", "int32", "int64", "binary", "headers"]
    source: str
    header: str = ""
    read: Callable[[str], Any] | None = None
    nullable: bool = False
    is_late: bool = False
    """The column was added after the first release: older files do not have it, NDJSON omits it if it is null."""
    is_sent: bool = False
    """`capture restore` sends it to the server."""
    is_published: bool = False
    """A row that Spark publishes may contain it."""
    in_csv: bool = False
    as_text: bool = False
    """Text formats write bytes that are UTF-8 as text, and others in base64 as `<name>_base64`."""
    repeats: bool = False
    """Parquet writes a dictionary of its values."""
    is_searched: bool = False
    """Parquet writes the minimum and the maximum of its values, for readers that filter."""
    rises: bool = False
    """Parquet packs the differences of its values."""
    about: str = ""
    """Its description in the archive's README; adjacent columns with the same text share a row."""

    @property
    def is_derived(self) -> bool:
        """Whether it is computed from the column header_block."""
        return bool(self.header) or self.type == "headers"

    def of(self, firsts: list[str | None]) -> list[Any]:
        """Return the values of messages, given the first values of the column's header; None: null."""
        return firsts if self.read is None else [None if one is None else self.read(one) for one in firsts]


def parse_origin(header: str) -> tuple[str, int] | tuple[None, None]:
    """Return the stream that a message was sourced from, and its sequence there; (None, None) if it is malformed."""
    stream, _, rest = header.partition(" ")
    sequence = rest.partition(" ")[0]
    return (stream, int(sequence)) if stream and _SEQUENCE.fullmatch(sequence) else (None, None)


_IDENTITY = "what identifies the message"
_FROM = (
    "where the stream took it from, if it has sources; files that were written before 2026-11-21 do not have these two"
)

COLUMNS = (
    Column(
        name="stream", type="string", source="stream",
        in_csv=True, repeats=True, is_searched=True, about=_IDENTITY,
    ),
    Column(
        name="sequence", type="int64", source="sequences",
        is_sent=True, in_csv=True, is_searched=True, rises=True, about=_IDENTITY,
    ),
    Column(  # an integer: Spark's timestamps end at the microsecond
        name="time_ns", type="int64", source="times_ns",
        is_sent=True, in_csv=True, is_searched=True, rises=True, about="when the stream stored it",
    ),
    Column(
        name="subject", type="string", source="subjects",
        is_sent=True, is_published=True, in_csv=True, repeats=True, is_searched=True,
        about="its subject; if that is not UTF-8, its bytes are in `subject_raw`",
    ),
    Column(
        name="headers", type="headers", source=HEADER_BLOCKS, nullable=True, is_published=True, in_csv=True,
        about="its headers by their names, each a list of values; what is not UTF-8 is replaced",
    ),
    Column(  # raw, for an exact restore
        name="header_block", type="binary", source=HEADER_BLOCKS, nullable=True, is_sent=True,
        about=(
            "its headers byte for byte, from `NATS/1.0` to the empty line; null: it had none. Here stand time to live"
            f" (`Nats-TTL`) and origin (`{ORIGIN}`), too"
        ),
    ),
    Column(
        name="message_id", type="string", source=HEADER_BLOCKS, header=MESSAGE_ID, nullable=True,
        is_published=True, in_csv=True, is_searched=True, about=f"the first `{MESSAGE_ID}`",
    ),
    Column(
        name="deliveries", type="int32", source="deliveries",
        in_csv=True, about="how often it had been delivered when it was stored",
    ),
    Column(
        name="payload", type="binary", source="payloads",
        is_sent=True, is_published=True, in_csv=True, as_text=True, about="its payload, byte for byte",
    ),
    Column(
        name="error", type="string", source="errors", nullable=True,
        in_csv=True, repeats=True, about="why it could not be decoded; null: it could",
    ),
    Column(  # a server does not require that subjects are UTF-8
        name="subject_raw", type="binary", source="subjects", nullable=True, is_late=True,
    ),
    Column(
        name="origin_stream", type="string", source=HEADER_BLOCKS, header=ORIGIN,
        read=lambda header: parse_origin(header)[0], nullable=True, is_late=True, about=_FROM,
    ),
    Column(
        name="origin_sequence", type="int64", source=HEADER_BLOCKS, header=ORIGIN,
        read=lambda header: parse_origin(header)[1], nullable=True, is_late=True, about=_FROM,
    ),
)  # fmt: skip

NAMES = [one.name for one in COLUMNS]
NEEDED = [one.name for one in COLUMNS if not one.is_derived]
"""The columns that are needed to rebuild a message: the others are computed from these."""


def describe_columns() -> str:
    """Return the rows of a Markdown table: each column's name and description."""
    return "\n".join(
        f"| {', '.join(f'`{one.name}`' for one in several)} | {about} |"
        for about, several in groupby(COLUMNS, key=lambda one: one.about)
        if about
    )
