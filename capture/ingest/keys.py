"""Keys as text. Entries and manifests contain the text itself, paths contain it quoted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Mapping
from enum import Enum
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from capture.archive.manifest import FIELDS, quote_key

LONGEST_KEY = 200  # bytes of UTF-8: every entry and manifest repeats it
RESERVED = {"stream", "key", "date", "hour", "minute", "second"}
"""Names that paths already use. A field of a key with such a name gets a trailing "_"."""


class Reserved(Enum):
    """Keys that only capture assigns, with their texts. No user's key equals one, even if its text is the same."""

    NONE = "_none"  # of a record without a key
    SHORT = "_short"  # of a subject that ends before the token
    UNDECODABLE = "_undecodable"  # of every record that could not be decoded


NONE = Reserved.NONE
UNDECODABLE = Reserved.UNDECODABLE.value
"""The text of the key of every record that could not be decoded, with any partitioner. No other record has it."""

_LIKE_RESERVED = re.compile(rf"_*({'|'.join(one.value for one in Reserved)})")


@lru_cache(maxsize=4096, typed=True)
def key_text(key: Hashable) -> str:
    """Return the key as text that can be written anywhere: never empty, UTF-8; if too long, cut and ended by a hash.

    None and "" become "_none"; true and false are written as in JSON. A text like that of a reserved key gets another
    leading "_", so that the two differ. A dataclass, Struct or named tuple becomes "/a=…/b=…", each part quoted as in a
    path; a text that begins with "/" gets another leading "/", so that the two differ.
    """
    named = _fields(key)
    if named:
        return "".join(f"{FIELDS}{_name(name)}={quote_key(_text(value))}" for name, value in named.items())
    text = _cut(_text(key))
    return FIELDS + text if text.startswith(FIELDS) else text


def quote_name(name: str) -> str:
    """Return a name as a part of the key of a bucket."""
    return re.sub(r"[^-_a-zA-Z0-9]", lambda found: "".join(f"={byte:02X}" for byte in found[0].encode()), name)


def _fields(key: Any) -> Mapping[str, Any]:
    if dataclasses.is_dataclass(key) and not isinstance(key, type):
        return {field.name: getattr(key, field.name) for field in dataclasses.fields(key)}
    if isinstance(key, msgspec.Struct):
        return msgspec.structs.asdict(key)
    return key._asdict() if isinstance(key, tuple) and hasattr(key, "_asdict") else {}


def _name(field: str) -> str:
    return quote_key(f"{field}_" if field.lower() in RESERVED else field)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Reserved):
        return str(value.value)
    text = "" if value is None else str(value)
    if not text:
        return str(Reserved.NONE.value)
    return f"_{text}" if _LIKE_RESERVED.fullmatch(text) else text


def _cut(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= LONGEST_KEY:
        return data.decode()
    return f"{data[:LONGEST_KEY].decode('utf-8', 'ignore')}~{sha256(data).hexdigest()[:16]}"
