from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capture.errors import ConfigError
from capture.record import Records

SHORT = "_short"
"""The key of a subject that ends before the token."""


@dataclass(frozen=True, slots=True)
class SubjectToken:
    """The key is one token of the subject, counted from 0."""

    index: int

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ConfigError(f"a subject's tokens are counted from 0; {self.index} is none")

    def __call__(self, records: Records[Any]) -> list[str]:
        """Return the token of each record."""
        tokens = {subject: self._token(subject) for subject in set(records.subjects)}
        return list(map(tokens.__getitem__, records.subjects))

    def _token(self, subject: bytes) -> str:
        tokens = subject.split(b".", self.index + 1)
        return tokens[self.index].decode("utf-8", "replace") if self.index < len(tokens) else SHORT
