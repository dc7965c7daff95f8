"""Making, deleting and listing buckets, and the handles of those that a client uses."""

from __future__ import annotations

from typing import Unpack

from cachetools import LRUCache

from natty.errors import BucketNotFoundError
from natty.jetstream import JetStream
from natty.kv.bucket import Bucket
from natty.kv.bucket_config import make_bucket
from natty.kv.key_names import check_bucket
from natty.streams import BucketConfig

KEPT = 1000  # handles


async def create_bucket(jetstream: JetStream, bucket: str, **settings: Unpack[BucketConfig]) -> Bucket:
    """Make the bucket if there is none, and return its handle; settings and errors are those of `make_bucket`."""
    await make_bucket(jetstream, bucket, **settings)
    return Bucket(jetstream, bucket)


async def delete_bucket(jetstream: JetStream, bucket: str) -> None:
    """Delete the bucket and all in it; a missing one is no error."""
    try:
        await jetstream.request(f"STREAM.DELETE.KV_{check_bucket(bucket)}")
    except BucketNotFoundError:
        return


async def list_buckets(jetstream: JetStream) -> list[str]:
    """Return the names of all buckets, sorted."""
    found: list[str] = []
    while True:
        answer = await jetstream.request("STREAM.NAMES", {"subject": "$KV.>", "offset": len(found)})
        names = answer["streams"] or []
        found += names
        if not names or len(found) >= answer["total"]:
            return sorted(name.removeprefix("KV_") for name in found if name.startswith("KV_"))


class Handles:
    """The handles of the buckets that a client uses, by name. Nothing is asked of the server."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._kept: LRUCache[str, Bucket] = LRUCache(KEPT)

    def __repr__(self) -> str:
        return f"Handles({len(self._kept)} kept)"

    def __getitem__(self, name: str) -> Bucket:
        """Return the handle of a bucket, whether there is one on the server or not. BadKeyError."""
        bucket = self._kept.get(name)
        if bucket is None:
            bucket = self._kept[name] = Bucket(self._jetstream, name)
        return bucket
