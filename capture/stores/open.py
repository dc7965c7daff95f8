"""Opens the store of a URL."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from capture.errors import ConfigError
from capture.stores.address import SCHEMES, Address
from capture.stores.contract import Store
from capture.stores.file import FileStore
from capture.stores.memory import MemoryStore
from capture.stores.own_store import is_own, open_own
from capture.stores.plugin import is_missing, load_function
from natty.config.settings import redact
from natty.errors import how_to_install

KNOWN = (
    "file:///folder, a plain path, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix, memory://name, and"
    " your own as module:function"
)
MAIN = "__main__:"
"""The module of the program that was started: in another process it is another one."""
_memory: dict[str, MemoryStore] = {}


def open_store(url: str | Path | Store) -> Store:
    """Return the store of this URL. Nothing is created or contacted before its first method is called.

    - A folder: `file:///folder`, a plain path, or a Path. With `file:///folder?private=true` only the user may read
      the files.
    - An object store: `s3://bucket/prefix?endpoint=…`, `az://…`, `gs://…`; see `capture.stores.address.Address`.
    - `memory://name`: one store for each name in this process.
    - Your own: `module:function?name=value`; see `capture.stores.own_store.open_own`.

    A store is returned as it is. ConfigError if this version does not know the kind of the URL.
    """
    if isinstance(url, Path):
        return FileStore(url)
    if not isinstance(url, str):
        return url
    if not url:
        raise ConfigError(f"no store was named; supported are {KNOWN}")
    if "://" not in url.partition("?")[0]:
        return _open_without_scheme(url)
    if url.partition("://")[0] in SCHEMES:
        try:
            from capture.stores.object import ObjectStore  # the only import of obstore: 16 MB that folders don't need
        except ModuleNotFoundError as error:
            raise ConfigError(f"object stores need {error.name}; {how_to_install('capture')}") from error
        return ObjectStore(Address.parse(url))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the store's URL is not valid: {error}") from None
    if parts.scheme == "memory":
        name = url.partition("://")[2]
        return _memory.setdefault(name, MemoryStore(name))
    if parts.scheme == "file":
        plain = redact(url.partition("?")[0])
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"{plain!r} names a host or a relative folder; write file:///folder, with three slashes")
        if parts.query not in ("", "private=true", "private=false"):
            raise ConfigError(f"{plain!r}: the query of a folder's URL is private=true, or empty")
        return FileStore(url2pathname(parts.path), private=parts.query == "private=true")
    raise ConfigError(f"{parts.scheme}:// is not a kind of store that this version supports; supported are {KNOWN}")


def explain_unopenable(url: str) -> str:
    """Return why another process can't open a store by this URL; "" if it can. It makes and contacts no store."""
    plain = url.partition("?")[0]
    try:
        if is_own(url):
            load_function(plain.partition("/")[0], "store", ())
            return f"{plain} is in the program itself: write the store into a module" if url.startswith(MAIN) else ""
        if plain.partition("://")[0] in (*SCHEMES, "file"):
            open_store(url)
            return ""
    except ConfigError as error:
        return str(error)
    return f"its URL {plain!r} does not begin with file:///, s3://, az:// or gs://, and is not module:function"


def _open_without_scheme(url: str) -> Store:
    """Return the folder of a plain path, or the user's store. ConfigError."""
    plain = url.partition("?")[0]
    first = plain.partition("/")[0]
    if ":" not in first:
        return FileStore(url)
    kind, _, rest = plain.partition(":")
    if kind in (*SCHEMES, "file", "memory"):
        slashes = "///" if kind == "file" else "//"
        raise ConfigError(
            f"{plain!r} is not a store: write {kind}:{slashes}{rest.lstrip('/')}, or ./{plain} for a folder of that"
            f" name. Supported are {KNOWN}"
        )
    if not is_own(url):
        raise ConfigError(f"{plain!r} is not a store; supported are {KNOWN}. Write ./{plain} for a folder of that name")
    try:
        return open_own(url)
    except ConfigError as error:
        if is_missing(first.partition(":")[0], error.__cause__):
            raise ConfigError(f"{error}. Write ./{first} for a folder of that name") from error
        raise
