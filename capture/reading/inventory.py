"""The objects of an archive at one moment, read from its indexes as they are needed: a list of all may be large."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, TypeVar

from capture.archive.index.contents import Indexes, scan_from
from capture.archive.index.page import Entry, Page, Ref
from capture.archive.index.tree import ALL, Index, Where
from capture.archive.index.version import Version
from capture.archive.manifest import Indexed, Manifest, Stored
from capture.archive.picture import Picture, find_held, find_unadopted
from capture.archive.sequences import Sequences
from capture.archive.trust import NO_CHECKS, Trust, read_trusted_documents
from capture.errors import ManifestError
from capture.maintenance.sweep import find_existing, read_entries
from capture.stores.contract import REQUESTS_AT_ONCE, Store
from natty.wire.background import Ahead, cancel_all, map_concurrently

Item = TypeVar("Item", Stored, Ref)

AHEAD = 8
"""Pages of an index that are read before they are needed."""


class Choose(Protocol):
    """Returns those of some objects, or of some pages of an index, that may have what is looked for."""

    def __call__(self, items: Sequence[Item], /) -> list[Item]:
        """Return them in their order."""
        ...


class Inventory:
    """The objects of a picture, whose documents need not have them in their lists, and blocks that wait for a sweep.

    `trust` checks each object before it is returned: CipherError. The methods raise ManifestError if a page of an index
    is missing, was changed or is damaged, and StoreError. Pages are deleted a grace time after they were replaced: then
    `renew`, if there is one, returns the archive as it is now.
    """

    def __init__(
        self,
        store: Store,
        picture: Picture,
        waiting: Iterable[Stored] = (),
        *,
        trust: Trust = NO_CHECKS,
        renew: Callable[[], Awaitable[Inventory]] | None = None,
    ) -> None:
        self.renew = renew
        self._indexes = Indexes(store)
        self._picture, self._waiting, self._trust = picture, list(waiting), trust

    def __repr__(self) -> str:
        return f"Inventory({self.count():,} objects)"

    def count(self) -> int:
        """Return about how many objects there are; consumed blocks, which are not returned, count."""
        stream, found = self._picture.where.stream, len(self._waiting)
        for _, document in self._documents():
            totals = document.index.streams
            chosen = totals.values() if stream is None else [totals[stream]] if stream in totals else []
            found += len(document.listed) + sum(one.objects for one in chosen)
        return found

    @property
    def removed(self) -> Mapping[str, Sequences]:
        """The sequences that retention has removed, by stream."""
        return self._picture.removed

    async def scan(self, where: Where = ALL) -> AsyncGenerator[list[Stored], None]:
        """Yield the objects that `where` finds, a leaf at a time: blocks, files, then the blocks that wait."""
        for parts in (self.scan_blocks(where), self.scan_files(where), self.scan_waiting(where)):
            async with aclosing(parts):
                async for part in parts:
                    yield part

    async def scan_waiting(self, where: Where = ALL) -> AsyncGenerator[list[Stored], None]:
        """Yield the blocks that `where` finds and that wait for a sweep."""
        found = [one for one in self._waiting if self._narrow(where).finds(one)]
        self._trust.check_objects(found)
        yield found

    async def scan_blocks(self, where: Where = ALL) -> AsyncGenerator[list[Stored], None]:
        """Yield the adopted blocks that `where` finds and whose rows the table does not hold, a leaf at a time."""
        consumed = self._picture.table.consumed_paths
        async for part in scan_from(self._indexes.blocks, self._picture.manifest, self._narrow(where)):
            found = [one for one in part if one.path not in consumed]
            self._trust.check_objects(found)
            yield found

    async def scan_files(self, where: Where = ALL) -> AsyncGenerator[list[Stored], None]:
        """Yield the table's files that `where` finds, a leaf at a time."""
        async for part in scan_from(self._indexes.files, self._picture.table, self._narrow(where)):
            self._trust.check_objects(part)
            yield part

    async def list_in_order(self, where: Where = ALL) -> AsyncGenerator[Stored, None]:
        """Yield the objects that `where` finds in order of their first sequences, and of their paths.

        Memory holds the leaves whose ranges of sequences overlap: of hourly objects those of about an hour.
        """
        loop = asyncio.get_running_loop()

        def complete(found: tuple[Index | None, Stored]) -> Awaitable[Stored]:
            index, one = found
            if index is not None and isinstance(one, Entry) and one.apart:
                return index.whole(one)
            ready = loop.create_future()  # costs less than a task
            ready.set_result(one)
            return ready

        async with aclosing(aiter(Ahead(self._find_in_order(self._narrow(where)), complete, most=AHEAD))) as objects:
            async for _, one in objects:
                self._trust.check_objects([one])
                yield one

    async def select(self, choose: Choose) -> list[Stored]:
        """Return the objects that `choose` takes, and whose pages it takes: it may take more than it needs."""
        where = self._narrow(ALL)
        consumed = self._picture.table.consumed_paths
        found: list[Stored] = choose([one for one in self._waiting if where.finds(one)])
        for index, document in self._documents():
            entries: list[Stored] = list(document.listed)
            names = [document.index.root] if document.index.root and not entries else []
            index.admit(document.index)
            while names:
                pages = await map_concurrently(names, index.page, at_once=REQUESTS_AT_ONCE)
                entries += [one for page in pages for one in page.entries]
                names = [one.page for page in pages for one in choose([*filter(where.admits, page.children)])]
            kept = [one for one in entries if one.path not in consumed and where.finds(one)]
            found += await map_concurrently(choose(kept), partial(_complete, index), at_once=REQUESTS_AT_ONCE)
        self._trust.check_objects(found)
        return found

    async def find_held(self, stream: str) -> Sequences:
        """Return the sequences that the objects of a stream hold, by the sums beside the indexes."""
        picture, found = self._picture, [Sequences.from_bytes(one.sequences) for one in self._waiting]
        if picture.table.consumed:  # the manifest counts them still, and retention may have removed what replaced them
            async for part in self.scan_blocks(Where(stream=stream)):
                found.append(Sequences.union_of(Sequences.from_bytes(one.sequences) for one in part))
            picture = replace(picture, manifest=Manifest())
        return Sequences.union_of([*found, await find_held(self._indexes, picture, stream)])

    def _narrow(self, where: Where) -> Where:
        stream = self._picture.where.stream
        return where if stream is None else replace(where, stream=stream)

    def _documents(self) -> list[tuple[Index, Indexed]]:
        return [(self._indexes.blocks, self._picture.manifest), (self._indexes.files, self._picture.table)]

    async def _find_in_order(self, where: Where) -> AsyncGenerator[tuple[Index | None, Stored], None]:
        consumed, number, pages = self._picture.table.consumed_paths, count(), _Pages(where)
        objects: list[tuple[int, str, int, Index | None, Stored]] = []

        def add(index: Index | None, found: Iterable[Stored]) -> None:
            for one in found:
                if one.path not in consumed and where.finds(one):
                    heappush(objects, (one.first, one.path, next(number), index, one))

        add(None, self._waiting)
        for index, document in self._documents():
            add(None, document.listed)
            if not document.listed:
                pages.add_root(index, document.index)
        try:
            while objects or pages:
                if pages and (not objects or pages.first <= objects[0][0]):
                    index, page = await pages.open_first()
                    add(index, page.entries)
                else:
                    *_, found_in, one = heappop(objects)
                    yield found_in, one
        finally:
            await pages.close()


