"""The decoder `json`: payloads as JSON, of any shape or of a type."""

from __future__ import annotations

from typing import Any

import msgspec

from capture.decoders.contract import Decoding, by_batch, reason
from capture.errors import ConfigError
from capture.ingest.record import Decoder, Records, V
from capture.stores.plugin import FAULTS
from natty.wire.message import Batch


def json_as(kind: type[V]) -> Decoding[V]:
    """Return the decoder of JSON payloads into values of this type; payloads that don't fit it are undecodable.

    ConfigError if msgspec can't decode this type.
    """
    try:
        return Decoding(_decoder(msgspec.json.Decoder(kind)), shape=kind, is_json=True)
    except TypeError as error:
        raise ConfigError(f"JSON can't be decoded into {kind.__name__}: {error}") from error


def _decoder(decoder: msgspec.json.Decoder[V]) -> Decoder[V]:
    parse = decoder.decode

    def decode(batch: Batch) -> Records[V]:
        values: list[Any] = []
        errors: dict[int, str] = {}
        payloads = iter(batch.payloads)
        while len(values) < len(batch):
            try:
                values.extend(map(parse, payloads))  # keeps the values before the failed one
            except FAULTS as error:  # a type's own `__post_init__` may raise any error
                errors[len(values)] = reason(error)
                values.append(None)
        return Records.of(batch, values, errors)

    return by_batch(decode)


decode: Decoding[Any] = Decoding(_decoder(msgspec.json.Decoder()), is_json=True)
"""Parse every payload as JSON; a payload that is not JSON is undecodable."""


def only_parses(decoding: Decoding[Any]) -> bool:
    """Return whether values are what msgspec makes of JSON without a type: dicts, lists, texts, finite numbers."""
    return decoding.decode is decode.decode
