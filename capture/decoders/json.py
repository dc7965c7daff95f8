from __future__ import annotations

from typing import Any

import msgspec

from capture.decoders.contract import reason
from capture.record import Records
from natty.message import Batch

_parse = msgspec.json.Decoder().decode


def decode(batch: Batch) -> Records:
    """Parse every payload as JSON; one that is none is undecodable."""
    values: list[Any] = []
    errors: dict[int, str] = {}
    payloads = iter(batch.payloads)
    while len(values) < len(batch):
        try:
            values.extend(map(_parse, payloads))  # keeps what came before the one that raised
        except (ValueError, RecursionError) as error:  # msgspec's errors, and text that is not UTF-8, are ValueErrors
            errors[len(values)] = reason(error)
            values.append(None)
    return Records.of(batch, values, errors)
