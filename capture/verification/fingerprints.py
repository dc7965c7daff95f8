"""Large sets of texts in 8 bytes each: which objects exist, and which were checked."""

from __future__ import annotations

from array import array
from bisect import bisect_left

from capture.archive.manifest import BLOCKS, TABLE, list_blocks
from capture.stores.contract import Listing, Store, list_in_parts

BUCKETS = 256


class Fingerprints:
    """A set that keeps only 64 bits of each thing: `hash`, which differs from process to process.

    A thing that is not in a set of a million seems to be in it with a probability of 5 in 10^14.
    """

    def __init__(self) -> None:
        self._buckets = [array("q") for _ in range(BUCKETS)]
        self._in_order = True

    def __repr__(self) -> str:
        return f"Fingerprints({len(self):,})"

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def add(self, thing: object) -> None:
        """Add a thing. The next question sorts the set, so add many before it."""
        number = hash(thing)
        self._buckets[number % BUCKETS].append(number)
        self._in_order = False

    def __contains__(self, thing: object) -> bool:
        if not self._in_order:
            self._buckets = [array("q", sorted(one)) for one in self._buckets]
            self._in_order = True
        number = hash(thing)
        bucket = self._buckets[number % BUCKETS]
        place = bisect_left(bucket, number)
        return place < len(bucket) and bucket[place] == number


class Existing:
    """The objects of a store by one listing, in 16 bytes each."""

    def __init__(self) -> None:
        self._paths, self._sizes = Fingerprints(), Fingerprints()
        self._outside = False

    def __repr__(self) -> str:
        return f"Existing({len(self._paths):,} objects)"

    @classmethod
    async def read(cls, store: Store) -> Existing:
        """List `blocks/` and `table/`. StoreError."""
        found = cls()
        for folder in (BLOCKS, TABLE):
            async for part in list_in_parts(store, folder):
                found._add(part)
        return found

    async def include_outside(self, store: Store) -> None:
        """List the blocks outside of `blocks/`, too, once. Memory holds the whole listing meanwhile. StoreError."""
        if not self._outside:
            self._add([one for one in await list_blocks(store, outside=True) if not one.path.startswith(BLOCKS)])
            self._outside = True

    def _add(self, listed: Listing) -> None:
        for one in listed:
            self._paths.add(one.path)
            self._sizes.add((one.path, one.bytes))

    def has(self, path: str) -> bool:
        """Return whether an object exists."""
        return path in self._paths

    def has_size(self, path: str, size: int) -> bool:
        """Return whether an object exists and has this size."""
        return (path, size) in self._sizes
