"""Archives whose table stands in a catalog of the user: pyiceberg's SQL catalog in a file, or another server."""

import msgspec
from exposing import HOUR, expose_files, table_file

from capture.archive import chain
from capture.archive.table import Table
from capture.config.settings import CaptureConfig
from capture.config.table_catalog import TableCatalog, TableSettings
from capture.iceberg import Exposer
from capture.node.user_catalog import CatalogKeeper, UserCatalog, location_of
from capture.stores import open_store
from capture.testing import HeadState, MemoryHead


class Registered:
    """An archive in a folder, with the user's catalog; `commit` adds a file to its table."""

    def __init__(self, folder, *, archive="orders", location="", **catalog):
        settings = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "namespace": "lake"} | catalog
        self.store = open_store(str(folder / archive))
        self.config = CaptureConfig(
            stream="S",
            archive=archive,
            store=self.store.url,
            table=TableSettings(catalog=TableCatalog(**settings), location=location),
        )
        self.head, self.state = None, HeadState()
        self.table = Table()
        self.failing = {}
        self.catalog = UserCatalog(self.store, self.config)
        self.keeper = CatalogKeeper(self.catalog, self.failing, clock=lambda: float(HOUR), retry=0.05)

    async def commit(self, *, stream="S", rule=None):
        """Commit a table with one more file, of one sequence; return its record in the table."""
        sequence = len(self.table.files) + 1
        file = await table_file(self.store, [sequence], stream=stream, name=str(sequence))
        table = msgspec.structs.replace(self.table, files=[*self.table.files, file])
        exposer = Exposer(self.store, rule or self.config.table)
        table = await expose_files(exposer, self.table.files, table, now=HOUR + sequence)
        self.head = await chain.commit(self.store, MemoryHead(1, self.state), self.head, table)
        self.table = await chain.read(self.store, self.head, Table)
        await exposer.announce(self.table)
        return self.table.iceberg[stream]

    def location(self, stream="S"):
        """Return the metadata file that the table names."""
        return location_of(self.table.iceberg[stream], stream)

    async def set(self, stream="S", **options):
        """Set the entry."""
        return await self.catalog.set(self.table, stream, **options)
