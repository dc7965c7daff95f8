"""Reads the outputs of a merge back through the store before a table names them: the engine's report is not trusted."""

from __future__ import annotations

import io
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import IO

from capture.archive.encryption import Keys
from capture.archive.manifest import Stored, is_encrypted
from capture.errors import CaptureError, CompactionError, NotStoredError
from capture.stores.contract import Store
from capture.stores.stored_file import StoredFile
from natty.wire.background import map_concurrently

WHOLE_BYTES = 8 << 20
"""A file up to this size is read whole, and its SHA-256 compared; of a larger one only the checked parts are read."""
AT_ONCE = 2  # each takes a thread, which waits for the threads in which the store reads


Check = Callable[[Store, Sequence[Stored]], Awaitable[None]]
"""Checks the outputs of a merge before they are committed, as `read_back` does; raises CompactionError."""


async def read_back(store: Store, outputs: Sequence[Stored], keys: Keys | None = None) -> None:
    """Raise CompactionError unless the store holds each of these table files as it was reported.

    It reads size, footer, and the sequence and time of each row: sequences must ascend, and sequences and times match
    the record. The writer has checked the other columns; their pages have checksums, which `capture verify` reads.
    """
    found = await map_concurrently(outputs, lambda one: _differences(store, one, keys), at_once=AT_ONCE)
    if wrong := [f"{of.path}: {one}" for of, several in zip(outputs, found, strict=True) for one in several]:
        raise CompactionError(f"the output differs from the report, nothing was committed: {'; '.join(wrong)}")


async def _differences(store: Store, output: Stored, keys: Keys | None) -> list[str]:
    from capture.maintenance.merge.table_file import check_table_file  # here, so that planning needs no pyarrow

    try:
        if len(await store.get_range(output.path, output.bytes - 1, 2)) != 1:
            sizes = [one.bytes for one in await store.list(output.path) if one.path == output.path]
            return [f"it has {sizes[0]} bytes in {store.url}, not {output.bytes}"]
        if output.bytes <= WHOLE_BYTES or is_encrypted(output):
            file: IO[bytes] = io.BytesIO(await _read_object(store, output, keys))
        else:
            file = io.BufferedReader(StoredFile(store, output.path, output.bytes))
        return await to_thread(check_table_file, file, output)
    except NotStoredError:
        return [f"it has no bytes in {store.url}"]
    except CaptureError as error:
        return [str(error)]
    except Exception as error:  # any error of pyarrow about unreadable bytes
        return [f"it can't be read: {error}"]


async def _read_object(store: Store, output: Stored, keys: Keys | None) -> bytes:
    data = await store.get(output.path)
    if sha256(data).hexdigest() != output.sha256:
        raise CompactionError("its SHA-256 is not the reported one")
    if not is_encrypted(output):
        return data
    if keys is None:
        raise CompactionError("it is encrypted, and the leader has no keys to read it with")
    return keys.decrypt(data, output)
