from __future__ import annotations

from typing import Any

import msgspec

from capture.decoders.contract import Decoding, by_batch, reason
from capture.errors import ConfigError
from capture.ingest.record import Decoder, Records, V
from natty.wire.message import Batch


def json_as(kind: type[V]) -> Decoding[V]:
    """Return the decoder of JSON payloads into values of this type; what does not fit it is undecodable.

    ConfigError if it is no type that msgspec can decode.
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
                values.extend(map(parse, payloads))  # keeps what came before the one that raised
            except Exception as error:  # a type's own `__post_init__` may raise anything
                errors[len(values)] = reason(error)
                values.append(None)
        return Records.of(batch, values, errors)

    return by_batch(decode)


decode: Decoding[Any] = Decoding(_decoder(msgspec.json.Decoder()), is_json=True)
"""Parse every payload as JSON; one that is none is undecodable."""
