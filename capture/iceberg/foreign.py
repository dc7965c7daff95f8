"""An entry in a catalog of the user: what it should name, whose it is, and the errors of the catalogs' clients."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from pydantic import ValidationError
from pyiceberg import exceptions as iceberg
from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadataUtil
from requests import RequestException
from requests.exceptions import SSLError
from urllib3.exceptions import HTTPError

from capture.errors import (
    CatalogAwayError,
    CatalogError,
    CatalogRefusedError,
    ConfigError,
    ForeignEntryError,
)
from natty.errors import how_to_install

TAKE_OVER = "capture catalog register --take-over"
LONGEST = 300  # characters of another program's error
LONGEST_READ = 65536  # characters in which secrets are looked for, before the rest is cut off
LONGEST_LOCATION = 2048  # characters of a location that a server says
HIDDEN = "***"
_SECRET = re.compile("secret|passw|pwd|token|credential|key|header", re.IGNORECASE)  # names of properties
_USER = re.compile("//(.*)@")  # in a URL: a user and a password, in which another program may leave @ and / as they are
_SPOKEN = re.compile(
    r"((?:bearer|basic)\s+(?=[^\s\"'&,;]{16})"
    r"|(?:client_secret|access_token|refresh_token|password|x-amz-security-token)[\s\"'\\]*[=:][\s\"'\\]*)"
    r"[^\s\"'&,;\\]+",
    re.IGNORECASE,
)  # secrets that a server gave to pyiceberg, or that a driver has from the environment
_REFUSALS = {"AccessDenied", "AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException"}
_REFUSALS |= {"ExpiredTokenException", "InvalidClientTokenId"}
_OUR_NAME = re.compile(r"(\d{10})-(\d+)-[0-9a-f]{32}\.metadata\.json")  # number and term: see `Exposer`
_REFUSED = (
    *(iceberg.UnauthorizedError, iceberg.ForbiddenError, iceberg.AuthorizationExpiredError, iceberg.OAuthError),
    iceberg.SignError,
)
_POOL = re.compile(r"^HTTPS?Connection(Pool)?\(host=[^()]*\): ")  # urllib3's name of a connection
_AWAY = (
    *(iceberg.ServiceUnavailableError, iceberg.ServerError, iceberg.TooManyRequestsError),
    *(RequestException, HTTPError),
)


@dataclass(frozen=True)
class Address:
    """A catalog: its type, its name, and how it is reached. `properties` are pyiceberg's; `timeout` is in seconds."""

    type: str
    name: str
    properties: dict[str, str] = field(repr=False)
    ca: str = ""
    timeout: float = 10.0

    def __str__(self) -> str:
        where = self.properties.get("uri", "")
        return f"the {self.type} catalog" + (f" at {_USER.sub('//', where.partition('?')[0])}" if where else "")

    def hide_secrets(self, text: str) -> str:
        """Return another program's text without this address's secrets, as they are or encoded, and on one line."""
        for secret in sorted(_find_secrets(self.properties), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        text = _SPOKEN.sub(rf"\1{HIDDEN}", " ".join(text.split()))
        return "".join(one if one.isprintable() else "?" for one in text)

    def quote(self, error: Exception) -> str:
        """Return what another program's error says, without secrets, and not more than LONGEST characters of it."""
        return self.hide_secrets(_describe(error))[:LONGEST] or type(error).__name__  # a half secret is not found


@dataclass(frozen=True)
class Wanted:
    """The entry that a stream's table should have. `location` is the metadata file, `folder` the table's location.

    `former` are the paths, below the archive, of earlier metadata files that are not deleted yet: an entry may name
    them at the archive's former location. `metadata` is the content of the file.
    """

    identifier: tuple[str, ...]
    location: str
    folder: str
    former: frozenset[str] = frozenset()
    metadata: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """The entry's name, with dots."""
        return ".".join(self.identifier)


@dataclass(frozen=True)
class Entry:
    """An entry as it was found: the metadata file that it names, and what the catalog compares when it is changed."""

    location: str
    version: Any = None


class Entries(Protocol):
    """The entries of an open catalog. Methods may raise anything; `translate_errors` is around them."""

    def find(self, wanted: Wanted) -> Entry | None:
        """Return the entry; None if there is none."""
        ...

    def create(self, wanted: Wanted) -> None:
        """Create the entry, and its namespace if that is missing."""
        ...

    def replace(self, found: Entry, wanted: Wanted) -> None:
        """Let the entry name this table if it still is as it was found. Raises ForeignEntryError if it is not."""
        ...

    def remove(self, found: Entry, wanted: Wanted) -> None:
        """Remove the entry, and no file. Raises CatalogUnfitError if the catalog may delete files then."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def check_ours(location: str, wanted: Wanted) -> None:
    """Raise ForeignEntryError unless this archive has made that metadata file; pure.

    Its own files have names that no other program gives, in the table's folder; those of the time before the archive
    was moved are known by their paths.
    """
    folder, _, name = location.rpartition("/")
    ours = folder == f"{wanted.folder}/metadata" and _OUR_NAME.fullmatch(name)
    if not ours and not any(location.endswith(f"/{path}") for path in wanted.former):
        raise ForeignEntryError(
            f"{wanted.name} in the catalog names {location or 'no metadata'}, which this archive did not write: it was"
            f" left as it is. If the archive shall have this entry, run: {TAKE_OVER}; otherwise set another namespace"
            " or table in [table.catalog]"
        )


def is_later(location: str, wanted: Wanted) -> bool:
    """Return whether a metadata file of this archive is of a later table than the wanted one; pure.

    A call of a leader may end after its term, when its successor has set the entry already: then both the number and
    the term are not lower. If only one of them is, the archive or its bucket of heads was restored to an earlier state.
    """
    found, mine = (_OUR_NAME.fullmatch(one.rpartition("/")[2]) for one in (location, wanted.location))
    return bool(found and mine and int(found[1]) >= int(mine[1]) and int(found[2]) >= int(mine[2]))


@contextlib.contextmanager
def translate_errors(address: Address) -> Iterator[None]:
    """Raise CatalogError, or ConfigError, instead of what pyiceberg and the drivers below it raise."""
    try:
        yield
    except (CatalogError, ConfigError) as error:
        error.args = (address.hide_secrets(str(error)),)  # it may say what the catalog has answered
        raise
    except Exception as error:
        raise _translate(address, error) from error


def _translate(address: Address, error: Exception) -> Exception:
    text = address.quote(error)
    if isinstance(error, ModuleNotFoundError | iceberg.NotInstalledError):
        return ConfigError(f"{address} needs a package: {text}; {how_to_install('catalogs')}")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, _REFUSED) or status in (401, 403) or _is_refusal_of_aws(error):
        return CatalogRefusedError(f"{address} refuses this node: {text}; check the credentials and permissions there")
    if isinstance(error, SSLError):
        return CatalogAwayError(f"{address} is not trusted: {text}; set ca in [table.catalog] to its authority")
    if isinstance(error, _AWAY) or _is_absence(error):
        return CatalogAwayError(f"{address} does not answer: {text}")
    return CatalogError(f"{address} can't be used: {type(error).__name__}: {text}")


def _describe(error: Exception) -> str:
    """Return what an error says. pydantic's shows the input, in which secrets of others may be: only the fields."""
    if isinstance(error, ValidationError):
        fields = dict.fromkeys(".".join(map(str, one["loc"])) or "the whole answer" for one in error.errors())
        return f"its answer is not as the protocol says, in {', '.join(fields)[:LONGEST_READ]}"
    reason = getattr(error.args[0], "reason", None) if error.args else None  # of requests: what urllib3 says at last
    text = str(getattr(error, "orig", None) or (reason if isinstance(reason, Exception) else error))
    return _POOL.sub("", text)[:LONGEST_READ]


def _find_secrets(properties: dict[str, str]) -> set[str]:
    """Return the secrets among the properties, in each form in which a program may repeat them."""
    found = {value for name, value in properties.items() if _SECRET.search(name)}
    found |= {match[1] for value in properties.values() if (match := _USER.search(value))}
    found |= {value for url in properties.values() for name, value in _query_of(url) if _SECRET.search(name)}
    found |= {password for one in found if (password := one.partition(":")[2])}  # of a user, or of a client
    found |= {unquote(one) for one in found}
    forms = set(found)
    for one in found:
        forms |= {quote(one, safe=""), quote_plus(one), json.dumps(one)[1:-1], repr(one)[1:-1]}
        forms |= {encode(one.encode()).decode().rstrip("=") for encode in (b64encode, urlsafe_b64encode)}
    return forms - {""}


def _query_of(url: str) -> list[tuple[str, str]]:
    return parse_qsl(url.partition("?")[2])


def _is_refusal_of_aws(error: Exception) -> bool:
    aws = sys.modules.get("botocore.exceptions")  # not imported: the error is not its
    if aws is None:
        return False
    if isinstance(error, aws.NoCredentialsError | aws.PartialCredentialsError):
        return True
    return isinstance(error, aws.ClientError) and error.response.get("Error", {}).get("Code") in _REFUSALS


def _is_absence(error: Exception) -> bool:
    sql, aws = sys.modules.get("sqlalchemy.exc"), sys.modules.get("botocore.exceptions")
    return bool(
        (sql and isinstance(error, sql.OperationalError | sql.InterfaceError | sql.TimeoutError))
        or (aws and isinstance(error, aws.HTTPClientError | aws.ConnectionError))
    )


def create_namespace(catalog: Catalog, wanted: Wanted) -> None:
    """Create the namespace of an entry, level by level, unless it exists."""
    levels = wanted.identifier[:-1]
    if not catalog.namespace_exists(levels):
        for end in range(1, len(levels) + 1):
            catalog.create_namespace_if_not_exists(levels[:end])


def read_metadata(wanted: Wanted) -> Any:
    """Return the table's metadata."""
    return TableMetadataUtil.parse_raw(wanted.metadata.decode())
