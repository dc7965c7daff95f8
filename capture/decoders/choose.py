from __future__ import annotations

from capture.decoders import json, raw
from capture.decoders.contract import BY_BATCH, Decoder, per_message
from capture.decoders.load import load

DECODERS: dict[str, Decoder] = {"raw": raw.decode, "json": json.decode}


def decoder(spec: str) -> Decoder:
    """Return the decoder "raw", "json", or your own as "module:attribute"; ConfigError if there is none.

    Your own takes a message and returns its value, and says with an exception that it can't. One marked with
    `@by_batch` takes a whole batch and returns `Records`.
    """
    if spec in DECODERS:
        return DECODERS[spec]
    found = load(spec, "decoder", DECODERS)
    return found if hasattr(found, BY_BATCH) else per_message(found)
