"""The columns of format 1: what is kept of every message, whatever the writer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from capture.formats.headers import TYPE, header_columns, origin_columns
from capture.ingest.record import Records, text_or_none

VERSION = 1

SCHEMA = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("time_ns", pa.int64()),  # an integer: Spark's timestamps end at the microsecond
        pa.field("subject", pa.string()),
        pa.field("headers", TYPE),
        pa.field("header_block", pa.binary()),  # raw, for an exact restore
        pa.field("message_id", pa.string()),
        pa.field("deliveries", pa.int32()),
        pa.field("payload", pa.binary()),
        pa.field("error", pa.string()),
        pa.field("subject_raw", pa.binary()),  # only where the subject is no UTF-8, which a server does not ask for
        pa.field("origin_stream", pa.string()),  # of a sourced message: where it was published
        pa.field("origin_sequence", pa.int64()),
    ]
)
_KINDS = [(field.name, field.type) for field in SCHEMA]


def to_table(records: Records[Any]) -> pa.Table:
    """Return the records as a table of SCHEMA, built column by column."""
    headers, header_blocks, message_ids = header_columns(records.header_blocks)
    subjects, raw_subjects = _subjects(records.subjects)
    columns = [
        pa.repeat(pa.scalar(records.stream, pa.string()), len(records)),
        pa.array(records.sequences, pa.int64()),
        pa.array(records.times_ns, pa.int64()),
        subjects,
        headers,
        header_blocks,
        message_ids,
        pa.array(records.deliveries, pa.int32()),
        pa.array(records.payloads, pa.binary()),
        _errors(records),
        raw_subjects,
        *origin_columns(records.header_blocks),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def with_envelope(table: pa.Table) -> pa.Table:
    """Return the rows with all columns of SCHEMA first, null where an earlier version did not write one."""
    rows, held = len(table), set(table.column_names)
    columns = [table[name].cast(kind) if name in held else pa.nulls(rows, kind) for name, kind in _KINDS]
    more = [field for field in table.schema if field.name not in SCHEMA.names]
    schema = pa.schema([*SCHEMA, *more])
    return pa.Table.from_arrays([*columns, *(table[field.name] for field in more)], schema=schema)


def _subjects(subjects: list[bytes]) -> tuple[pa.Array, pa.Array]:
    """Return the columns subject and subject_raw."""
    try:
        return pa.array(subjects, pa.binary()).cast(pa.string()), pa.nulls(len(subjects), pa.binary())
    except pa.ArrowInvalid:  # some are not UTF-8
        texts = [subject.decode("utf-8", "replace") for subject in subjects]
        raw = [subject if text_or_none(subject) is None else None for subject in subjects]
        return pa.array(texts, pa.string()), pa.array(raw, pa.binary())


def _errors(records: Records[Any]) -> pa.Array:
    if not records.errors:
        return pa.nulls(len(records), pa.string())
    return pa.array([_safe(records.errors.get(index)) for index in range(len(records))], pa.string())


def _safe(reason: str | None) -> str | None:
    return None if reason is None else reason.encode("utf-8", "replace").decode()
