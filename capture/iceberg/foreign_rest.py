"""Entries in a catalog that speaks Iceberg's REST protocol (Apache Iceberg's `rest-catalog-open-api.yaml`)."""

from __future__ import annotations

from typing import Any, cast

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.io import FileIO
from requests import Session

from capture.errors import CatalogUnfitError, ForeignEntryError
from capture.iceberg.foreign import LONGEST_LOCATION, Address, Entry, Wanted, create_namespace
from capture.iceberg.foreign_session import OAUTH, guard

FROM_SERVER = ("uri", OAUTH, "prefix", "namespace-separator")
"""Properties that a server may set in `/v1/config`. The URLs must have the configured origins: see `guard`."""


class _Client(RestCatalog):
    """pyiceberg's client. What a server sets in it is limited to paths: pyiceberg runs code that a server names.

    `auth` of `/v1/config` names a class that is imported and called, and so does `py-io-impl` of a table.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        tokens = f"{address.properties['uri'].rstrip('/')}/v1/oauth/tokens"  # pyiceberg 0.12's default is deprecated
        super().__init__(address.name, **{OAUTH: tokens, **address.properties})

    def _config_headers(self, session: Session) -> None:
        """The first step of a new session, before it gets a token."""
        super()._config_headers(session)
        guard(session, self._address)

    def _fetch_config(self) -> None:
        configured = self.properties
        super()._fetch_config()
        said = self.properties
        self.properties = configured | {name: str(said[name]) for name in FROM_SERVER if name in said}

    def _load_file_io(self, *_: Any, **__: Any) -> FileIO:
        """Files of a table are not opened here."""
        return cast("FileIO", None)


class RestEntries:
    """Iceberg's REST protocol: `POST …/register`, with `overwrite` to replace an entry.

    The specification's `overwrite` is atomic and not conditional: the entry is compared just before. A commit, which is
    conditional, is not used: the catalog would write metadata of its own into the archive.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._catalog = _Client(address)

    def __repr__(self) -> str:
        return f"RestEntries({self._address})"

    def find(self, wanted: Wanted) -> Entry | None:
        """Return the location in the catalog's answer; None if it has no such table."""
        try:
            location = self._catalog.load_table(wanted.identifier).metadata_location or ""
        except (iceberg.NoSuchTableError, iceberg.NoSuchNamespaceError):
            return None
        return Entry(location[:LONGEST_LOCATION])

    def create(self, wanted: Wanted) -> None:
        """Register the table, and once more, to find out now whether the next one can be shown. CatalogUnfitError."""
        create_namespace(self._catalog, wanted)
        try:
            made = self._catalog.register_table(wanted.identifier, wanted.location)
        except iceberg.TableAlreadyExistsError as error:
            raise ForeignEntryError(
                f"{wanted.name} is taken in {self._address}, and is not shown to this node:"
                f" {self._address.quote(error)}"
            ) from error
        self._check(made.metadata_location, wanted)
        self.replace(Entry(wanted.location), wanted)

    def replace(self, found: Entry, wanted: Wanted) -> None:
        """Register the table in place of the found one. Raises CatalogUnfitError if the catalog can't do that."""
        try:
            made = self._catalog.register_table(wanted.identifier, wanted.location, overwrite=True)
        except (iceberg.TableAlreadyExistsError, iceberg.BadRequestError, NotImplementedError) as error:
            raise CatalogUnfitError(
                f"{self._address} can't register an entry again (`overwrite`), so {wanted.name} stays at"
                f" {found.location}, which the archive will delete: use another catalog, and remove the entry from this"
                f" one without the table's files. It said: {self._address.quote(error)}"
            ) from error
        self._check(made.metadata_location, wanted)

    def remove(self, found: Entry, wanted: Wanted) -> None:
        """Raises CatalogUnfitError."""
        raise CatalogUnfitError(
            f"{wanted.name} was not removed: some REST catalogs delete the files of a table that is dropped. Remove the"
            " entry with the catalog's own tools, without the files"
        )

    def close(self) -> None:
        """Close the connections."""
        self._catalog.close()

    def _check(self, location: str | None, wanted: Wanted) -> None:
        if location != wanted.location:
            said = str(location)[:LONGEST_LOCATION]
            raise CatalogUnfitError(
                f"{self._address} was given {wanted.location} for {wanted.name}, and shows {said} instead: it"
                " writes metadata of its own, which the archive can't keep"
            )
