from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from capture.ingest.block import SealedBlock

Commit = Callable[[SealedBlock], Coroutine[Any, Any, object]]


class UnderWay:
    """The blocks that are being stored: how many messages they hold, and for how long."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[SealedBlock, float] = {}

    def __repr__(self) -> str:
        return f"UnderWay({len(self._begun)} blocks, {self.messages} messages)"

    @property
    def messages(self) -> int:
        """The messages in these blocks."""
        return sum(block.count for block in self._begun)

    @property
    def longest(self) -> float | None:
        """The seconds that the first of these blocks has been under way; None if there is none."""
        return self._clock() - min(self._begun.values()) if self._begun else None

    def watched(self, commit: Commit) -> Commit:
        """Return the commit; from now on it is known which blocks it is at."""

        async def committed(block: SealedBlock) -> object:
            self._begun[block] = self._clock()
            try:
                return await commit(block)
            finally:
                del self._begun[block]

        return committed
