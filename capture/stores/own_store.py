"""A store of the user, "module:function": made from its URL, kept to the contract, with a folder for each archive."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode

from capture.errors import CaptureError, ConfigError, StoreError
from capture.stores.contract import Listing, ObjectInfo, Store, check_path, check_prefix, check_range
from capture.stores.deletion import DeletesMany
from capture.stores.plugin import FAULTS, check_has, check_not_pythons, ends_task, is_plugin, make_plugin

HIDDEN = "***"
METHODS = ("put", "get", "get_range", "list", "delete", "remove_leftovers")


def is_own(url: str) -> bool:
    """Return whether a URL names a function of the user that returns a store: "module:function/folder?name=value"."""
    return is_plugin(url.partition("?")[0].partition("/")[0]) is not None


def hide_values(url: str) -> str:
    """Return a URL with the names of the settings in its query, and without their values, which may be secret."""
    plain, mark, query = url.partition("?")
    return plain + mark + "&".join(f"{part.partition('=')[0]}={HIDDEN}" for part in query.split("&") if part)


def shown(url: str) -> str:
    """Return a configured URL for messages: that of a user's store without the values of its settings."""
    return hide_values(url) if is_own(url) else url


def opening_url(store: Store) -> str:
    """Return the URL with which other processes open this store: in messages and records use `store.url`."""
    return store.full_url if isinstance(store, OwnStore) else store.url


def open_own(url: str) -> OwnStore:
    """Return the store of a URL "module:function/folder?name=value".

    The function is called with the values of the query as keyword arguments, all of them texts, and returns a `Store`.
    Paths of the result are below the folder, which the function does not get. ConfigError if the function can't be
    loaded, does not take these arguments, raises, or returns something else.
    """
    plain, _, query = url.partition("?")
    spec, _, folder = plain.partition("/")
    try:
        settings = read_query(query)
    except ConfigError as error:
        raise ConfigError(f"{plain}: {error}") from None
    if HIDDEN in settings.values():
        raise ConfigError(f"{plain}: the values of this URL are hidden: write them in the place of {HIDDEN}")
    prefix = unquote(folder.strip("/"))
    if prefix:
        try:
            check_path(prefix)
        except StoreError as error:
            raise ConfigError(f"{plain}: {error}") from error
    check_not_pythons(spec, "store")
    return OwnStore(make_plugin(spec, "store", needs=METHODS, settings=settings), url, prefix)


def read_query(query: str) -> dict[str, str]:
    """Return the values in the query of a store's URL, by name. ConfigError if a name has no value, or several."""
    try:
        values = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise ConfigError("the text after the ? is not name=value&name=value") from None
    if repeated := [name for name, count in Counter(name for name, _ in values).items() if count > 1]:
        raise ConfigError(f"the text after the ? has {', '.join(repeated)} more than once")
    return dict(values)


def join_settings(url: str, settings: dict[str, Any]) -> str:
    """Return the URL of a user's store with these further settings in its query. ConfigError if one is not a value."""
    for name, value in settings.items():
        if not isinstance(value, str | int | float):
            raise ConfigError(f"[store]: `{name}` is not a text, number or truth value, but {type(value).__name__}")
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    return f"{url}{'&' if '?' in url else '?'}{urlencode(texts, safe=':/', quote_via=quote)}" if texts else url


def guard(store: Store) -> Store:
    """Return a user's store behind `OwnStore`, and one of capture's own as it is. ConfigError if it is not a store."""
    return store if type(store).__module__.startswith("capture.stores.") else OwnStore(store)


class OwnStore:
    """A user's store behind the contract of `Store`.

    Every path is checked before the user's store gets it. An exception that is not a CaptureError becomes a StoreError
    with the name of the operation and the path, so that it is retried and reported as one of a store of ours.

    `url` is for messages and records: it hides the values of settings. `full_url` has them.
    """

    def __init__(self, inner: Store, url: str = "", prefix: str = "") -> None:
        """`url` opens this store in other processes; default: the `url` of `inner`. ConfigError if neither is given."""
        check_has(inner, METHODS if url else (*METHODS, "url"), "store is a")
        self.full_url: str = url or inner.url
        if not isinstance(self.full_url, str):
            kind = type(self.full_url).__name__
            raise ConfigError(f"store is a {type(inner).__name__}, whose url is {kind}, not a text")
        self.url = hide_values(self.full_url)
        self._inner = inner
        self._prefix = f"{prefix}/" if prefix else ""
        self.deletes_at_once: int = self._find_deletes_at_once()

    def _find_deletes_at_once(self) -> int:
        """Return how many objects one request of the user's store deletes. ConfigError if it can't be so."""
        most = getattr(self._inner, "deletes_at_once", 1)
        kind = type(self._inner).__name__
        if type(most) is not int or most < 1:
            raise ConfigError(f"store is a {kind}, whose deletes_at_once is {most!r}, not a number of objects")
        if most > 1 and not callable(getattr(self._inner, "delete_many", None)):
            raise ConfigError(f"store is a {kind} with deletes_at_once = {most} and without delete_many: add it")
        return most

    def __repr__(self) -> str:
        return f"OwnStore({self.url!r}, a {type(self._inner).__name__})"

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """As in the contract."""
        async with self._name_failure("put", path):
            await self._inner.put(self._prefix + check_path(path), data, if_absent=if_absent)

    async def get(self, path: str) -> bytes:
        """As in the contract."""
        async with self._name_failure("get", path):
            return await self._inner.get(self._prefix + check_path(path))

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """As in the contract."""
        check_range(start, length)
        async with self._name_failure("get_range", path):
            return await self._inner.get_range(self._prefix + check_path(path), start, length)

    async def list(self, prefix: str = "") -> Listing:
        """As in the contract."""
        async with self._name_failure("list", prefix):
            found = await self._inner.list(self._prefix + check_prefix(prefix))
            return [ObjectInfo(one.path.removeprefix(self._prefix), one.bytes, one.modified) for one in found]

    async def delete(self, path: str) -> None:
        """As in the contract."""
        async with self._name_failure("delete", path):
            await self._inner.delete(self._prefix + check_path(path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        """As in `DeletesMany`, if the user's store has it."""
        inner = cast("DeletesMany", self._inner)
        async with self._name_failure("delete_many", f"of {len(paths):,} objects"):
            await inner.delete_many([self._prefix + check_path(path) for path in paths])

    async def remove_leftovers(self, older_than_seconds: float, now: float) -> int:
        """As in the contract. Leftovers of all folders of the user's store are removed."""
        async with self._name_failure("remove_leftovers", ""):
            return await self._inner.remove_leftovers(older_than_seconds, now)

    @asynccontextmanager
    async def _name_failure(self, operation: str, path: str) -> AsyncIterator[None]:
        try:
            yield
        except CaptureError:
            raise
        except FAULTS as error:
            if ends_task(error):
                raise
            where = f"{operation} {path}".strip()
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise StoreError(f"{where} failed in the store {self.url.partition('?')[0]}: {what}") from error
