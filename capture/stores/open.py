from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import url2pathname

from capture.errors import ConfigError
from capture.stores.contract import Store
from capture.stores.file import FileStore
from capture.stores.memory import MemoryStore

KNOWN = "file:///folder, a plain path, memory://name"
_memory: dict[str, MemoryStore] = {}


def open_store(url: str) -> Store:
    """Return the store of this URL: `file:///folder`, a plain path, or `memory://name` (one a name and process).

    ConfigError if the URL is of no kind that this version knows. Nothing is created before the first `put`.
    """
    if not url:
        raise ConfigError(f"no store was named; known are {KNOWN}")
    if "://" not in url:
        return FileStore(url)
    parts = urlsplit(url)
    if parts.scheme == "memory":
        name = url.partition("://")[2]
        return _memory.setdefault(name, MemoryStore(name))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"{url!r} names a host or a relative folder; write file:///folder, with three slashes")
        return FileStore(url2pathname(parts.path))
    raise ConfigError(f"{parts.scheme}:// is no kind of store that this version knows; known are {KNOWN}")
