"""The partitioner `time`: one key for all records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from capture.ingest.record import Records

ALL = "all"


@dataclass(frozen=True, slots=True)
class ByTime:
    """One key for all records: only the interval of their time separates them."""

    def __call__(self, records: Records[Any]) -> list[str]:
        """Return "all" for each record."""
        return [ALL] * len(records)
