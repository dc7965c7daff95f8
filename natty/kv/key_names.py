"""The names of buckets and keys that are allowed (ADR-8), and filters of keys."""

from __future__ import annotations

import re

from natty.config.options import check_value
from natty.errors import NattyError

_BUCKET = re.compile(r"[A-Za-z0-9_-]+")
_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
_NAMED = re.compile(r"[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*")
_WILDCARDS = re.compile(r"(\*|[-/_=a-zA-Z0-9]+)(\.(\*|[-/_=a-zA-Z0-9]+))*(\.>)?|>")


class BadKeyError(NattyError):
    """A bucket's or key's name holds a character that is not allowed."""


def check_bucket(name: str) -> str:
    """Return the name if a bucket can have it (ADR-8); BadKeyError with the first character that is not allowed."""
    return _check("bucket", name, _BUCKET)


def check_key(name: str) -> str:
    """Return the name if a key can have it (ADR-8); BadKeyError with the first character that is not allowed."""
    return _check("key", name, _KEY)


def read_key(name: bytes) -> str | None:
    """Return the key in the bytes of a subject; None if it is not a key (ADR-8), so that no client can read it."""
    key = name.decode("latin-1")
    return key if is_key(key) else None


def is_key(name: str) -> bool:
    """Return whether a key can have the name (ADR-8)."""
    return _NAMED.fullmatch(name) is not None


def check_filter(text: str) -> str:
    """Return the text if it is a key, perhaps with the wildcards `*` (a token) and `>` (the rest); BadKeyError."""
    check_value("the filter of keys", text, str)
    if not _WILDCARDS.fullmatch(text):
        raise BadKeyError(
            f"{text!r} is not a filter of keys: write a key; `*` matches one token in it, and a last `>` the rest"
        )
    return text


def _check(kind: str, name: str, pattern: re.Pattern[str]) -> str:
    check_value(f"the {kind}'s name", name, str)
    if not name:
        raise BadKeyError(f"the {kind}'s name is empty")
    match = pattern.match(name)
    bad = re.search(r"^\.|\.$|(?<=\.)\.", name)  # an empty token
    places = [match.end() if match else 0, bad.start() if bad else len(name)]
    if (place := min(places)) < len(name):
        raise BadKeyError(f"{kind} {name!r}: {name[place]!r} at character {place + 1} is not allowed there")
    return name
