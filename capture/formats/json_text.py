"""Decoded values as JSON. What JSON can't express is an error, so that no message spoils the others' lines.

A value may contain `msgspec.Raw`, JSON that a decoder made itself, anywhere. msgspec writes it as it is, valid or not.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec

DEEPEST = 200
"""Levels of a value: readers of JSON, ours among them, refuse a whole file for a line that is nested too deeply."""

_encode = msgspec.json.Encoder().encode
_parse = msgspec.json.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_find_infinite = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]").search  # as a double in MessagePack


def to_plain(value: Any) -> Any:
    """Return the value as dicts, lists, texts, numbers, booleans and None; bytes and times as in JSON.

    Raises msgspec's errors, and those of invalid JSON in a `Raw`.
    """
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_parse_raw)


def encode_json(value: Any) -> bytes:
    """Return the value as JSON on one line. Raises as `to_plain` does, and ValueError for what JSON can't express."""
    data = _check(_encode(value), to_plain(value))
    return msgspec.json.format(data, indent=-1) if b"\n" in data or b"\r" in data else data


def encode_plain(plain: Any) -> bytes:
    """Do the same for what `to_plain` has returned."""
    return _check(_encode(plain), plain)


def encode_parsed(value: Any) -> bytes:
    """Do the same for what msgspec has parsed without a type: it holds no `Raw` and no NaN."""
    data = _encode(value)
    return _check(data, value) if _may_be_deep(data) else data


def _parse_raw(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return _parse(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _may_be_deep(data: bytes) -> bool:
    return len(data) > 2 * DEEPEST and data.count(b"[") + data.count(b"{") > DEEPEST


def _may_be_infinite(plain: Any) -> bool:
    try:
        return _find_infinite(_pack(plain)) is not None
    except OverflowError:  # a long integer, which JSON has
        return True


def _check(data: bytes, plain: Any) -> bytes:
    """Return the JSON of a value. ValueError if a number is not finite, or for more levels than DEEPEST."""
    if _may_be_deep(data) or (b"null" in data and _may_be_infinite(plain)):  # msgspec writes NaN as null
        level, depth = [plain], 0
        while level := [one for one in level if _holds_values(one)]:
            depth += 1
            if depth > DEEPEST:
                raise ValueError(f"the value is nested in more than {DEEPEST} levels")
            level = [inside for one in level for inside in (one.values() if isinstance(one, dict) else one)]
    return data


def _holds_values(one: Any) -> bool:
    if isinstance(one, float) and not isfinite(one):
        raise ValueError(f"JSON has no {one}")
    return isinstance(one, dict | list | tuple)
