"""The last recording of each hour: reads many in parallel, checks them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Self

from capture.archive.chain import decode, document_parts
from capture.archive.recording import HISTORY, Recording
from capture.errors import ManifestError, NotStoredError
from capture.stores.contract import ObjectInfo, Store

AHEAD_OBJECTS = 32
AHEAD_BYTES = 16 << 20
"""The limit of documents that are read ahead; one larger document is read all the same."""


class Prefetch:
    """The objects of a store by path. While one is read, those after it in `objects` are prefetched.

    A context manager: its exit cancels all reads in flight.
    """

    def __init__(self, store: Store, objects: Sequence[ObjectInfo]) -> None:
        self.url = store.url
        self._store, self._objects = store, objects
        self._places = {one.path: place for place, one in enumerate(objects)}
        self._coming: dict[int, asyncio.Task[bytes]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop(list(self._coming))

    def __contains__(self, path: str) -> bool:
        return path in self._places

    async def get(self, path: str) -> bytes:
        """Return the whole object. NotStoredError if it does not exist."""
        place = self._places.get(path)
        if place is None:
            return await self._store.get(path)
        await self._drop([one for one in self._coming if one < place])
        size = 0
        for following in range(place, min(place + AHEAD_OBJECTS, len(self._objects))):
            size += self._objects[following].bytes
            if size > AHEAD_BYTES and following > place:
                break
            if following not in self._coming:
                self._coming[following] = asyncio.create_task(self._store.get(self._objects[following].path))
        await asyncio.wait([self._coming[place]])
        return self._coming.pop(place).result()

    async def _drop(self, places: list[int]) -> None:
        tasks = [self._coming.pop(place) for place in places]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def recording_at(store: Store, newest: Recording, at: float) -> Recording | None:
    """Return the recording that was valid at a time (Unix seconds); None if nothing was recorded by then.

    The latest recordings are linked one by one in their chain, earlier ones by the hour. Each is named by a later one
    with its SHA-256: ManifestError if one was changed.
    """
    if newest.created <= at:
        return newest
    document: Recording | None = newest
    async with Prefetch(store, await _list_upcoming(store, newest, at)) as ahead:
        while document is not None and document.created > at:
            document = await _read_previous(ahead, document)
    return document


async def _list_upcoming(store: Store, newest: Recording, at: float) -> list[ObjectInfo]:
    """Return the objects between the newest recording and the one that was valid at a time, by their names."""
    recorded = [
        one
        for one in await store.list(Recording.FOLDER)
        if (parts := document_parts(Recording, one.path)) and parts[0] < newest.number
    ]
    hour = f"{HISTORY}{datetime.fromtimestamp(max(0.0, at), UTC):%Y-%m-%d/%H}-"
    history = await store.list(HISTORY)
    earlier = [one for one in history if one.path < hour]
    return [*reversed(recorded), *reversed(history[len(earlier) :]), *earlier[-1:]]


async def _read_previous(ahead: Prefetch, document: Recording) -> Recording | None:
    if document.parent in ahead:
        try:
            data = await ahead.get(document.parent)
        except NotStoredError:
            pass  # cleaned up meanwhile
        else:
            return decode(_check(data, document.parent, document.parent_sha256), document.parent, Recording)
    if (earlier := document.earlier) is None:
        return None
    return decode(_check(await ahead.get(earlier.path), earlier.path, earlier.sha256), earlier.path, Recording)


def _check(data: bytes, path: str, digest: str) -> bytes:
    """Return the bytes. ManifestError if their SHA-256 is not the recorded one."""
    if sha256(data).hexdigest() != digest:
        raise ManifestError(f"{path} was changed: its SHA-256 is not the one that was recorded")
    return data
