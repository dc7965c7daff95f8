"""The envelope as text for NDJSON and CSV: the fields of its columns, and their values."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from capture.archive.envelope_columns import COLUMNS, HEADER_BLOCKS, Column
from capture.ingest.record import Records, error_texts, header_texts, text_or_none

AT_ONCE = 256  # messages whose columns are made together: a whole block would take twice the memory
NOTHING: Iterable[Any] = repeat(None)
"""The values of a field that is null for all messages."""
SOURCES = dict.fromkeys(one.source for one in COLUMNS)

_FROM_HEADERS = [one for one in COLUMNS if one.source == HEADER_BLOCKS]


def fields_of(column: Column) -> list[str]:
    """Return the fields of a column: its own name for text and numbers, `<name>_base64` for bytes."""
    if column.type != "binary":
        return [column.name]
    return [*([column.name] if column.as_text else []), f"{column.name}_base64"]


_FIELDS = {source: [name for one in COLUMNS if one.source == source for name in fields_of(one)] for source in SOURCES}


def text_columns(records: Records[Any], sources: Collection[str] = SOURCES) -> dict[str, Iterable[Any]]:
    """Return the values of the fields that are made from these sources, by name; NOTHING if all are null.

    Iterate over each only once, and no further than there are records.
    """
    columns: dict[str, Iterable[Any]] = {}
    for source in sources:
        columns.update(zip(_FIELDS[source], _values(records, source), strict=True))
    return columns


def parts_of(records: Records[Any]) -> Iterator[Records[Any]]:
    """Yield the records some at a time, so that their columns take little memory."""
    return (records.select(range(start, start + AT_ONCE)) for start in range(0, len(records), AT_ONCE))


def rename(fields: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return a value's fields; names that are `taken`, which are in lower case, become `value_<name>`."""
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        while name.lower() in taken or name in renamed:
            name = f"value_{name}"
        renamed[name] = value
    return renamed


def encode_base64(data: bytes) -> str:
    """Return the bytes in base64."""
    return b64encode(data).decode()


def _values(records: Records[Any], source: str) -> Sequence[Iterable[Any]]:
    """Return the values of the source's fields, in their order."""
    match source:
        case "stream":
            return [repeat(records.stream)]
        case "subjects":
            return _subjects(records.subjects)
        case "header_blocks":
            return _headers(records.header_blocks)
        case "payloads":
            return _texts(records.payloads)
        case "errors":
            return [error_texts(records) if records.errors else NOTHING]
    return [getattr(records, source) or NOTHING]


def _subjects(column: list[bytes]) -> Sequence[Iterable[Any]]:
    texts, raw = _texts(column)
    return [texts if raw is NOTHING else [subject.decode("utf-8", "replace") for subject in column], raw]


def _headers(blocks: list[bytes]) -> Sequence[Iterable[Any]]:
    if not any(blocks):
        return [NOTHING] * len(_FROM_HEADERS)
    headers = [header_texts(block) if block else None for block in blocks]
    return [_of_headers(one, headers, blocks) for one in _FROM_HEADERS]


def _of_headers(column: Column, headers: list[dict[str, list[str]] | None], blocks: list[bytes]) -> Iterable[Any]:
    if column.header:
        name = column.header
        return column.of([one[name][0] if one and name in one else None for one in headers])
    return headers if column.type == "headers" else (encode_base64(block) if block else None for block in blocks)


def _texts(column: list[bytes]) -> tuple[Iterable[str | None], Iterable[str | None]]:
    """Return a column as text, and as base64 where it is not UTF-8; the other one is null."""
    try:
        return [one.decode() for one in column], NOTHING
    except UnicodeDecodeError:
        texts = list(map(text_or_none, column))
        return texts, [encode_base64(one) if text is None else None for one, text in zip(column, texts, strict=True)]
