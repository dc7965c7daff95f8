"""Doubles in memory for tests: the head pointer, and the engine that merges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.archive.chain import Head
from capture.archive.encryption import Keys
from capture.archive.signing import Signer
from capture.errors import CaptureError, FencedError
from capture.maintenance.engine import FileGroup, Merged
from capture.stores import Store, open_store


@dataclass
class HeadState:
    """The state that several MemoryHeads share, as several nodes share one key-value entry."""

    head: Head | None = None
    highest_token: int = 0

    async def read(self) -> Head | None:
        """Return the committed head, or None, as a reader sees it."""
        return self.head


class MemoryHead:
    """The head pointer in memory, with the fencing of the real one: one instance is one leader's term.

    As in NATS, a term takes over with its first read or commit: from then on earlier terms are refused.
    """

    def __init__(self, token: int = 1, state: HeadState | None = None, signer: Signer | None = None) -> None:
        self.token = token
        self.signer = signer
        self.state = HeadState() if state is None else state

    def check(self) -> None:
        """Raise FencedError if a later term has begun: in memory every term sees it."""
        if self.token < self.state.highest_token:
            raise FencedError(
                f"term {self.token} is over, term {self.state.highest_token} has begun; nothing was committed"
            )
        self.state.highest_token = self.token

    async def read(self) -> Head | None:
        """Return the committed head, or None, and take it over. Raises FencedError if a later term has begun."""
        self.check()
        return self.state.head

    async def commit(self, head: Head) -> None:
        """Commit the head. Raises FencedError if a later term has begun."""
        self.check()
        self.state.head = head

    def __repr__(self) -> str:
        return f"MemoryHead(token={self.token}, head={self.state.head and self.state.head.number})"


class ArrowEngine:
    """Merges groups with pyarrow in this process: the in-memory double of the Spark driver, with the same contract.

    Use it in tests, and to check Spark's results. `keys` open encrypted inputs.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        self._keys = keys

    async def merge(self, store_url: str, groups: Sequence[FileGroup]) -> list[Merged]:
        """Write the outputs of every file group: each sequence once, without the excluded ones, in order."""
        from capture.maintenance.merge.inputs import columns_of
        from capture.maintenance.merge.schema_evolution import write_columns

        store, objects = open_store(store_url), [one for group in groups for one in group.inputs]
        columns = await columns_of(store, objects, self._keys, groups[0].columns if groups else "")
        merged = [await self._merge(store, group, columns) for group in groups]
        return [msgspec.structs.replace(one, columns=write_columns(columns.run)) for one in merged]

    async def _merge(self, store: Store, group: FileGroup, columns: Any) -> Merged:
        from capture.maintenance.merge.merge_group import merge_group

        if why := columns.why_not(group):
            return Merged(failed=why)
        try:
            return await merge_group(store, group, columns.of(group.inputs), self._keys, stored_ns=time.time_ns())
        except CaptureError as error:
            return Merged(failed=str(error))
