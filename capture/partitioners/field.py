"""The partitioner `field`: by a field of the decoded value."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from capture.errors import ConfigError
from capture.ingest.keys import NONE, key_text
from capture.ingest.record import Records


@dataclass(frozen=True, slots=True)
class Field:
    """The key is a field of the decoded value, which is a JSON object or a typed one.

    It is "_none" if the field is missing, null or not a plain value.
    """

    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("field: needs the name of a field, as in field:origin")

    def __call__(self, records: Records[Any]) -> list[Hashable]:
        """Return the field of each record."""
        return [self._key(value) for value in records.values]

    def _key(self, value: Any) -> Hashable:
        found = value.get(self.name) if isinstance(value, dict) else getattr(value, self.name, None)
        return key_text(found) if isinstance(found, int | float) else found if isinstance(found, str) else NONE
