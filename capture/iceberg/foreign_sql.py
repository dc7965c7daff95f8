"""Entries in a SQL catalog (Iceberg's JDBC tables): one row each, changed by compare-and-set."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from capture.errors import ForeignEntryError
from capture.iceberg.foreign import Entry, Wanted, create_namespace


class SqlEntries:
    """The rows of `iceberg_tables`, in the schema that pyiceberg and Iceberg's JdbcCatalog share.

    pyiceberg's own commit would write another metadata file: only the row is changed here.
    """

    def __init__(self, name: str, properties: dict[str, str]) -> None:
        self._catalog = _Catalog(name, **properties)

    def __repr__(self) -> str:
        return f"SqlEntries({self._catalog.name!r})"

    def find(self, wanted: Wanted) -> Entry | None:
        """Return the row's location; None if there is no row."""
        with self._catalog.engine.connect() as connection:
            row = connection.execute(select(IcebergTables.metadata_location).where(*self._is_row(wanted))).first()
        return None if row is None else Entry(row[0] or "")

    def create(self, wanted: Wanted) -> None:
        """Insert the row. Raises ForeignEntryError if there is one meanwhile."""
        create_namespace(self._catalog, wanted)
        namespace, table = _split(wanted)
        row = self._catalog._create_table_row(namespace, table, wanted.location)
        try:
            with self._catalog.engine.begin() as connection:
                connection.execute(insert(IcebergTables).values(**row))
        except IntegrityError as error:
            raise ForeignEntryError(f"{wanted.name} was registered by another program at the same moment") from error

    def replace(self, found: Entry, wanted: Wanted) -> None:
        """Change the row if it still names what was found. Raises ForeignEntryError."""
        unchanged = [*self._is_row(wanted), IcebergTables.metadata_location == found.location]
        values = {"metadata_location": wanted.location, "previous_metadata_location": found.location}
        with self._catalog.engine.begin() as connection:
            if connection.execute(update(IcebergTables).where(*unchanged).values(**values)).rowcount < 1:
                raise ForeignEntryError(f"{wanted.name} was changed by another program at the same moment")

    def remove(self, found: Entry, wanted: Wanted) -> None:
        """Delete the row if it still names what was found. Raises ForeignEntryError."""
        unchanged = [*self._is_row(wanted), IcebergTables.metadata_location == found.location]
        with self._catalog.engine.begin() as connection:
            if connection.execute(delete(IcebergTables).where(*unchanged)).rowcount < 1:
                raise ForeignEntryError(f"{wanted.name} was changed by another program at the same moment")

    def close(self) -> None:
        """Close the database's connections."""
        self._catalog.close()

    def _is_row(self, wanted: Wanted) -> list[Any]:
        namespace, table = _split(wanted)
        return [
            IcebergTables.catalog_name == self._catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == table,
        ]


class _Catalog(SqlCatalog):
    """pyiceberg's own leaves connections open if the database refuses its first statements."""

    def __init__(self, name: str, **properties: str) -> None:
        try:
            super().__init__(name, **properties)
        except BaseException:
            self.close()
            raise


def _split(wanted: Wanted) -> tuple[str, str]:
    return Catalog.namespace_to_string(wanted.identifier[:-1]), wanted.identifier[-1]
