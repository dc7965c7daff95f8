"""The checks of an archive before it is read: the same for every command, and for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from capture.archive import chain
from capture.archive.chain import HeadReader, latest_offline
from capture.archive.index.tree import ALL, Where
from capture.archive.manifest import TABLE, Manifest, Stored, is_encrypted, list_blocks
from capture.archive.picture import Picture, load_objects, read_documents
from capture.archive.recording import Recording
from capture.archive.signing import PublicKeys
from capture.archive.table import Table
from capture.errors import CipherError, FormatError, ManifestError
from capture.stores.contract import Store
from natty.wire.background import map_concurrently

AT_ONCE = 8  # objects that are compared with their records at a time
CHUNK_BYTES = 2 << 20
PIECE_BYTES = 256 << 10
"""A checked object has a digest for each piece of this size: 13 MB for 100 GB."""


@dataclass(frozen=True)
class Trust:
    """With `public_keys`, one of them must have signed the newest manifest, table and recording, for this `archive`.

    With `encrypted_only`, every object must be encrypted: only the owner of a key can make one.
    """

    archive: str = ""
    public_keys: PublicKeys | None = None
    encrypted_only: bool = False

    def check_document(self, path: str, data: bytes) -> None:
        """Raise SignatureError unless the document is signed as required."""
        if self.public_keys is not None:
            self.public_keys.check(self.archive, path, data)

    def list_refused(self, objects: Iterable[Stored]) -> list[str]:
        """Return a sentence for each object that must be encrypted and is not."""
        if not self.encrypted_only:
            return []
        return [f"{one.path} is not encrypted, and encrypted_only is set" for one in objects if not is_encrypted(one)]

    def check_objects(self, objects: Iterable[Stored]) -> None:
        """Raise CipherError if an object must be encrypted and is not."""
        if self.encrypted_only and (refused := self.list_refused(objects)):
            more = f", nor are {len(refused) - 1:,} others" if len(refused) > 1 else ""
            raise CipherError(f"{refused[0]}{more}: see `capture verify`")


NO_CHECKS = Trust()


async def read_trusted(
    store: Store,
    manifest_head: HeadReader | None,
    table_head: HeadReader | None,
    trust: Trust,
    where: Where = ALL,
) -> Picture:
    """Return the archive as `read_trusted_documents` does, with the objects that `where` finds. Raises as `scan`."""
    return await load_objects(store, await read_trusted_documents(store, manifest_head, table_head, trust, where))


async def read_trusted_documents(
    store: Store,
    manifest_head: HeadReader | None,
    table_head: HeadReader | None,
    trust: Trust,
    where: Where = ALL,
) -> Picture:
    """Return the archive as last committed, if it can be trusted; without heads, by the newest documents in the store.

    Raises as `read_documents` does, SignatureError for a document that is not signed as required, and ManifestError if
    the newest recording names a later manifest than the newest one there is.
    """
    heads = (
        manifest_head or partial(latest_offline, store, Manifest),
        table_head or partial(latest_offline, store, Table),
    )
    picture = await read_documents(store, *heads, check=trust.check_document, where=where)
    while manifest_head is None and (ahead := await _find_missing_manifest(store, picture, trust)):
        before, picture = picture, await read_documents(store, *heads, check=trust.check_document, where=where)
        if picture == before:
            raise ManifestError(ahead)
    if manifest_head is None and trust.public_keys is not None and not picture.manifest.number:
        await check_vouched(store)
    return picture


async def check_vouched(store: Store) -> None:
    """Raise ManifestError if the store holds objects but no manifest: only its signature can vouch for them."""
    if objects := [*await list_blocks(store, outside=True), *await store.list(TABLE)]:
        raise ManifestError(
            f"{store.url} holds {len(objects):,} objects, {objects[0].path} among them, and no manifest that vouches"
            " for them: it was removed, or the sweep has not written the first one yet"
        )


async def _find_missing_manifest(store: Store, picture: Picture, trust: Trust) -> str:
    """Return a sentence if the newest recording names a manifest that does not exist; "" if it exists."""
    head = await latest_offline(store, Recording)
    recording = await chain.read(store, head, Recording, check=trust.check_document)
    return describe_missing_manifest(recording, head.path if head else "", picture.manifest.number)


def describe_missing_manifest(recording: Recording, path: str, newest: int) -> str:
    """Return a sentence if a recording names a later manifest than the newest one; "" if it does not."""
    if recording.of_manifest <= newest:
        return ""
    there = f"the newest one is number {newest}" if newest else "there is none"
    return f"{path} was written beside manifest {recording.of_manifest}, and {there}: later ones were removed"


@dataclass(frozen=True, repr=False)
class CheckedContents:
    """Objects whose bytes were compared with their records; every later read is compared with the same bytes.

    So an object that was replaced after the check is never read: the read raises FormatError.
    """

    store: Store
    digests: Mapping[str, bytes]  # of each object's pieces, in order

    def __repr__(self) -> str:
        return f"CheckedContents({self.store.url}, {len(self.digests):,} objects)"

    @property
    def url(self) -> str:
        """The URL of the store."""
        return self.store.url

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer where the object ends. FormatError if they were changed."""
        first = start // PIECE_BYTES
        pieces = -(-(start + length) // PIECE_BYTES) - first
        data = await self.store.get_range(path, first * PIECE_BYTES, pieces * PIECE_BYTES)
        known = self.digests[path][first * DIGEST_BYTES : (first + pieces) * DIGEST_BYTES]
        if await asyncio.to_thread(_digests, data) != known:
            raise FormatError(f"{path} was changed after it was checked: read it again, and see `capture verify`")
        return data[start - first * PIECE_BYTES :][:length]


DIGEST_BYTES = sha256().digest_size


def _digests(data: bytes) -> bytes:
    view = memoryview(data)
    starts = range(0, len(data), PIECE_BYTES)
    return b"".join(sha256(view[start : start + PIECE_BYTES]).digest() for start in starts)


async def check_contents(store: Store, objects: Iterable[Stored]) -> CheckedContents:
    """Raise FormatError unless each object has the bytes of its record: for readers that do not check.

    Return a reader of exactly these bytes. NotStoredError if an object is missing.
    """
    found: dict[str, bytes] = {}

    async def look(one: Stored) -> None:
        digest, size, pieces = sha256(), 0, b""
        while size % CHUNK_BYTES == 0 and size <= one.bytes:  # otherwise the last read reached the end
            data = await store.get_range(one.path, size, CHUNK_BYTES)
            if not data:
                break
            await asyncio.to_thread(digest.update, data)
            pieces += await asyncio.to_thread(_digests, data)
            size += len(data)
        if size != one.bytes or digest.hexdigest() != one.sha256:
            raise FormatError(f"{one.path} was changed: its SHA-256 is not the recorded one")
        found[one.path] = pieces

    await map_concurrently(objects, look, at_once=AT_ONCE)
    return CheckedContents(store, found)
