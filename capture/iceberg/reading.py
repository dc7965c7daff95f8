"""A pyiceberg catalog of archives, to read from Python: it follows the heads, and reads files from the stores."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier

from capture.archive import chain
from capture.archive.chain import HeadReader
from capture.archive.iceberg_state import Exposable, folder
from capture.archive.table import Table as Committed
from capture.stores.contract import Store
from capture.stores.stored_file import StoredFile, run_on_loop

READ_AHEAD = 1024 * 1024
"""The fewest bytes that are read from a file at once."""


class ArchiveCatalog(NoopCatalog):
    """A read-only catalog: each archive is a namespace, and each of its streams a table, or each pipeline.

    Create it on a running event loop, and call it from other threads:
    `await asyncio.to_thread(catalog.load_table, ("orders", "ORDERS"))`. Files are read through the archive's store,
    with its credentials. Methods that write raise NotImplementedError.
    """

    def __init__(self, archives: Mapping[str, tuple[Store, HeadReader]], kind: type[Exposable] = Committed) -> None:
        """Give each archive's store, and the reader of its table's head: `capture.archive.heads.COMPACTION.reader`.

        For pipelines: their store, `PIPELINES.reader`, and as `kind` `capture.pipelines.document.Pipelines`.
        """
        super().__init__("archives")
        self._kind = kind
        self._archives = archives
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        return f"ArchiveCatalog({', '.join(self._archives)})"

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return the archives' names. They contain no other namespaces."""
        return [] if namespace else [(name,) for name in self._archives]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """Return the streams that have a table. Raises NoSuchNamespaceError."""
        (name,) = Catalog.identifier_to_tuple(namespace)
        return [(name, stream) for stream in sorted(self._read_table(name).iceberg)]

    def load_table(self, identifier: str | Identifier) -> Table:
        """Return the committed table. Raises NoSuchNamespaceError, NoSuchTableError, CaptureError, NattyError."""
        name, stream = Catalog.identifier_to_tuple(identifier)
        exposed = self._read_table(name).iceberg.get(stream)
        if exposed is None:
            raise NoSuchTableError(f"there is no table {stream} in {name}")
        base = exposed.location.removesuffix(folder(stream))
        files = StoreFiles(self._archives[name][0], base, self._loop)
        location = base + exposed.metadata
        metadata = FromInputFile.table_metadata(files.new_input(location))
        return Table((name, stream), metadata, location, files, self)

    def table_exists(self, identifier: str | Identifier) -> bool:
        """Return whether the table exists."""
        name, stream = Catalog.identifier_to_tuple(identifier)
        return name in self._archives and stream in self._read_table(name).iceberg

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Return whether the archive exists."""
        return Catalog.identifier_to_tuple(namespace) in self.list_namespaces()

    def _read_table(self, name: str) -> Exposable:
        if name not in self._archives:
            raise NoSuchNamespaceError(f"there is no archive {name}")
        store, head = self._archives[name]

        async def read() -> Exposable:
            return await chain.read(store, await head(), self._kind)

        return run_on_loop(read(), self._loop)


class StoreFiles(FileIO):
    """The files of an archive's store by their locations below `base`, to read from threads other than the loop's."""

    def __init__(self, store: Store, base: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._store, self._base, self._loop = store, base, loop

    def new_input(self, location: str) -> InputFile:
        """Return a file to read."""
        return _StoredFile(location, self._store, location.removeprefix(self._base), self._loop)

    def new_output(self, location: str) -> OutputFile:
        """Raises NotImplementedError: the catalog is read-only."""
        raise NotImplementedError("only an archive's leader writes")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Raises NotImplementedError: the catalog is read-only."""
        raise NotImplementedError("only an archive's leader deletes")


class _StoredFile(InputFile):
    def __init__(self, location: str, store: Store, path: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(location)
        self._store, self._path, self._loop = store, path, loop

    def __len__(self) -> int:
        found = [one.bytes for one in run_on_loop(self._store.list(self._path), self._loop) if one.path == self._path]
        if not found:
            raise FileNotFoundError(self.location)
        return found[0]

    def exists(self) -> bool:
        return any(one.path == self._path for one in run_on_loop(self._store.list(self._path), self._loop))

    def open(self, seekable: bool = True) -> Any:
        return io.BufferedReader(StoredFile(self._store, self._path, len(self), self._loop), READ_AHEAD)