class _Pages:
    """Pages to open in order of the lowest sequence below them; AHEAD are read before they are needed."""

    def __init__(self, where: Where) -> None:
        self._where, self._number = where, count()
        self._waiting: list[tuple[int, int, Index, bytes, int | None]] = []
        self._ahead: list[tuple[int, int, Index, asyncio.Task[Page]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ahead)

    @property
    def first(self) -> int:
        """The lowest sequence below the next page. There must be one."""
        return min(heap[0][0] for heap in (self._waiting, self._ahead) if heap)

    def add_root(self, index: Index, version: Version) -> None:
        """Add the root of a version, if it is not empty."""
        index.admit(version)
        if version.root:
            heappush(self._waiting, (0, next(self._number), index, version.root, None))

    async def open_first(self) -> tuple[Index, Page]:
        """Return the next page, and add its children. ManifestError; StoreError."""
        while self._waiting and (len(self._ahead) < AHEAD or self._waiting[0][:2] < self._ahead[0][:2]):
            first, number, index, name, level = heappop(self._waiting)
            heappush(self._ahead, (first, number, index, asyncio.create_task(index.page(name, level))))
        *_, index, task = heappop(self._ahead)
        page = await task
        for one in filter(self._where.admits, page.children):
            heappush(self._waiting, (one.first, next(self._number), index, one.page, page.level - 1))
        return index, page

    async def close(self) -> None:
        """Cancel the reads in flight."""
        await cancel_all(task for *_, task in self._ahead)


async def _complete(index: Index, one: Stored) -> Stored:
    return await index.whole(one) if isinstance(one, Entry) and one.apart else one


async def take_inventory(store: Store, stream: str = "", *, trust: Trust = NO_CHECKS) -> Inventory:
    """Return the objects of a stream, or of all, by the newest documents in the store. Raises as `merge.make_look`."""
    _, inventory, unreadable = await take_partial_inventory(store, stream, trust=trust)
    if unreadable:
        raise ManifestError(unreadable[0])
    return inventory


async def take_partial_inventory(
    store: Store, stream: str = "", *, trust: Trust = NO_CHECKS
) -> tuple[Picture, Inventory, list[str]]:
    """Return the picture, its objects with the blocks that wait for a sweep, and a problem for each unreadable entry.

    Otherwise as `take_inventory`.
    """
    entries, unreadable = await read_entries(store)  # before the picture: see there
    picture = await read_trusted_documents(store, None, None, trust, Where(stream=stream or None))
    waiting = await find_existing(store, await find_unadopted(Indexes(store), picture, entries))
    waiting.sort(key=lambda one: one.path)
    return picture, Inventory(store, picture, waiting, trust=trust), unreadable
