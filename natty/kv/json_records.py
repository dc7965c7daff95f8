"""JSON that others may have written, as the records of a shared bucket: decoded within bounds, with one error.

A class of records takes the bounds of its fields from the types below.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from natty.errors import UNREADABLE, BadRecordError

MOST_BYTES = 1024 * 1024  # of a record: far more than any of ours has

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
"""A count, a sequence or a token: what every reader of JSON takes as the same number."""

UnixTime = Annotated[float, msgspec.Meta(ge=0, le=253402300799)]
"""Unix seconds, up to the year 9999."""

Seconds = Annotated[float, msgspec.Meta(ge=-1e10, le=1e10)]
"""A span, three hundred years at most; a little less than none where two clocks differ."""

Text = Annotated[str, msgspec.Meta(max_length=4096)]
"""A name or a sentence."""

T = TypeVar("T")


def decode(data: bytes, kind: type[T] | Any, *, most_bytes: int = MOST_BYTES) -> T:
    """Return the record of these bytes.

    BadRecordError says why they are none: too many, not JSON, or of another shape than `kind`.
    """
    if len(data) > most_bytes:
        raise BadRecordError(f"{len(data)} bytes are more than the {most_bytes} that a record may have")
    try:
        found: T = msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise BadRecordError(str(error)) from error
    return found
