"""Entries in AWS Glue: changed on condition that their version is the one that was found."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import METADATA_LOCATION
from pyiceberg.catalog.glue import GlueCatalog, _construct_table_input
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError

from capture.errors import ForeignEntryError
from capture.iceberg.foreign import Entry, Wanted, create_namespace, read_metadata

RETRIES = 2
"""Attempts of the driver to reach Glue, in place of its ten: the next announcement is another one."""


class GlueEntries:
    """The tables of a Glue database. pyiceberg's own commit would write another metadata file."""

    def __init__(self, name: str, properties: dict[str, str]) -> None:
        given: dict[str, Any] = {"glue.endpoint": properties["uri"]} if "uri" in properties else {}
        given |= properties | {"glue.max-retries": int(properties.get("glue.max-retries", RETRIES))}
        self._catalog = GlueCatalog(name, **given)

    def __repr__(self) -> str:
        return f"GlueEntries({self._catalog.name!r})"

    def find(self, wanted: Wanted) -> Entry | None:
        """Return the location in the table's parameters, "" if it is not an Iceberg table; None if there is none."""
        try:
            found = self._catalog._get_glue_table(*self._names(wanted))
        except NoSuchTableError:
            return None
        return Entry(found.get("Parameters", {}).get(METADATA_LOCATION, ""), found)

    def create(self, wanted: Wanted) -> None:
        """Create the table. Raises ForeignEntryError if there is one meanwhile."""
        create_namespace(self._catalog, wanted)
        database, table = self._names(wanted)
        metadata = read_metadata(wanted)
        made = _construct_table_input(table, wanted.location, metadata.properties, metadata)
        try:
            self._catalog._create_glue_table(database_name=database, table_name=table, table_input=made)
        except TableAlreadyExistsError as error:
            raise ForeignEntryError(f"{wanted.name} was registered by another program at the same moment") from error

    def replace(self, found: Entry, wanted: Wanted) -> None:
        """Update the table if it still has the version that was found. Raises ForeignEntryError."""
        database, table = self._names(wanted)
        metadata = read_metadata(wanted)
        made = _construct_table_input(
            table, wanted.location, metadata.properties, metadata, found.version, found.location or None
        )
        try:
            self._catalog._update_glue_table(
                database_name=database, table_name=table, table_input=made, version_id=found.version["VersionId"]
            )
        except CommitFailedException as error:
            raise ForeignEntryError(f"{wanted.name} was changed by another program at the same moment") from error

    def remove(self, found: Entry, wanted: Wanted) -> None:
        """Delete the table's entry; Glue does not touch files."""
        database, table = self._names(wanted)
        self._catalog.glue.delete_table(DatabaseName=database, Name=table)

    def close(self) -> None:
        """Close the connections."""
        self._catalog.glue.close()

    def _names(self, wanted: Wanted) -> tuple[str, str]:
        return self._catalog.identifier_to_database_and_table(wanted.identifier)
