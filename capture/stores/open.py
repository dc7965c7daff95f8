from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from capture.errors import ConfigError
from capture.stores.address import SCHEMES, Address
from capture.stores.contract import Store
from capture.stores.file import FileStore
from capture.stores.memory import MemoryStore

KNOWN = "file:///folder, a plain path, s3://bucket/prefix, az://container/prefix, gs://bucket/prefix, memory://name"
_memory: dict[str, MemoryStore] = {}


def open_store(url: str | Path | Store) -> Store:
    """Return the store of this URL: `file:///folder`, a plain path, or `memory://name` (one a name and process).

    `file:///folder?private=true` makes files that the user alone may read.

    A Path is a folder; a store is returned as it is.

    Or an object store, as `capture.stores.address.Address` says: `s3://bucket/prefix?endpoint=…`, `az://`, `gs://`.
    ConfigError if the URL is of no kind that this version knows. Nothing is created or asked before the first call.
    """
    if isinstance(url, Path):
        return FileStore(url)
    if not isinstance(url, str):
        return url
    if not url:
        raise ConfigError(f"no store was named; known are {KNOWN}")
    if "://" not in url:
        if ":" in url.partition("/")[0]:  # `s3:bucket`, or `module:function` as other settings take it
            raise ConfigError(f"{url!r} is no store; known are {KNOWN}. Write ./{url} for a folder of that name")
        return FileStore(url)
    if url.partition("://")[0] in SCHEMES:
        try:
            from capture.stores.object import ObjectStore  # the only way to obstore: 16 MB that folders don't need
        except ModuleNotFoundError as error:
            raise ConfigError(f'object stores need {error.name}; run: pip install "natty-nats[capture]"') from error
        return ObjectStore(Address.parse(url))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"the store is named by no URL: {error}") from None
    if parts.scheme == "memory":
        name = url.partition("://")[2]
        return _memory.setdefault(name, MemoryStore(name))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"{url!r} names a host or a relative folder; write file:///folder, with three slashes")
        if parts.query not in ("", "private=true", "private=false"):
            raise ConfigError(f"{url!r}: behind the ? of a folder's URL stands private=true, or nothing")
        return FileStore(url2pathname(parts.path), private=parts.query == "private=true")
    raise ConfigError(f"{parts.scheme}:// is no kind of store that this version knows; known are {KNOWN}")
