"""Reads which data files an Iceberg table names now: to compare them with the document that the table was made from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from pyiceberg.manifest import DataFileContent
from pyiceberg.table.metadata import TableMetadataUtil

from capture.archive.iceberg_state import Iceberg, folder
from capture.errors import ManifestError, NotStoredError
from capture.iceberg.manifest_list import Listed, read_list
from capture.iceberg.memory_catalog import one_file
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty.wire.background import map_concurrently


class NamedFile(NamedTuple):
    """A data file as the metadata describe it."""

    rows: int
    bytes: int


async def read_named_files(store: Store, stream: str, table: Iceberg) -> Mapping[str, NamedFile]:
    """Return the data files of the current snapshot of a stream's table, by their paths in the store.

    ManifestError if one of Iceberg's own files is missing, was changed, or is not among those that the document names;
    and if the snapshot names a file twice, or has files with deleted rows. StoreError.
    """
    digests, base = table.objects(), table.location.removesuffix(folder(stream))

    async def read(location: str) -> bytes:
        path = location.removeprefix(base)
        if path not in digests:
            raise ManifestError(f"{path} is named by the metadata of {stream}, and not by the pipelines' document")
        try:
            data = await store.get(path)
        except NotStoredError as error:
            raise ManifestError(f"{path} is missing, a file of the Iceberg table of {stream}") from error
        if sha256(data).hexdigest() != digests[path]:
            raise ManifestError(f"{path} was changed: its SHA-256 is not the recorded one")
        return data

    metadata = TableMetadataUtil.parse_raw((await read(base + table.metadata)).decode())
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        return {}
    listed = await asyncio.to_thread(read_list, await read(snapshot.manifest_list))
    found: dict[str, NamedFile] = {}

    async def look(one: Listed) -> None:
        location = one.manifest.manifest_path
        data = await read(location)
        for entry in await asyncio.to_thread(one.manifest.fetch_manifest_entry, one_file(location, data)):
            file = entry.data_file
            path = file.file_path.removeprefix(base)
            if file.content != DataFileContent.DATA or path in found:
                what = "is named twice" if path in found else "masks rows"
                raise ManifestError(f"{path} {what} in the Iceberg table of {stream}")
            found[path] = NamedFile(file.record_count, file.file_size_in_bytes)

    await map_concurrently(listed, look, at_once=REQUESTS_AT_ONCE)
    return found
