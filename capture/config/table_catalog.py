"""The catalog of the user in which the table is registered, too: `[table.catalog]` in the file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec

from capture.archive.iceberg_state import Expiry
from capture.archive.keyfile import check_private
from capture.config.secrets import Redacted
from capture.errors import ConfigError
from natty.errors import how_to_install

STREAM = "{stream}"
NEEDS = {"rest": "pyiceberg", "sql": "sqlalchemy", "glue": "boto3"}
SENDS_TO = {"rest": ("uri", "oauth2-server-uri"), "sql": (), "glue": ("uri", "glue.endpoint")}
"""Properties with the URLs that get credentials."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TableCatalog(Redacted, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A catalog of another system, whose entries name the table: `[table.catalog]` in the file. Seconds.

    `properties` are pyiceberg's own, and override the settings beside them. `properties_file` is a private file with
    more of them, lines of NAME=VALUE.
    """

    HIDES = "properties"

    type: Literal["", "rest", "sql", "glue"] = ""  # default: no catalog
    uri: str = ""  # of the REST server, of the SQL database as SQLAlchemy writes it, or of Glue if it is not AWS's
    name: str = "default"  # of the catalog in a SQL database, which other engines name, too
    warehouse: str = ""
    namespace: str = ""  # levels are separated by dots; default: the archive's name
    table: str = STREAM  # name of a stream's table; must contain {stream}
    lower_case: bool = False  # write both in lower case, for catalogs that have no other names; always for Glue
    ca: str = ""  # certificate authority of a REST server, instead of the system's
    timeout: Annotated[float, msgspec.Meta(gt=0, le=600)] = 10.0  # for an answer of the catalog
    properties: dict[str, str] = {}
    properties_file: str = ""

    def identify(self, archive: str, stream: str) -> tuple[str, ...]:
        """Return the levels of the namespace and the name of a stream's table."""
        name = (*(self.namespace or archive).split("."), self.table.replace(STREAM, stream))
        return tuple(level.lower() for level in name) if self.lower_case or self.type == "glue" else name

    def check(self) -> None:
        """Raise ConfigError if the catalog can't be used with these settings. Does not connect."""
        if not self.type:
            return
        if find_spec(NEEDS[self.type]) is None:
            raise ConfigError(f"a catalog of type {self.type} needs {NEEDS[self.type]}; {how_to_install('catalogs')}")
        if STREAM not in self.table:
            raise ConfigError(f"the name of a table in the catalog must contain {STREAM}: {self.table!r}")
        if not all((self.namespace or "default").split(".")):
            raise ConfigError(f"the namespace {self.namespace!r} has an empty level")
        given = self.read_properties()
        if self.type != "glue" and not given.get("uri"):
            raise ConfigError(f"a catalog of type {self.type} needs its uri")
        if self.type == "sql" and not _split(given["uri"], "uri").scheme:
            raise ConfigError("the uri of an SQL catalog must be as SQLAlchemy writes it: sqlite:////path/catalog.db")
        for name in SENDS_TO[self.type]:
            if name in given:
                _check_encrypted(given[name], name)
        if self.ca and not Path(self.ca).expanduser().is_file():
            raise ConfigError(f"the certificate authority {self.ca} of the catalog is not a file")

    def read_properties(self) -> dict[str, str]:
        """Return the properties for pyiceberg, with those of the file. Raises ConfigError."""
        beside = {"uri": self.uri, "warehouse": self.warehouse}
        given = {name: value for name, value in beside.items() if value}
        return given | (_read(self.properties_file) if self.properties_file else {}) | self.properties


class TableSettings(Expiry, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table for other engines: `[table]` in the file.

    New blocks are in the table within about `fresh` seconds after the sweep, before they are merged; 0: only then.
    """

    fresh: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    catalog: TableCatalog = TableCatalog()


def _split(uri: str, name: str) -> SplitResult:
    try:
        return urlsplit(uri)
    except ValueError as error:
        raise ConfigError(f"the catalog's {name} can't be read: {error}") from error


def _check_encrypted(uri: str, name: str) -> None:
    parts = _split(uri, name)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise ConfigError(f"the catalog's {name} must begin with https://: credentials would be sent unencrypted")


def _read(path: str) -> dict[str, str]:
    """Return the properties in a private file: lines of NAME=VALUE; blank ones and those after # are ignored."""
    file = Path(path).expanduser()
    try:
        check_private(file, "the catalog's properties file")
        lines = [line.strip() for line in file.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"the catalog's properties file {path} can't be read: {why}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, sign, value = line.partition("=")
        if line and not line.startswith("#"):
            if not sign or not name.strip():
                raise ConfigError(f"line {number} of the catalog's properties file {path} is not NAME=VALUE")
            found[name.strip()] = value.strip()
    return found
