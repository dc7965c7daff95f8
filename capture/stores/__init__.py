"""Stores: where objects are kept, in a folder, in a bucket of S3, GCS or Azure, in memory, or in your own."""

from capture.stores.address import Address, store_url
from capture.stores.conformance import check_store
from capture.stores.contract import Listing, ObjectInfo, Store
from capture.stores.file import FileStore
from capture.stores.memory import MemoryStore
from capture.stores.open import open_store
from capture.stores.own_store import OwnStore

__all__ = [
    "Store",
    "ObjectInfo",
    "Listing",
    "open_store",
    "Address",
    "store_url",
    "FileStore",
    "MemoryStore",
    "OwnStore",
    "check_store",
]
