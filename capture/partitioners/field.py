from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capture.errors import ConfigError
from capture.partitioners.contract import NONE, key_text
from capture.record import Records


@dataclass(frozen=True, slots=True)
class Field:
    """The key is a field of the decoded value, a JSON object; "_none" where the field is missing, null or nested."""

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("field: needs the name of a field, as in field:origin")

    def __call__(self, records: Records) -> list[str]:
        """Return the field of each record."""
        return [self._key(value) for value in records.values]

    def _key(self, value: Any) -> str:
        found = value.get(self.name) if isinstance(value, dict) else None
        return NONE if isinstance(found, dict | list) else key_text(found)
