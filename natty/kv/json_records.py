"""Decodes JSON that others may have written, such as the records of a shared bucket, within bounds and with one error.

The types below are the bounds of a record's fields.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from natty.errors import UNREADABLE, BadRecordError

MOST_BYTES = 1024 * 1024  # of a record: far more than any of ours

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A count, a sequence or a token: all JSON readers read the same number."""

UnixTime = Annotated[float, msgspec.Meta(ge=0, le=253402300799)]
"""Unix seconds, up to the year 9999."""

Seconds = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
"""A time span, at most three hundred years; it may be slightly negative if two clocks differ."""

Text = Annotated[str, msgspec.Meta(max_length=4096)]
"""A name or a sentence."""

T = TypeVar("T")


def decode(data: bytes, kind: type[T] | Any, *, most_bytes: int = MOST_BYTES) -> T:
    """Return the record of these bytes.

    BadRecordError with the reason if there is none: too many bytes, not JSON, or not of the type `kind`.
    """
    if len(data) > most_bytes:
        raise BadRecordError(f"{len(data)} bytes are more than the {most_bytes} that a record may have")
    try:
        found: T = msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise BadRecordError(str(error)) from error
    return found
