"""Entries in a catalog that speaks Iceberg's REST protocol (Apache Iceberg's `rest-catalog-open-api.yaml`)."""

from __future__ import annotations

import functools
from typing import Any

from pyiceberg import exceptions as iceberg
from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from capture.errors import CatalogUnfitError, ForeignEntryError
from capture.iceberg.foreign import LONGEST, Address, Entry, Wanted, create_namespace


class _Client(RestCatalog):
    """pyiceberg's client, which has no time limits of its own."""

    def __init__(self, address: Address) -> None:
        self._options: dict[str, Any] = {"timeout": address.timeout}
        tokens = f"{address.properties['uri'].rstrip('/')}/v1/oauth/tokens"  # pyiceberg 0.12's default is deprecated
        properties: dict[str, Any] = {"oauth2-server-uri": tokens, **address.properties}
        if address.ca:
            self._options["verify"] = address.ca  # in each request, since REQUESTS_CA_BUNDLE overrides a session's
        super().__init__(address.name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.request = functools.partial(session.request, **self._options)  # type: ignore[method-assign]
        return session


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
            return Entry(self._catalog.load_table(wanted.identifier).metadata_location or "")
        except (iceberg.NoSuchTableError, iceberg.NoSuchNamespaceError):
            return None

    def create(self, wanted: Wanted) -> None:
        """Register the table, and once more, to find out now whether the next one can be shown. CatalogUnfitError."""
        create_namespace(self._catalog, wanted)
        try:
            made = self._catalog.register_table(wanted.identifier, wanted.location)
        except iceberg.TableAlreadyExistsError as error:
            raise ForeignEntryError(
                f"{wanted.name} is taken in {self._address}, and is not shown to this node: {error}"
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
                f" one without the table's files. It said: {' '.join(str(error).split())[:LONGEST]}"
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
            raise CatalogUnfitError(
                f"{self._address} was given {wanted.location} for {wanted.name}, and shows {location} instead: it"
                " writes metadata of its own, which the archive can't keep"
            )
