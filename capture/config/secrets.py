"""Which settings are secret: no output shows them, and only the owner may read the file that holds them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

from capture.config.provenance import Given, Place, Setting
from capture.errors import ConfigError
from capture.spark.options import PLACE, SECRET
from capture.stores.own_store import HIDDEN, read_query, shown
from natty.config.secret_files import exposure

_OF_STORE = re.compile("secret|passw|passphrase|pwd|token|credential|(api|access|account|private).?key", re.IGNORECASE)
_PASSWORD = re.compile("//[^/@:]*(?::(?:(?!//).)*)?@")
"""In a URL: a user with a password, or a token. SQLAlchemy accepts a password in which / is not escaped."""


class Redacted:
    """A struct whose `repr` hides what may be secret: the values of the table HIDES, and those in a store's URL."""

    __slots__ = ()
    __struct_fields__: ClassVar[tuple[str, ...]]
    HIDES: ClassVar[str]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        said = {name: getattr(self, name) for name in self.__struct_fields__}
        said = {name: _hide_password(shown(value)) if isinstance(value, str) else value for name, value in said.items()}
        return list((said | {self.HIDES: dict.fromkeys(said[self.HIDES], HIDDEN)}).items())


def check_exposure(path: Path | None, given: Given) -> None:
    """Raise ConfigError if the file holds secrets and others may read it."""
    secrets = [".".join(place) for place in given.settings if _is_secret(place, given.settings[place])]
    if path and secrets and (exposed := exposure(path)):
        raise ConfigError(f"{path} holds secrets ({', '.join(sorted(secrets))}), and {exposed}")


def _is_secret(place: Place, setting: Setting) -> bool:
    """Return whether this is a secret in the file: of NATS, a property of Spark, or a setting of a user's store."""
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
        case ("table", "catalog", "properties", *names):
            return bool(SECRET.search(".".join(names)))
        case ("table", "catalog", "uri"):
            return bool(_PASSWORD.search(str(setting.value)))
        case ("store",) | ("store", "url"):
            return any(_is_secret_of_store(*one) for one in _query_of(str(setting.value)).items())
        case ("store", name):
            return _is_secret_of_store(name, str(setting.value))
    return False


def _hide_password(text: str) -> str:
    return _PASSWORD.sub(f"//{HIDDEN}@", text)


def _is_secret_of_store(name: str, value: str) -> bool:
    has_name = _OF_STORE.search(name) and not PLACE.search(name)
    return bool(has_name or _PASSWORD.search(value))


def _query_of(url: str) -> dict[str, str]:
    try:
        return read_query(url.partition("?")[2])
    except ConfigError:  # `open_store` refuses it
        return {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
