"""How a run's files get into the store: several at once, so that many small ones do not wait for each other."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from datetime import date, datetime

from capture.pipelines.derivation import Cell
from capture.stores import Store
from capture.stores.contract import REQUESTS_AT_ONCE
from natty.blocking.loop import Loop

MOST_BYTES = 256 << 20
"""Bytes that wait to be stored, in one task; a larger file waits alone."""


class Uploads:
    """Stores files in the background, in a task of Spark; `finish` says that all are durable."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop: Loop | None = None
        self._waiting: deque[tuple[Future[None], int]] = deque()

    def __repr__(self) -> str:
        return f"Uploads({len(self._waiting)} waiting)"

    def put(self, path: str, data: bytes) -> None:
        """Begin to store a file; wait for others first if too many are being stored. StoreError of any of them."""
        while self._waiting and (len(self._waiting) >= REQUESTS_AT_ONCE or self._bytes + len(data) > MOST_BYTES):
            self._wait_for_one()
        self._loop = self._loop or Loop()
        self._waiting.append((self._loop.submit(self._store.put(path, data)), len(data)))

    def finish(self) -> None:
        """Return when all files are durable. StoreError if one is not."""
        while self._waiting:
            self._wait_for_one()

    def close(self) -> None:
        """Cancel what still runs."""
        if self._loop:
            self._loop.end()

    @property
    def _bytes(self) -> int:
        return sum(size for _, size in self._waiting)

    def _wait_for_one(self) -> None:
        done, _ = self._waiting.popleft()
        done.result()


def cell(value: object) -> Cell:
    """Return a value of a partition's column as a record has it."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
