"""The columns of format 1: what is kept of every message, whatever the writer."""

from __future__ import annotations

import pyarrow as pa

from capture.block import SealedBlock
from capture.record import Records
from capture.writers.headers import TYPE, header_columns

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
    ]
)


def to_table(block: SealedBlock) -> pa.Table:
    """Return the block as a table of SCHEMA, built column by column."""
    records = block.records
    headers, header_blocks, message_ids = header_columns(records.header_blocks)
    columns = [
        pa.repeat(pa.scalar(block.stream, pa.string()), len(records)),
        pa.array(records.sequences, pa.int64()),
        pa.array(records.times_ns, pa.int64()),
        _subjects(records.subjects),
        headers,
        header_blocks,
        message_ids,
        pa.array(records.deliveries, pa.int32()),
        pa.array(records.payloads, pa.binary()),
        _errors(records),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _subjects(subjects: list[bytes]) -> pa.Array:
    try:
        return pa.array(subjects, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:  # some are not UTF-8
        return pa.array([subject.decode("utf-8", "replace") for subject in subjects], pa.string())


def _errors(records: Records) -> pa.Array:
    if not records.errors:
        return pa.nulls(len(records), pa.string())
    return pa.array([_safe(records.errors.get(index)) for index in range(len(records))], pa.string())


def _safe(reason: str | None) -> str | None:
    return None if reason is None else reason.encode("utf-8", "replace").decode()
