"""What a store holds: which archive, and which streams. A stream's name is not enough, since one that is deleted and
made again counts from 1 again; and two archives in one store would have two leaders over the same manifests.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from capture.errors import AlreadyStored, ConfigError, ManifestError
from capture.manifest import quote_key
from capture.stores import Store

ARCHIVE = "_archive.json"
STREAMS = "_streams/"


class Archive(msgspec.Struct, frozen=True):
    """The name of the archive in a store: its election is called after it."""

    archive: str
    format: int = 1


class Identity(msgspec.Struct, frozen=True):
    """A stream's name and when the server made it, as the server writes it."""

    stream: str
    created: str
    format: int = 1


Claim = TypeVar("Claim", Archive, Identity)


async def claim(store: Store, archive: str, stream: str, created: str) -> None:
    """Make sure that the store is this archive's, and the stream this very one; the first node writes both down.

    ConfigError if the store is another archive's, or the stream was made again: its sequences would be taken for those
    of the earlier one, and dropped.
    """
    owner = await _first(store, ARCHIVE, Archive(archive))
    if owner.archive != archive:
        raise ConfigError(
            f"the store {store.url} holds the archive {owner.archive!r}, not {archive!r}: choose another store,"
            f' or write archive = "{owner.archive}" to add this stream to it'
        )
    found = await _first(store, f"{STREAMS}{quote_key(stream)}.json", Identity(stream, created))
    if found.created != created:
        raise ConfigError(
            f"the archive in {store.url} is of a stream {stream} made at {found.created}, and this one was made at"
            f" {created}: its sequences begin anew. Capture it into another store"
        )


async def _first(store: Store, path: str, mine: Claim) -> Claim:
    """Write it down if nobody has; return what stands there."""
    try:
        await store.put(path, msgspec.json.encode(mine))
        return mine
    except AlreadyStored:
        data = await store.get(path)
    try:
        return msgspec.json.decode(data, type=type(mine))
    except msgspec.DecodeError as error:
        raise ManifestError(f"{path} in {store.url} is damaged: {error}") from error
