"""Decoders: they turn messages into values."""

from capture.decoders.choose import decoder
from capture.decoders.contract import Decoding, Flatten, by_batch, keyed, per_message, typed, values_of
from capture.decoders.json import json_as
from capture.ingest.record import Decoder

__all__ = [
    "Decoder",
    "Decoding",
    "Flatten",
    "by_batch",
    "decoder",
    "json_as",
    "keyed",
    "per_message",
    "typed",
    "values_of",
]
