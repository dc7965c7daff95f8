"""Checks how much memory the pages of a Parquet file need before decompressing any: the file may be malicious.

Source: parquet.thrift (PageHeader) of apache/parquet-format, and Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import IO, Any

from capture.errors import FormatError

MOST_BYTES = 520 << 20
"""Of a page. Capture's have a MiB, or eight larger messages of at most 64 MiB each, the limit of servers."""
MOST_VALUES = 1 << 24
"""Of a page: Arrow begins a new one after 20,000 rows."""
HEADER_BYTES = 64 << 10
LONGEST_HEADER = 1 << 20  # it includes the smallest and largest values
DEEPEST = 8  # nested structures; a page's header has three levels

_TRUE, _FALSE, _BYTE, _INT16, _INT32, _INT64, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 12
_DICTIONARY = 2  # a page's type
_BYTES = "BYTE_ARRAY"  # of a column


def check_pages(file: IO[bytes], metadata: Any, columns: Collection[str]) -> set[str]:
    """Return those of these columns that hold text or bytes with a dictionary. FormatError if a page is too large.

    `metadata` is that of the file's footer. It reads headers, not pages.
    """
    found: set[str] = set()
    for group in range(metadata.num_row_groups):
        facts = metadata.row_group(group)
        for index in range(facts.num_columns):
            column = facts.column(index)
            path = column.path_in_schema
            if path.partition(".")[0] in columns and _has_dictionary(file, column) and column.physical_type == _BYTES:
                found.add(path)
    return found & set(columns)


def _has_dictionary(file: IO[bytes], column: Any) -> bool:
    """Check all pages of a column in a row group, from the position at which Arrow starts to read."""
    at, has_one = column.data_page_offset, False
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end = at + column.total_compressed_size
    while at < end:
        fields, size = _header(file, at)
        plain, stored = fields.get((2,), -1), fields.get((3,), -1)
        values = max(fields.get((kind, 1), 0) for kind in (5, 7, 8))
        if not (0 <= plain <= MOST_BYTES and 0 <= values <= MOST_VALUES and 0 <= stored <= end - at):
            raise FormatError(
                f"a page of column {column.path_in_schema} has {plain:,} bytes and {values:,} values inside of"
                f" {stored:,} bytes: capture did not store that"
            )
        has_one = has_one or fields.get((1,)) == _DICTIONARY
        at += size + stored
    return has_one


def _header(file: IO[bytes], at: int) -> tuple[dict[tuple[int, ...], int], int]:
    """Return the numbers in a page's header, by their place, and the size of the header in bytes."""
    most = HEADER_BYTES
    while True:
        file.seek(at)
        data = file.read(most)
        try:
            return _struct(data, 0, ())
        except IndexError:  # it ends after the bytes read
            if len(data) < most or most >= LONGEST_HEADER:
                raise FormatError("the header of a page is cut off, or too long") from None
            most = LONGEST_HEADER


def _struct(data: bytes, at: int, place: tuple[int, ...]) -> tuple[dict[tuple[int, ...], int], int]:
    found: dict[tuple[int, ...], int] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 0x0F
        if kind in (_INT16, _INT32, _INT64):
            found[*place, number], at = _integer(data, at)
        elif kind == _BINARY:
            length, at = _varint(data, at)
            at += length
        elif kind == _BYTE:
            at += 1
        elif kind == _STRUCT and len(place) < DEEPEST:
            inner, at = _struct(data, at, (*place, number))
            found |= inner
        elif kind not in (_TRUE, _FALSE):
            raise FormatError("the header of a page is damaged")
    return found, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at
        if shift > 63:
            raise FormatError("the header of a page is damaged")
