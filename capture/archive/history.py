"""The last recording of each hour: found by the pointers of later ones, or read backwards, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Self

from capture.archive.chain import decode, document_parts
from capture.archive.recording import HISTORY, Earlier, Recording, history_path
from capture.errors import ManifestError, NotStoredError
from capture.stores.contract import Listing, ObjectInfo, Store, read_ahead
from natty.wire.background import cancel_all

DAYS_AT_ONCE = 4
"""Days of history that are listed together: 96 hours are more than are read ahead."""

Around = tuple[Recording | None, Recording | None]

_HOUR = len(f"{HISTORY}2026-11-21/03-")


class Prefetch:
    """The objects of a store by path. While one is read, those after it in `objects` are prefetched.

    A context manager: its exit cancels all reads in flight.
    """

    def __init__(self, store: Store, objects: Iterable[ObjectInfo] = ()) -> None:
        self._store = store
        self._ahead, self._listed = read_ahead(store, objects), {one.path for one in objects}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ahead.__aexit__()

    def __contains__(self, path: str) -> bool:
        return path in self._listed

    async def get(self, path: str) -> bytes:
        """Return the whole object. NotStoredError if it does not exist."""
        if path in self._listed:
            self._listed.discard(path)
            await self._ahead.skip_to(lambda one: one.path == path)
            if await self._ahead.first():
                return await self._ahead.take()
        return await self._store.get(path)


class PastHours(Prefetch):
    """The history, read backwards from any hour, at least to the hour `until` (the beginning of a path).

    It lists a few days at a time, so its memory does not grow with the history.
    """

    def __init__(self, store: Store, until: str = HISTORY) -> None:
        super().__init__(store)
        self._until = until

    async def get(self, path: str) -> bytes:
        """As above. The hours before this one are prefetched, over a gap of a few days too."""
        await self._ahead.first()
        if path not in self and (day := _day_of(path)):
            await self._ahead.__aexit__()
            self._ahead, self._listed = read_ahead(self._store, self._list_from(day)), set()
            await self._ahead.first()
        return await super().get(path)

    async def _list_from(self, day: datetime) -> AsyncGenerator[ObjectInfo, None]:
        """Yield the recordings of this day and of those before it, up to DAYS_AT_ONCE days without one."""
        listing = asyncio.create_task(self._list_days(day))
        try:
            while found := await listing:
                day -= timedelta(DAYS_AT_ONCE)
                listing = asyncio.create_task(self._list_days(day))
                self._listed.update(one.path for one in found)
                for one in found:
                    yield one
        finally:
            await cancel_all([listing])

    async def _list_days(self, last: datetime) -> Listing:
        if f"{HISTORY}{last:%Y-%m-%d}/~" <= self._until:
            return []
        days = [last - timedelta(number) for number in range(DAYS_AT_ONCE)]
        listed = await asyncio.gather(*(self._store.list(f"{HISTORY}{day:%Y-%m-%d}/") for day in days))
        return [one for found in listed for one in reversed(found) if one.path >= self._until]


def _day_of(path: str) -> datetime | None:
    try:
        return datetime.strptime(path.removeprefix(HISTORY)[:10], "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return None


async def recording_at(store: Store, newest: Recording, at: float) -> Recording | None:
    """Return the recording that was valid at a time (Unix seconds); None if nothing was recorded by then.

    It goes from the newest recording to the last one of the wanted hour by a few pointers, however long the history
    is, and back from there. Hours that were recorded without pointers are read one after the other. Each document is
    named by the one before it with its SHA-256: ManifestError if one was changed, NotStoredError if one is missing.
    """
    return (await recordings_around(store, newest, at))[0]


async def recordings_around(store: Store, newest: Recording, at: float) -> Around:
    """Return the recording that was valid at a time, and the earliest one after it that is kept; None for no such one.

    The latter is found only if there is no valid one: then both show what is missing. Raises as `recording_at`.
    """
    if newest.created <= at:
        return newest, None
    hour = f"{HISTORY}{datetime.fromtimestamp(max(0.0, at), UTC):%Y-%m-%d/%H}-"
    document = newest
    async with PastHours(store, hour) as hours:
        while document.created > at and (following := _nearest(document, hour)):
            document = await _read(hours if not document.skips else store, following)
    if document.created <= at:
        return document, None
    return await _search_hour(store, document, at, hour)


def _nearest(document: Recording, hour: str) -> Earlier | None:
    """Return the earliest hour that a document names and that is not before this one; None if there is none.

    Of two copies of one hour, which a clock that was set back leaves, the later one.
    """
    later = [one for one in document.list_hours() if one.path >= hour]
    return min(sorted(later, key=lambda one: one.path, reverse=True), key=lambda one: one.path[:_HOUR], default=None)


async def _search_hour(store: Store, last: Recording, at: float, hour: str) -> Around:
    """Return the recordings around a time, given the last one of its hour, or the first one after its hour.

    Within the hour it reads the recordings that clean-up has left.
    """
    if last.earlier and not history_path(last).startswith(hour):
        return await _read(store, last.earlier), None
    document: Recording | None = last
    async with Prefetch(store, await _list_recorded(store, last)) as ahead:
        while document is not None and document.created > at:
            last, document = document, await _read_previous(ahead, document)
    return document, last if document is None else None


async def _list_recorded(store: Store, last: Recording) -> list[ObjectInfo]:
    """Return the recordings in the store that are older than this one, the latest first."""
    return [
        one
        for one in reversed(await store.list(Recording.FOLDER))
        if (parts := document_parts(Recording, one.path)) and parts[0] < last.number
    ]


async def _read_previous(ahead: Prefetch, document: Recording) -> Recording | None:
    if document.parent in ahead:
        try:
            return await _read(ahead, Earlier(document.parent, document.parent_sha256))
        except NotStoredError:
            pass  # cleaned up meanwhile
    return await _read(ahead, document.earlier) if document.earlier else None


async def _read(store: Store | Prefetch, one: Earlier) -> Recording:
    """Return a document that is named with its SHA-256. ManifestError if it has another one."""
    data = await store.get(one.path)
    if sha256(data).hexdigest() != one.sha256:
        raise ManifestError(f"{one.path} was changed: its SHA-256 is not the one that was recorded")
    return decode(data, one.path, Recording)
