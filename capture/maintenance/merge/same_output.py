"""An output that lies in the store already: is it what an executor put there before it was lost?"""

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
"""Of a file that is read to be compared."""


async def found_again(store: Store, output: Stored, content: Path | bytes, keys: Keys | None) -> Stored | None:
    """Return the record of the object at the path of `output` if it holds what `content` does; None if it does not.

    A plain one has the same bytes. An encrypted one never has, since each has a key of its own: it is the same where
    the same was encrypted, and the record then has its size and SHA-256.
    """
    sizes = {one.path: one.bytes for one in await store.list(output.path)}
    if output.path not in sizes:
        return None
    found = cast("IO[bytes]", StoredFile(store, output.path, sizes[output.path]))
    return await asyncio.to_thread(_compared, found, sizes[output.path], output, content, keys)


def _compared(found: IO[bytes], size: int, output: Stored, content: Path | bytes, keys: Keys | None) -> Stored | None:
    digest = _digest(found)
    if digest == output.sha256:
        return output
    if keys is None or isinstance(content, bytes):
        return None
    with content.open("rb") as ours:
        try:
            same = _digest(keys.opened(found, output)) == _digest(keys.opened(ours, output))
        except CipherError:
            return None
    return msgspec.structs.replace(output, bytes=size, sha256=digest) if same else None


def _digest(file: IO[bytes] | Positioned) -> str:
    """Return the SHA-256 of all that a file holds."""
    digest = hashlib.sha256()
    file.seek(0)
    while data := file.read(PIECE_BYTES):
        digest.update(data)
    return digest.hexdigest()
