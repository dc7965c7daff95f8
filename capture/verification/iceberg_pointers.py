"""The objects that point readers without a catalog to a version of a stream's Iceberg table."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import NamedTuple

from capture.archive.iceberg_state import Iceberg, folder, hint_path, version_of_copy, version_path
from capture.errors import NotStoredError
from capture.stores.contract import Store

LOOK = 0.25
"""Seconds between two reads."""


async def list_misleading(
    store: Store, stream: str, exposed: Iceberg, is_newest: Callable[[], Awaitable[bool]], until: float
) -> list[str]:
    """Return the paths of the objects that point readers to another version of a table than the committed one.

    A leader writes them after its commit. So while they point to an older version, they are read again, until this time
    of the monotonic clock. `is_newest` is called after each read: if this version was replaced, nothing is returned.
    """
    while (found := await _read(store, stream, exposed)).misleading and await is_newest():
        if not found.are_behind or time.monotonic() >= until:
            return found.misleading
        await asyncio.sleep(LOOK)
    return []


class _Pointers(NamedTuple):
    """The paths that point to another version; whether a leader that has just committed leaves them so."""

    misleading: list[str]
    are_behind: bool


async def _read(store: Store, stream: str, exposed: Iceberg) -> _Pointers:
    copy, hint = version_path(stream, exposed.number), hint_path(stream)
    listed = [one.path for one in await store.list(f"{folder(stream)}/metadata/v")]
    later = [one for one in listed if (version := version_of_copy(one)) is not None and version > exposed.number]
    copied, hinted = await _read_if_stored(store, copy), await _read_if_stored(store, hint)
    wrong = [copy] if copied is None or sha256(copied).hexdigest() != exposed.sha256 else []
    number = str(exposed.number).encode()
    wrong += [hint] if hinted != number else []
    is_older = hinted is None or (hinted.isdigit() and (len(hinted), hinted) < (len(number), number))
    return _Pointers(sorted({*wrong, *later}), is_older and not later)


async def _read_if_stored(store: Store, path: str) -> bytes | None:
    try:
        return await store.get(path)
    except NotStoredError:
        return None
