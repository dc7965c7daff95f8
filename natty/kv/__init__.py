"""Key-value buckets: create, read, write and watch their keys."""

from natty.kv.bucket import Bucket
from natty.kv.bucket_config import bucket_settings, make_bucket
from natty.kv.entry import BucketStatus, Entry, Gone, PictureComplete
from natty.kv.handles import Handles, create_bucket, delete_bucket, list_buckets
from natty.kv.key_names import BadKeyError
from natty.kv.watch import Event, Watch, WatchOptions, WatchSettings

__all__ = [
    "BadKeyError",
    "Bucket",
    "BucketStatus",
    "Entry",
    "Event",
    "Gone",
    "Handles",
    "PictureComplete",
    "Watch",
    "WatchOptions",
    "WatchSettings",
    "bucket_settings",
    "create_bucket",
    "delete_bucket",
    "list_buckets",
    "make_bucket",
]
