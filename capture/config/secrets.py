"""Which settings are secret: no output shows them, and only the owner may read the file that holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from capture.config.provenance import Given, Place, Setting
from capture.errors import ConfigError
from capture.spark.options import PLACE, SECRET
from natty.config.secret_files import exposure

HIDDEN = "***"

_PASSWORD = re.compile("//[^/@]*@")  # in a URL: a user with a password, or a token


def list_fields(struct: msgspec.Struct, instead: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the names and values of a struct's fields for `repr`; `instead` replaces some values."""
    return [(name, instead.get(name, getattr(struct, name))) for name in struct.__struct_fields__]


def describe_fields(struct: msgspec.Struct, instead: Mapping[str, Any]) -> str:
    """Return the names and values of `list_fields` as one text."""
    return ", ".join(f"{name}={value!r}" for name, value in list_fields(struct, instead))


def check_exposure(path: Path | None, given: Given) -> None:
    """Raise ConfigError if the file holds secrets and others may read it."""
    secrets = [".".join(place) for place in given.settings if _is_secret(place, given.settings[place])]
    if path and secrets and (exposed := exposure(path)):
        raise ConfigError(f"{path} holds secrets ({', '.join(sorted(secrets))}), and {exposed}")


def _is_secret(place: Place, setting: Setting) -> bool:
    """Return whether this is a secret in the file: a password or token of NATS, or a secret property of Spark."""
    if setting.origin.kind != "file":
        return False
    match place:
        case ("nats", "password" | "token"):
            return True
        case ("nats", "servers"):
            return any(_PASSWORD.search(str(url)) for url in (setting.value, *_as_list(setting.value)))
        case ("spark", "properties", *names):
            name = ".".join(names)
            return bool(SECRET.search(name)) and not PLACE.search(name)
    return False


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
