"""The envelope, format 1, as Arrow's columns: messages become rows, and rows become messages again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from capture.archive.envelope_columns import COLUMNS, HEADER_BLOCKS
from capture.formats.headers import TYPES, header_columns
from capture.ingest.record import LISTS, Record, Records, text_or_none

VERSION = 1

SCHEMA = pa.schema([pa.field(one.name, TYPES[one.type]) for one in COLUMNS])
EACH = [name for name in Record._fields if name in SCHEMA.names]
"""The columns that `messages_of` needs."""

_KINDS = [(field.name, field.type) for field in SCHEMA]
_MADE = {source: [one.name for one in COLUMNS if one.source == source] for source in (one.source for one in COLUMNS)}
"""The columns that are made from each source."""
_PLAIN = [one for one in COLUMNS if one.source in LISTS and one.source not in ("subjects", HEADER_BLOCKS)]
"""The columns that are a list of `Records` as it is."""


def to_table(records: Records[Any]) -> pa.Table:
    """Return the records as a table of SCHEMA, built column by column."""
    columns: dict[str, pa.Array] = {}
    for source, names in _MADE.items():
        columns.update(zip(names, _arrays(records, source), strict=True))
    return pa.Table.from_arrays([columns[name] for name, _ in _KINDS], schema=SCHEMA)


def _arrays(records: Records[Any], source: str) -> Iterable[pa.Array]:
    match source:
        case "stream":
            return [pa.repeat(pa.scalar(records.stream, pa.string()), len(records))]
        case "subjects":
            return _subjects(records.subjects)
        case "header_blocks":
            return header_columns(records.header_blocks)
        case "errors":
            return [_errors(records)]
    return [pa.array(getattr(records, source), SCHEMA.field(name).type) for name in _MADE[source]]


def to_records(batch: pa.RecordBatch, stream: str = "") -> Records[Any]:
    """Return rows as records: lists of Python objects, bytes as they came.

    The rows have at least the columns `envelope_columns.NEEDED`. `stream` names their stream if they do not.
    """
    subjects = batch.column("subject").cast(pa.binary()).to_pylist()
    if batch.column("subject_raw").null_count < len(batch):
        raw = batch.column("subject_raw").to_pylist()
        subjects = [text if bytes_ is None else bytes_ for text, bytes_ in zip(subjects, raw, strict=True)]
    errors: dict[int, str] = {}
    if batch.column("error").null_count < len(batch):
        errors = {at: why for at, why in enumerate(batch.column("error").to_pylist()) if why is not None}
    return Records(
        stream=stream or batch.column("stream")[0].as_py(),
        subjects=subjects,
        header_blocks=_filled(batch.column("header_block")),
        values=[None] * len(batch),
        errors=errors,
        **{one.source: batch.column(one.name).to_pylist() for one in _PLAIN},
    )


def messages_of(batch: pa.RecordBatch) -> Iterator[Record[None]]:
    """Yield rows as messages, one by one. EACH is enough of the columns."""
    columns = [
        _filled(batch.column(name)) if name == "header_block" else batch.column(name).to_pylist() for name in EACH
    ]
    return map(Record, *columns, repeat(None))


def _filled(column: pa.Array) -> list[bytes]:
    if column.null_count == len(column):
        return [b""] * len(column)
    return [one or b"" for one in column.to_pylist()]


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
