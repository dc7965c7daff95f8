"""The partitioner `decoder`: by the key that the decoder returns."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from capture.ingest.keys import NONE
from capture.ingest.record import Records


@dataclass(frozen=True, slots=True)
class ByDecoder:
    """The key is the one that the decoder returned with the value; "_none" if it returned none."""

    def __call__(self, records: Records[Any]) -> Sequence[Hashable]:
        """Return the decoder's keys."""
        return [NONE] * len(records) if records.keys is None else records.keys
