from __future__ import annotations

from collections.abc import Awaitable, Callable

from cachetools import LRUCache

from natty.errors import BucketNotFoundError
from natty.jetstream import JetStream
from natty.kv.bucket import Bucket
from natty.kv.bucket_config import create_bucket

KEPT = 1000  # handles


class Handles:
    """The buckets that a client uses, by name. Through it put and create make a missing bucket.

    Nothing is asked of the server before a write: a bucket that is not there, or not any more, shows by the write's
    answer.
    """

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._kept: LRUCache[str, Bucket] = LRUCache(KEPT)

    def __getitem__(self, name: str) -> Bucket:
        """Return the handle of a bucket, whether there is one on the server or not. BadKeyError."""
        bucket = self._kept.get(name)
        if bucket is None:
            bucket = self._kept[name] = Bucket(self._jetstream, name)
        return bucket

    async def put(self, bucket: str, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """As `Bucket.put`; makes the bucket with the default settings if it is missing."""
        return await self._write(bucket, lambda one: one.put(key, value, ttl=ttl))

    async def create(self, bucket: str, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """As `Bucket.create`; makes the bucket with the default settings if it is missing."""
        return await self._write(bucket, lambda one: one.create(key, value, ttl=ttl))

    async def _write(self, bucket: str, write: Callable[[Bucket], Awaitable[int]]) -> int:
        try:
            return await write(self[bucket])
        except BucketNotFoundError:
            await create_bucket(self._jetstream, bucket)
            return await write(self[bucket])
