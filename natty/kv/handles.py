"""Create, delete and list buckets, and keep the handles of the buckets that a client uses."""

from __future__ import annotations

from typing import Unpack

from cachetools import LRUCache

from natty.errors import BucketNotFoundError
from natty.jetstream import JetStream
from natty.kv.bucket import Bucket
from natty.kv.bucket_config import make_bucket
from natty.kv.key_names import check_bucket
from natty.streams import BucketConfig
from natty.streams.listing import stream_names

KEPT = 1000  # handles


async def create_bucket(jetstream: JetStream, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
    """Create the bucket if it does not exist, and return its handle; settings and errors as for `make_bucket`."""
    await make_bucket(jetstream, bucket, **settings)
    return Bucket(jetstream, bucket)


async def delete_bucket(jetstream: JetStream, bucket: str) -> None:
    """Delete the bucket and all its keys; a missing bucket is not an error."""
    try:
        await jetstream.request(f"STREAM.DELETE.KV_{check_bucket(bucket)}")
    except BucketNotFoundError:
        return


async def list_buckets(jetstream: JetStream) -> list[str]:
    """Return the names of all buckets, sorted."""
    names = await stream_names(jetstream, subject="$KV.>")
    return [name.removeprefix("KV_") for name in names if name.startswith("KV_")]


class Handles:
    """The handles of the buckets that a client uses, by name. Sends no requests."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._handles: LRUCache[str, Bucket] = LRUCache(KEPT)

    def __repr__(self) -> str:
        return f"Handles({len(self._handles)} kept)"

    def __getitem__(self, name: str) -> Bucket:
        """Return the handle of a bucket, even if the bucket does not exist on the server. BadKeyError."""
        bucket = self._handles.get(name)
        if bucket is None:
            bucket = self._handles[name] = Bucket(self._jetstream, name)
        return bucket
