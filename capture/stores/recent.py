"""What was read or written lately, kept in memory within a limit: it is often needed again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

MOST_BYTES = 32 << 20
"""Bytes in memory: index pages of a large archive, or Iceberg's small files of many streams."""


class Recent(Generic[Key]):
    """Bytes by a key, `most_bytes` of them; those that were not used for longest are dropped.

    Bytes that are larger than the limit on their own are not kept.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._kept: OrderedDict[Key, bytes] = OrderedDict()  # in order of their last use
        self._bytes, self._most_bytes = 0, most_bytes

    def __repr__(self) -> str:
        return f"Recent({len(self._kept)} objects, {self._bytes} of {self._most_bytes} bytes)"

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def get(self, key: Key) -> bytes | None:
        """Return these bytes, which counts as use; None if they are not kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def add(self, key: Key, data: bytes) -> None:
        """Keep these bytes as the last used ones, unless they are larger than the limit."""
        self._bytes -= len(self._kept.pop(key, b""))
        if len(data) > self._most_bytes:
            return
        self._bytes += len(data)
        self._kept[key] = data
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._kept.popitem(last=False)[1])
