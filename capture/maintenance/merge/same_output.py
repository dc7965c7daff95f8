"""Checks whether an output in the store is the one that a lost executor has put there."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import IO, cast

import msgspec

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored
from capture.errors import CipherError
from capture.stores.contract import Store
from capture.stores.stored_file import Positioned, StoredFile

PIECE_BYTES = 8 * 1024 * 1024
"""Of a file that is compared, for each read."""


async def find_same_output(store: Store, output: Stored, content: Path | bytes, keys: Keys | None) -> Stored | None:
    """Return the record of the object at the path of `output` if it has the same content as `content`; otherwise None.

    Plain objects are the same if their bytes are. Encrypted ones never have the same bytes, since each has its own key:
    they are the same if their plaintext is. The record then has the stored object's size and SHA-256.
    """
    sizes = {one.path: one.bytes for one in await store.list(output.path)}
    if output.path not in sizes:
        return None
    found = cast("IO[bytes]", StoredFile(store, output.path, sizes[output.path]))
    return await asyncio.to_thread(_compare, found, sizes[output.path], output, content, keys)


def _compare(found: IO[bytes], size: int, output: Stored, content: Path | bytes, keys: Keys | None) -> Stored | None:
    digest = _digest(found)
    if digest == output.sha256:
        return output
    if keys is None or isinstance(content, bytes):
        return None
    with content.open("rb") as ours:
        try:
            same = _digest(keys.decrypt_file(found, output)) == _digest(keys.decrypt_file(ours, output))
        except CipherError:
            return None
    return msgspec.structs.replace(output, bytes=size, sha256=digest) if same else None


def _digest(file: IO[bytes] | Positioned) -> str:
    """Return the SHA-256 of the whole file."""
    digest = hashlib.sha256()
    file.seek(0)
    while data := file.read(PIECE_BYTES):
        digest.update(data)
    return digest.hexdigest()
