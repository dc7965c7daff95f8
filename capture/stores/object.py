"""A store that keeps objects in a bucket of S3, Azure or Google."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio import to_thread
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import uuid4

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from capture.errors import AlreadyStoredError, NotStoredError, StoreError, StoreUnfitError
from capture.stores.address import Address
from capture.stores.contract import (
    REQUESTS_AT_ONCE,
    SCRATCH,
    Listing,
    ObjectInfo,
    check_path,
    check_prefix,
    check_range,
)
from capture.stores.object_client import Client, client
from capture.stores.refusals import NO_BUCKET, answer, refusal
from natty.wire.background import map_concurrently

SLOWEST = 1024 * 1024
"""Bytes per second. An object may take its size divided by this, in addition to the store's timeout."""
LARGEST_BYTES = 5000 * 1024 * 1024
"""The limit of one request to Azure; S3 takes 5 GiB. Objects are never put in parts."""
DELETES_AT_ONCE = {"s3": 1000, "az": 256}
"""The most objects that one request deletes; Google has no such request."""
NO_SUCH_REQUEST = {400, 404, 405, 411, 501}
"""Statuses with which servers refuse a request that they do not know."""
PAGE = 1000  # objects of a listing at a time: the most that S3 returns in one answer
IGNORES_CONDITIONS = (
    "{} ignores conditional puts: it replaced an object that was to be created only if absent (If-None-Match: *). "
    "Nodes would overwrite each other's objects there: use a store that keeps the condition, such as S3, Azure Blob "
    "Storage, Google Cloud Storage, MinIO, Ceph or SeaweedFS"
)
MARK = "putid"
"""The name of the metadata that identifies the put of an object. Azure allows letters and digits."""


