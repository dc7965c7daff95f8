"""Which archive and which streams a store holds. A stream's name is not enough: a stream that is deleted and created
again starts at sequence 1 again; and two archives in one store would have two leaders for the same manifests.

The module also writes the archive's description, and the public keys of its signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from capture.archive.manifest import ARCHIVE, ENTRIES, Manifest, quote_key
from capture.archive.readme import describe
from capture.archive.signing import SIGNING_VARIABLE, Signer
from capture.errors import AlreadyStoredError, ConfigError, ManifestError, NoArchiveError, NotStoredError
from capture.stores import Store
from natty.errors import UNREADABLE

SIGNING = "_signing.json"
STREAMS = "_streams/"


class Archive(msgspec.Struct, frozen=True):
    """The name of the archive in a store: its elections are named after it."""

    archive: str
    format: int = 1


class Identity(msgspec.Struct, frozen=True):
    """A stream's name and its creation time, in the server's format."""

    stream: str
    created: str
    format: int = 1


class Signing(msgspec.Struct, frozen=True):
    """The public keys of the archive's signatures, in base64, by name. For information only: readers configure trust.

    Every client that can write to the store can put another key here.
    """

    keys: dict[str, str]
    format: int = 1


Kind = TypeVar("Kind", bound=msgspec.Struct)


async def claim(store: Store, archive: str, stream: str, created: str, signer: Signer | None = None) -> None:
    """Check that the store belongs to this archive, and that the stream is the same one; the first node records both.

    ConfigError if the store belongs to another archive; if the stream was created again (its sequences would be taken
    for those of the earlier one, and dropped); or if the archive is signed and this node has no key to sign with.
    """
    owner = await _write_or_read(store, ARCHIVE, Archive(archive))
    _check_owner(store, owner.archive, archive)
    await _declare(store, signer)
    found = await _write_or_read(store, stream_path(stream), Identity(stream, created))
    if found.created != created:
        raise ConfigError(
            f"the archive in {store.url} is of a stream {stream} made at {found.created}, and this one was made at"
            f" {created}: its sequences begin anew. Capture it into another store"
        )
    await describe(store)


def _check_owner(store: Store, owner: str, archive: str) -> None:
    if owner != archive:
        raise ConfigError(
            f"the store {store.url} holds the archive {owner!r}, not {archive!r}: choose another store,"
            f' or write archive = "{owner}" to add this stream to it'
        )


async def require_named(store: Store, archive: str, stream: str = "") -> None:
    """Check what `claim` and `require_archive` check, except for signatures and creation times; create nothing.

    For programs that read the heads of the archive `archive` in NATS. NoArchiveError; ConfigError if the store holds
    another archive, or with `stream`, if the archive captures only other streams; ManifestError.
    """
    await require_archive(store, stream)
    if owner := await archive_name(store):
        _check_owner(store, owner, archive)


async def holds_archive(store: Store) -> bool:
    """Return whether this store has ever held an archive, damaged or not. Creates nothing, not even a folder."""
    try:
        await store.get(ARCHIVE)
        return True
    except NotStoredError:
        for folder in (STREAMS, Manifest.FOLDER, ENTRIES):
            if await store.list(folder):
                return True  # a missing file here is damage: the commands that check report it
        return False


async def require_archive(store: Store, stream: str = "") -> None:
    """Raise NoArchiveError if there is no archive to read; create nothing.

    With `stream`, raise ConfigError if the archive captures only other streams.
    """
    if not await holds_archive(store):
        raise NoArchiveError(
            f"there is no archive in {store.url}: it has no {ARCHIVE}, nothing was ever captured into it. Check the"
            f" store (--store, CAPTURE_STORE, store in capture.toml); `capture run` creates the archive"
        )
    if stream:
        known = sorted(one.stream for one in await list_claimed(store))
        if known and stream not in known:
            raise ConfigError(f"the archive in {store.url} is of {', '.join(known)}, not of {stream}")


async def list_claimed(store: Store, known: Iterable[str] = ()) -> list[Identity]:
    """Return the streams of the archive, except those whose names are in `known`."""
    left_out = {stream_path(name) for name in known}
    paths = [one.path for one in await store.list(STREAMS) if one.path not in left_out]
    return [await read_record(store, path, Identity) for path in paths]


def stream_path(stream: str) -> str:
    """Return the path of a stream's record."""
    return f"{STREAMS}{quote_key(stream)}.json"


async def read_record(store: Store, path: str, kind: type[Kind]) -> Kind:
    """Return the record at this path. NotStoredError; ManifestError if it is damaged."""
    try:
        return msgspec.json.decode(await store.get(path), type=kind)
    except UNREADABLE as error:
        raise ManifestError(f"{path} in {store.url} is damaged: {error}") from error


async def archive_name(store: Store) -> str:
    """Return the archive's recorded name; "" if there is none. ManifestError if the record is damaged."""
    try:
        return (await read_record(store, ARCHIVE, Archive)).archive
    except NotStoredError:
        return ""


async def _declare(store: Store, signer: Signer | None) -> None:
    """Add this node's public signing keys. ConfigError if the archive has keys and the node has none."""
    try:
        declared = (await read_record(store, SIGNING, Signing)).keys
    except NotStoredError:
        declared = {}
    if signer is None:
        if declared:
            raise ConfigError(
                f"the archive in {store.url} is signed, with the key {', '.join(declared)}, and this node has no key "
                f"to sign with: name the file in signing_key_file, or set {SIGNING_VARIABLE}"
            )
        return
    keys = declared | signer.keys.public.lines()
    if keys != declared:
        await store.put(SIGNING, msgspec.json.encode(Signing(keys)), if_absent=False)


async def _write_or_read(store: Store, path: str, mine: Kind) -> Kind:
    """Write `mine` if nothing is stored at the path; return what is stored there."""
    try:
        await store.put(path, msgspec.json.encode(mine))
        return mine
    except AlreadyStoredError:
        return await read_record(store, path, type(mine))
