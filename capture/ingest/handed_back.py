"""The messages that a node has handed back because it could not store them, and why."""

from __future__ import annotations

import time
from collections.abc import Callable

from capture.archive.sequences import Sequences
from capture.errors import StoreError
from capture.ingest.block import SealedBlock
from capture.ingest.pipeline import Commit


class HandedBack:
    """The handed-back messages of a stream that are still not stored, as far as the node knows.

    `trouble` says why the last block was not stored, for at most `lasts` seconds: afterwards other nodes may have
    stored its messages. It is "" once a block is stored.
    """

    def __init__(self, lasts: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lasts, self._clock = lasts, clock
        self._messages = Sequences()
        self._failed_at, self._failure = 0.0, ""

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"HandedBack({self._messages.describe()})"

    @property
    def trouble(self) -> str:
        """Why blocks are not stored at the moment; "" if they are."""
        return self._failure if self._clock() - self._failed_at < self._lasts else ""

    def watch(self, commit: Commit) -> Commit:
        """Return a commit that notes how each block ends. A block of which a commit runs is not handed back."""

        async def commit_and_note(block: SealedBlock) -> None:
            if self._messages:
                self._messages -= Sequences.from_iterable(block.records.sequences)
            try:
                await commit(block)
            except StoreError as error:
                self._messages |= Sequences.from_iterable(block.records.sequences)
                self._failed_at, self._failure = self._clock(), str(error)
                raise
            self._failure = ""

        return commit_and_note

    def forget(self, acked: int) -> None:
        """Forget the messages up to this sequence: they are acknowledged, so another node has stored them."""
        if self._messages:
            self._messages -= self._messages.within(0, acked)
