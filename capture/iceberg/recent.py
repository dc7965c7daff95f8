"""Iceberg's own files that a leader has read or written, kept in memory: its next commit reads them again."""

from __future__ import annotations

from hashlib import sha256

from capture.errors import ManifestError
from capture.stores.contract import Store

MOST_BYTES = 32 * 1024 * 1024
"""Bytes in memory: the metadata, lists and small manifests of many streams."""


class RecentObjects:
    """Objects by their path and SHA-256; those that were not used for longest are dropped."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._objects: dict[tuple[str, str], bytes] = {}

    def __repr__(self) -> str:
        return f"RecentObjects({len(self._objects)} objects, {self._bytes} of {self._most_bytes} bytes)"

    async def read(self, store: Store, path: str, digest: str | None) -> bytes:
        """Return an object. Raises NotStoredError; ManifestError if its SHA-256 is not the recorded `digest`."""
        digest = digest or ""
        data = self._objects.pop((path, digest), None)
        if data is None:
            data = await store.get(path)
            if sha256(data).hexdigest() != digest:
                raise ManifestError(f"{path} was changed: its SHA-256 is not the one that the table names")
        else:
            self._bytes -= len(data)
        self.add(path, digest, data)
        return data

    def add(self, path: str, digest: str, data: bytes) -> None:
        """Keep an object that was stored."""
        self._objects[path, digest] = data
        self._bytes += len(data)
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._objects.pop(next(iter(self._objects))))
