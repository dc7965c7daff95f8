"""Keys as text: `NAME:BASE64` of 32 bytes, one for each line, in a file or in an environment variable."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from capture.errors import ConfigError
from natty.config.secret_files import exposure

KEY_BYTES = 32
HOW_TO_MAKE = "capture keys new NAME"


def parse_keys(text: str, where: str) -> dict[str, bytes]:
    """Return the keys of a text by name, one for each line or word; "#" starts a comment.

    ConfigError names `where` the text is from, and never quotes it.
    """
    keys: dict[str, bytes] = {}
    words = (word for line in text.splitlines() for word in line.partition("#")[0].split())
    for number, word in enumerate(words, 1):
        name, colon, encoded = word.partition(":")
        if not (name and colon) or name in keys:
            raise ConfigError(f"{where}: key {number} must be NAME:BASE64, each name once")
        try:
            keys[name] = b64decode(encoded, validate=True)
        except ValueError:
            raise ConfigError(f"{where}: the key {name!r} is not base64") from None
    try:
        check_keys(keys)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return keys


def check_keys(keys: Mapping[str, bytes]) -> None:
    """Raise ConfigError unless there is a key, and every key has 32 bytes."""
    if not keys:
        raise ConfigError("there is no key: give lines of NAME:BASE64")
    for name, key in keys.items():
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the key {name!r} has {len(key)} bytes, not {KEY_BYTES}: {HOW_TO_MAKE}")


def check_private(path: str | Path, kind: str) -> None:
    """Raise ConfigError if others may read this secret file: see `natty.config.secret_files`. OSError."""
    if exposed := exposure(path):
        raise ConfigError(f"{kind} {path} holds secrets, and {exposed}")


def load_keys(key_file: str, variable: str, environment: Mapping[str, str]) -> dict[str, bytes] | None:
    """Return the keys of the file, or of the variable; None if neither is given. ConfigError."""
    if not key_file:
        text = environment.get(variable)
        return parse_keys(text, variable) if text else None
    return parse_keys(read_key_file(key_file, secret=True), key_file)


def read_key_file(key_file: str, *, secret: bool = False) -> str:
    """Return the file's text. ConfigError if it can't be read, or if it is `secret` and others may read it."""
    try:
        if secret:
            check_private(key_file, "the key file")
        return Path(key_file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the key file {key_file} can't be read: {why}") from error
