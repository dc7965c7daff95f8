"""Chooses a decoder by its name, or a user's own."""

from __future__ import annotations

from typing import Any

from capture.decoders import json, message
from capture.decoders.contract import Decoding, decoding_of
from capture.decoders.json import json_as
from capture.ingest.record import Records
from capture.stores.plugin import load_function

DECODERS: dict[str, Decoding[Any]] = {"raw": Decoding(Records.of), "json": json.decode, "message": message.decode}


def decoder(spec: str) -> Decoding[Any]:
    """Return the decoder "raw", "json", "message", or your own as "module:attribute"; ConfigError if there is none.

    Your own is a type (a msgspec Struct, a dataclass or a TypedDict: payloads are JSON of it), or a function that takes
    a message and returns its value, or raises an exception if it can't. With `@by_batch` it takes a whole batch and
    returns `Records`.
    """
    if spec in DECODERS:
        return DECODERS[spec]
    found = load_function(spec, "decoder", DECODERS)
    return json_as(found) if isinstance(found, type) else decoding_of(found)
