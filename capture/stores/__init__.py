"""Stores: where objects are kept, in a folder, in a bucket of S3, GCS or Azure, or in memory."""

from capture.stores.address import Address, store_url
from capture.stores.conformance import check_store
from capture.stores.contract import ObjectInfo, Store
from capture.stores.file import FileStore
from capture.stores.memory import MemoryStore
from capture.stores.open import open_store

__all__ = ["Store", "ObjectInfo", "open_store", "Address", "store_url", "FileStore", "MemoryStore", "check_store"]
