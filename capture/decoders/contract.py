from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capture.record import Records
from natty.message import Batch, Message

Decoder = Callable[[Batch], Records]
"""Columns in, columns out. It never raises: what it can't decode is an entry of `errors`, and is stored raw."""

BY_BATCH = "capture_by_batch"


def by_batch(function: Decoder) -> Decoder:
    """Mark `function` as one that takes a whole batch, so that `module:attribute` does not wrap it."""
    setattr(function, BY_BATCH, True)
    return function


def per_message(function: Callable[[Message], Any]) -> Decoder:
    """Return a decoder that calls `function` with each message; its exception is that message's error."""

    def decode(batch: Batch) -> Records:
        values: list[Any] = []
        errors: dict[int, str] = {}
        for index, message in enumerate(batch):
            try:
                values.append(function(message))
            except Exception as error:
                errors[index] = reason(error)
                values.append(None)
        return Records.of(batch, values, errors)

    return by_batch(decode)


def reason(error: Exception) -> str:
    """Return the text that is stored beside an undecodable message."""
    return f"{type(error).__name__}: {error}"