class ObjectStore:
    """Objects in a bucket of S3, Azure or Google, or on an S3-compatible server, accessed with obstore.

    An object is put by one conditional request, never in parts, so no unfinished objects are visible or cost money. The
    store must refuse to create an object that exists; the first put of each ObjectStore tests that. Each created object
    carries a mark and is looked up afterwards. So a store that reports success and did not store the object causes an
    error, and a put that the driver repeated, because the first answer was lost, is recognised as our own.
    """

    def __init__(self, address: Address) -> None:
        self.url = address.text
        self._address = address
        self._client = client(address, os.environ)
        self._deleting: Client | None = None
        self.deletes_at_once = DELETES_AT_ONCE.get(address.scheme, 1)
        self._trying = asyncio.Lock()
        self._tried = False

    async def put(self, path: str, data: bytes | Path, *, if_absent: bool = True) -> None:
        """As in the contract. After a StoreError the object may exist or not: the answer may have been lost."""
        check_path(path)
        content = await to_thread(_read, path, data) if isinstance(data, Path) else data
        _check_size(path, len(content))
        if if_absent:
            await self._check_conditions()
            await self._create(path, content)
        else:
            await self._replace(path, content)

    async def get(self, path: str) -> bytes:
        """As in the contract."""
        check_path(path)
        async with self._translate_errors(f"reading {path}") as deadline, self._expect_object(path):
            found = await obstore.get_async(self._client, path)
            deadline.reschedule(asyncio.get_running_loop().time() + self._longest(found.meta["size"]))
            return (await found.bytes_async()).to_bytes()

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        """As in the contract."""
        check_path(path)
        check_range(start, length)
        async with self._translate_errors(f"reading {path}", length), self._expect_object(path):
            try:
                return (await obstore.get_range_async(self._client, path, start=start, length=length)).to_bytes()
            except (BaseError, ValueError):  # stores, and the driver, refuse an empty range
                if length and start < (await obstore.head_async(self._client, path))["size"]:
                    raise
                return b""

    async def list(self, prefix: str = "") -> Listing:
        """As in the contract. Each page is read within the store's timeout."""
        found = [one async for part in self.list_parts(prefix) for one in part]
        return sorted(found, key=lambda one: one.path)

    async def list_parts(self, prefix: str = "") -> AsyncIterator[Listing]:
        """As in `ListsInParts`: each part is a page, read within the store's timeout."""
        folder = check_prefix(prefix).rpartition("/")[0]
        pages = obstore.list(self._client, folder or None, chunk_size=PAGE)
        while True:
            async with self._translate_errors(f"listing {prefix or 'everything'}"):
                page = await anext(pages, None)
            if page is None:
                return
            yield [
                ObjectInfo(one["path"], one["size"], one["last_modified"].timestamp())
                for one in page
                if one["path"].startswith(prefix) and not one["path"].startswith(f"{SCRATCH}/")
            ]

    async def delete(self, path: str) -> None:
        """As in the contract."""
        await self._delete(check_path(path))

    async def delete_many(self, paths: Sequence[str]) -> None:
        """Delete these objects by one request. If that fails, delete one by one, so that the error names the object.

        A server that does not know the request is not asked again.
        """
        for path in paths:
            check_path(path)
        if self.deletes_at_once == 1 or not await self._delete_together(paths):
            await map_concurrently(paths, self._delete, at_once=REQUESTS_AT_ONCE)

    async def _delete_together(self, paths: Sequence[str]) -> bool:
        """Return whether these objects were deleted by one request."""
        if self._deleting is None:
            self._deleting = client(self._address, os.environ, deletes_many=True)
        async with self._translate_errors(f"deleting {len(paths):,} objects"):
            try:
                await obstore.delete_async(self._deleting, list(paths))
                return True
            except TimeoutError:
                raise
            except Exception as error:  # on Azure one does not exist; the driver may fail at an answer it can't read
                if answer(error).status in NO_SUCH_REQUEST and not isinstance(error, FileNotFoundError):
                    self.deletes_at_once = 1
                return False

    async def remove_leftovers(self, older_than_seconds: float, now: float) -> int:
        """Delete the trial objects of killed processes. Puts leave no leftovers."""
        async with self._translate_errors("looking for leftovers"):
            listed = await obstore.list(self._client, SCRATCH).collect_async()
        old = [one["path"] for one in listed if one["last_modified"].timestamp() < now - older_than_seconds]
        await map_concurrently(old, self._delete, at_once=REQUESTS_AT_ONCE)
        return len(old)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url})"

    async def _create(self, path: str, content: bytes) -> None:
        mark, refused = uuid4().hex, False
        action = (
            "writing a trial object" if path.startswith(f"{SCRATCH}/") else f"writing {path}"
        )  # a trial has a random name
        async with self._translate_errors(action, len(content)):
            try:
                await obstore.put_async(
                    self._client, path, content, mode="create", use_multipart=False, attributes={MARK: mark}
                )
            except AlreadyExistsError:
                refused = True  # perhaps because of our own put, which the driver repeated
            found = await self._mark(path)
        if found == mark:
            return
        if found is None:  # the store's answer is false, or S3 reports a conflict with a concurrent write or delete
            said = "exists" if refused else "was stored"
            raise StoreError(f"{self._address.url} reported that {path} {said}, but it is missing: see the store's log")
        raise AlreadyStoredError(f"{path} exists in {self._address.url} and was not touched")

    async def _replace(self, path: str, content: bytes) -> None:
        async with self._translate_errors(f"writing {path}", len(content)):
            await obstore.put_async(self._client, path, content, use_multipart=False)

    async def _mark(self, path: str) -> str | None:
        """Return the mark of the object, "" if it has no mark; None if the object does not exist."""
        try:
            found = await obstore.get_async(self._client, path, options={"head": True})
        except FileNotFoundError:
            return None
        return str(found.attributes.get(MARK, ""))

    async def _delete(self, path: str) -> None:
        async with self._translate_errors(f"deleting {path}"):
            with contextlib.suppress(FileNotFoundError):
                await obstore.delete_async(self._client, path)

    async def _check_conditions(self) -> None:
        """Before the first create: create a trial object twice. StoreUnfitError if the store allows that."""
        async with self._trying:
            if self._tried:
                return
            path = f"{SCRATCH}/trial-{uuid4().hex}"
            await self._create(path, b"first")
            try:
                await self._create(path, b"second")
            except AlreadyStoredError:
                self._tried = True
            finally:
                await self._delete(path)
            if not self._tried:
                raise StoreUnfitError(IGNORES_CONDITIONS.format(self._address.url))

    @contextlib.asynccontextmanager
    async def _translate_errors(self, action: str, size: int = 0) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time, and translate the driver's errors."""
        try:
            async with asyncio.timeout(self._longest(size)) as deadline:
                yield deadline
        except (BaseError, OSError, ValueError) as error:
            raise refusal(error, action, self._address) from error

    def _longest(self, size: int) -> float:
        """Return the time limit, in seconds, for the transfer of `size` bytes."""
        return self._address.timeout + size / SLOWEST

    @contextlib.asynccontextmanager
    async def _expect_object(self, path: str) -> AsyncIterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if answer(error).code in NO_BUCKET:
                raise
            raise NotStoredError(f"there is no {path} in {self._address.url}") from None


def _read(path: str, source: Path) -> bytes:
    try:
        _check_size(path, source.stat().st_size)  # before it fills the memory
        return source.read_bytes()
    except OSError as error:
        raise StoreError(f"writing {path} failed, {source} can't be read: {error.strerror}") from error


def _check_size(path: str, size: int) -> None:
    if size > LARGEST_BYTES:
        raise StoreError(f"{path} has {size:,} bytes; an object has at most {LARGEST_BYTES:,}")
