"""The contract of a store: durable objects by path."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, cast

from capture.errors import StoreError
from natty.wire.background import Ahead

SCRATCH = ".tmp"
"""The hidden folder of unfinished objects. It holds no objects, and no listing shows it."""

REQUESTS_AT_ONCE = 16
"""Concurrent requests to a store: each spends most of its time waiting for the network."""

AHEAD_OBJECTS = 32
AHEAD_BYTES = 16 << 20
"""The limits of objects that `read_ahead` fetches before they are needed; one larger object is fetched all the same."""

_PART = r"(?!\.\.?(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+"  # not "." or "..", only what every store keeps as it is

is_path = re.compile(rf"(?!{re.escape(SCRATCH)}(?:/|\Z)){_PART}(?:/{_PART})*").fullmatch
"""Return a match if a text names an object inside a store."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing: its path, its size, and when it was written (Unix seconds by the store's clock)."""

    path: str
    bytes: int
    modified: float


Listing = list[ObjectInfo]


class Store(Protocol):
    """Durable objects by path. Every implementation passes `capture.stores.conformance.check_store`.

    Paths are relative, separated by "/", and checked by `check_path`. Every method may raise StoreError:
    StoreFullError when the store is full, StoreUnreadableError when permissions or mounts are wrong, StoreUnfitError
    when the store can't keep this contract.

    Several calls run at once. Calls may come from several event loops, one after the other, in several threads; so a
    store keeps no connection that is bound to one loop.

    A store of a user ("module:function", or `Node(store=…)`) is used behind `capture.stores.OwnStore`, which checks
    paths for it and turns its other exceptions into StoreError. Of the errors above it must raise NotStoredError and
    AlreadyStoredError itself.
    """

    url: str
    """The URL with which `open_store` opens this store, in this process or another."""

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """Store `data`, or a copy of a local file. On return the object is durable and visible as a whole.

        With `if_absent` an existing object is left unchanged, is durable, and AlreadyStoredError is raised. If several
        callers create the same path at once, exactly one succeeds. Without `if_absent` the object is replaced
        atomically.
        """
        ...

    async def get(self, path: str) -> bytes:
        """Return the whole object. NotStoredError if it does not exist."""
        ...

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return up to `length` bytes from `start`, fewer at the object's end. NotStoredError if it does not exist."""
        ...

    async def list(self, prefix: str = "") -> Listing:
        """Return the objects whose path starts with this text, sorted by path; never an unfinished one."""
        ...

    async def delete(self, path: str) -> None:
        """Delete the object. Does nothing if it does not exist."""
        ...

    async def remove_leftovers(self, older_than_seconds: float, now: float) -> int:
        """Delete unfinished objects of killed writers that are older than this. Return their number."""
        ...


class ListsInParts(Protocol):
    """What a store of ours may have besides: it lists objects a part at a time. `list_in_parts` uses it.

    `capture.stores.conformance.check_store` tests it where it is there.
    """

    def list_parts(self, prefix: str = "") -> AsyncIterator[Listing]:
        """Yield the objects whose path starts with this text, in any order, each once; never an unfinished one."""
        ...


async def list_in_parts(store: Store, prefix: str = "") -> AsyncIterator[Listing]:
    """Yield the objects whose path starts with this text, in parts and in any order. StoreError as `Store.list`.

    A million objects take about 300 MB in one list. A part is small if the store has `list_parts`.
    """
    if hasattr(store, "list_parts"):
        async for part in cast("ListsInParts", store).list_parts(prefix):
            yield part
    else:
        yield await store.list(prefix)


class Sized(Protocol):
    """An object of a store, and its size."""

    @property
    def path(self) -> str:
        """Where it is in the store."""
        ...

    @property
    def bytes(self) -> int:
        """Its size."""
        ...


AnyObject = TypeVar("AnyObject", bound=Sized)


def read_ahead(store: Store, objects: Iterable[AnyObject] | AsyncGenerator[AnyObject, None]) -> Ahead[AnyObject, bytes]:
    """Return the objects with their bytes, AHEAD_OBJECTS and AHEAD_BYTES ahead."""
    return Ahead(
        objects,
        lambda one: store.get(one.path),
        most=AHEAD_OBJECTS,
        most_bytes=AHEAD_BYTES,
        size=lambda one: one.bytes,
    )


def check_path(path: str) -> str:
    """Return the path if it names an object inside a store, or raise StoreError."""
    if is_path(path):
        return path
    raise StoreError(
        f"{path!r} is not a path inside a store: relative, '/' between its parts, none of them '..', "
        f"no backslash, no control characters, nothing but text"
    )


def check_prefix(prefix: str) -> str:
    """Return the text that paths start with, if its folder is inside a store, or raise StoreError."""
    if "/" in prefix:
        check_path(prefix.rpartition("/")[0])
    return prefix


def check_range(start: int, length: int) -> None:
    """Raise ValueError on a range that can't be read."""
    if start < 0 or length < 0:
        raise ValueError(f"a range has no negative start or length: {start}, {length}")
