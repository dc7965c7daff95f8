"""JSON that others may have written, as the records of a shared bucket: decoded within bounds, with one error."""

from __future__ import annotations

import logging
from typing import Annotated, Any, TypeVar

import msgspec

from natty.errors import UNREADABLE, BadRecordError

MOST_BYTES = 1024 * 1024  # of a record: far more than any of ours has
MOST_FAULTS = 50  # keys whose fault is remembered, so that it is logged once

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
    """Return the record. BadRecordError, with the reason, for whatever it can't be made of."""
    if len(data) > most_bytes:
        raise BadRecordError(f"{len(data)} bytes are more than the {most_bytes} that a record may have")
    try:
        found: T = msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise BadRecordError(str(error)) from error
    return found


class Faults:
    """Logs what is wrong with a key once, until that is over; of more than MOST_FAULTS keys, that there are."""

    def __init__(self, log: logging.Logger, text: str, *, action: str = "bad_record") -> None:
        self._log = log
        self._text = text  # with two places: the key, and the reason
        self._extra = {"action": action}
        self._known: dict[str, str] = {}
        self._told_of_more = False

    def bad(self, key: str, reason: object) -> None:
        """Log it, unless that is known."""
        if self._known.get(key) == str(reason):
            return
        if key not in self._known and len(self._known) >= MOST_FAULTS:
            if not self._told_of_more:
                self._told_of_more = True
                more = "so many keys have faults that those of further ones are not logged, as of %s: %s"
                self._log.warning(more, key, reason, extra=self._extra)
            return
        self._known[key] = str(reason)
        self._log.warning(self._text, key, reason, extra=self._extra)

    def good(self, key: str) -> None:
        """Forget its fault."""
        self._known.pop(key, None)
