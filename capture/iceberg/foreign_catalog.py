"""Registers tables in a catalog of the user: each entry there names the metadata file of a stream's table.

The archive's head stays the authority. A catalog only points to metadata that the archive has committed: it never
writes into the archive. Nothing here drops a table of a REST catalog, since some servers then delete its files
(SeaweedFS 4.48 does). All calls block.
"""

from __future__ import annotations

from pyiceberg.exceptions import RESTError

from capture.iceberg.foreign import Address, Entries, Entry, Wanted, check_ours, is_later, translate_errors
from capture.iceberg.foreign_rest import RestEntries

REGISTERED, MOVED, CURRENT = "registered", "moved", "current"
"""Results of `set_entry`: created, moved from an earlier table, or already at this table or a later one."""


def open_catalog(address: Address) -> Entries:
    """Connect to a catalog. Raises CatalogError, ConfigError."""
    with translate_errors(address):
        if address.type == "rest":
            return RestEntries(address)
        if address.type == "glue":
            from capture.iceberg.foreign_glue import GlueEntries  # needs boto3

            return GlueEntries(address.name, address.properties)
        from capture.iceberg.foreign_sql import SqlEntries  # needs SQLAlchemy

        return SqlEntries(address.name, address.properties)


def find_entry(address: Address, entries: Entries, wanted: Wanted) -> str | None:
    """Return the metadata file that the entry names now; None if there is no entry. Raises CatalogError."""
    with translate_errors(address):
        found = entries.find(wanted)
    return found.location if found else None


def set_entry(address: Address, entries: Entries, wanted: Wanted, *, take_over: bool = False) -> str:
    """Let the entry name this table. Return REGISTERED, MOVED or CURRENT. Idempotent.

    Raises ForeignEntryError, and changes nothing, if the entry names metadata that this archive did not make, unless
    `take_over`; or if it changes at the same moment. Raises CatalogError for every other failure.
    """
    with translate_errors(address):
        try:
            found = entries.find(wanted)
        except RESTError:  # such as of a server that can't read the entry's metadata any more
            if not take_over:
                raise
            found = Entry("")
        if found is None:
            entries.create(wanted)
            return REGISTERED
        if found.location == wanted.location:
            return CURRENT
        if not take_over:
            check_ours(found.location, wanted)
            if is_later(found.location, wanted):
                return CURRENT
        entries.replace(found, wanted)
        return MOVED


def remove_entry(address: Address, entries: Entries, wanted: Wanted) -> bool:
    """Remove the entry; return False if there is none. Raises ForeignEntryError if it is not ours; CatalogError."""
    with translate_errors(address):
        found = entries.find(wanted)
        if found is None:
            return False
        check_ours(found.location, wanted)
        entries.remove(found, wanted)
        return True
