"""The values of a block's messages. Open blocks keep payloads only, so a writer that needs values decodes once more."""

from __future__ import annotations

from typing import Any

from capture.decoders.contract import Decoding, guarded
from capture.ingest.record import Records
from natty.wire.message import Batch


def values_of(records: Records[Any], decoding: Decoding[Any]) -> list[Any]:
    """Return what the decoder makes of each message; None for the undecodable ones."""
    if len(records.errors) == len(records):
        return [None] * len(records)
    values = guarded(decoding)(Batch(records.raw())).values
    return (
        [None if index in records.errors else value for index, value in enumerate(values)] if records.errors else values
    )
