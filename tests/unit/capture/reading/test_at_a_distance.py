"""Readers wait for few answers of a store: small objects are fetched whole, and several of them together."""

import asyncio
from hashlib import sha256
from uuid import uuid4

import pytest
from archived import STREAM, store_block
from msgspec.structs import replace

from capture.archive import trust
from capture.archive.manifest import Manifest
from capture.archive.picture import Picture
from capture.archive.table import Table
from capture.archive.trust import check_contents
from capture.errors import FormatError, NotStoredError
from capture.reading import arrowfs
from capture.reading.arrowfs import AHEAD, SmallObjects
from capture.reading.duck import query
from capture.reading.merge import make_look
from capture.stores import MemoryStore
from capture.verification import objects as verification
from capture.verification.objects import read_archive

COUNT = 100


class Watched(MemoryStore):
    """Counts the ranges that are read, and how many at a time."""

    def __init__(self):
        super().__init__(uuid4().hex)
        self.asked, self.now, self.most = [], 0, 0

    async def get_range(self, path, start, length):
        self.asked.append(path)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().get_range(path, start, length)
        finally:
            self.now -= 1


@pytest.fixture
async def store():
    store = Watched()
    for number in range(1, COUNT + 1):
        await store_block(store, [number])
    return store


async def all_objects(store):
    return sorted(await make_look(store)(), key=lambda one: one.first)


async def test_a_query_reads_each_small_object_once_and_many_together(store):
    found = await all_objects(store)
    store.asked.clear()
    answer = await query(store, found, "SELECT count(*), sum(sequence), count(payload) FROM messages")
    assert answer.rows == [[COUNT, COUNT * (COUNT + 1) // 2, COUNT]]
    assert sorted(store.asked) == sorted(one.path for one in found)
    assert store.most >= AHEAD


async def test_large_objects_are_read_by_ranges(store, monkeypatch):
    found = await all_objects(store)
    monkeypatch.setattr(arrowfs, "SMALL_BYTES", found[0].bytes - 1000)
    store.asked.clear()
    assert (await query(store, found, "SELECT sum(sequence) FROM messages")).rows == [[COUNT * (COUNT + 1) // 2]]
    assert len(store.asked) > COUNT


async def test_ranges_of_small_objects_are_right_and_memory_has_a_limit(monkeypatch):
    monkeypatch.setattr(arrowfs, "KEPT_BYTES", 1000)
    store, sizes = Watched(), {}
    for number in range(200):
        await store.put(f"{number}", bytes([number]) * 10)
        sizes[f"{number}"] = 10
    async with SmallObjects(store, sizes) as ranges:
        for number in (*range(200), *range(199, -1, -7), *range(200)):
            assert await ranges.get_range(f"{number}", 3, 4) == bytes([number]) * 4
            assert await ranges.get_range(f"{number}", 8, 100) == bytes([number]) * 2
            assert 10 * len(ranges._kept) <= 1000
            assert len(ranges._coming) <= AHEAD + 1
    assert len(store.asked) < 800
    assert len(asyncio.all_tasks()) == 1


async def test_an_object_that_is_missing_is_named_when_it_is_read_and_not_before(store):
    found = await all_objects(store)
    await store.delete(found[5].path)
    sizes = {one.path: one.bytes for one in found}
    async with SmallObjects(store, sizes) as ranges:
        assert len(await ranges.get_range(found[0].path, 0, 10)) == 10
        with pytest.raises(NotStoredError, match=found[5].path):
            await ranges.get_range(found[5].path, 0, 10)
    with pytest.raises(NotStoredError, match=found[5].path):
        await query(store, found, "SELECT count(*), sum(sequence) FROM messages")


@pytest.mark.parametrize(("content", "requests"), [(b"", 1), (b"x" * 9, 1), (b"x" * 10, 2), (b"x" * 25, 3)])
async def test_a_check_asks_no_more_than_it_needs(monkeypatch, content, requests):
    monkeypatch.setattr(trust, "PIECE_BYTES", 5)
    monkeypatch.setattr(trust, "CHUNK_BYTES", 10)
    store = Watched()
    entry = await store_block(store, [1])
    one = replace(entry, path="x", bytes=len(content), sha256=sha256(content).hexdigest())
    await store.put("x", content)
    checked = await check_contents(store, [one])
    assert len(store.asked) == requests
    assert await checked.get_range("x", 0, 100) == content
    for wrong in (content + b"y", content + b"y" * 100, content[:-1] or b"z"):
        await store.put("x", wrong, if_absent=False)
        with pytest.raises(FormatError, match="was changed"):
            await check_contents(store, [one])


@pytest.mark.parametrize("small", [True, False])
async def test_a_deep_look_checks_more_objects_together_when_they_are_small(store, monkeypatch, small):
    if not small:
        monkeypatch.setattr(verification, "SMALL_BYTES", 10)
    entries = await all_objects(store)
    store.most = 0
    found = await read_archive(store, Picture(Manifest(), Table()), pending_entries=entries)
    assert len(found[STREAM].stored) == COUNT
    assert store.most == (verification.OBJECTS_AT_ONCE if small else verification.LARGE_AT_ONCE)
