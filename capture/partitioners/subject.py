"""The partitioner `subject`: by a token of the subject."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from capture.errors import ConfigError
from capture.ingest.keys import Reserved
from capture.ingest.record import Records

MOST_KNOWN = 50_000
"""Number of subjects whose token is cached; with more, the cache is cleared."""


@dataclass(frozen=True, slots=True)
class SubjectToken:
    """The key is one token of the subject, counted from 0."""

    index: int
    _known: dict[bytes, Hashable] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.index < 0:
            raise ConfigError(f"a subject's tokens are counted from 0, not from {self.index}")

    def __call__(self, records: Records[Any]) -> list[Hashable]:
        """Return the token of each record."""
        try:
            return list(map(self._known.__getitem__, records.subjects))
        except KeyError:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known.update({subject: self._token(subject) for subject in set(records.subjects)})
            return list(map(self._known.__getitem__, records.subjects))

    def _token(self, subject: bytes) -> Hashable:
        tokens = subject.split(b".", self.index + 1)
        return tokens[self.index].decode("utf-8", "replace") if self.index < len(tokens) else Reserved.SHORT
