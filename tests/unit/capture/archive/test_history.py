"""The recordings of past hours: found at once, read many at a time, and each checked against the one that names it."""

import asyncio

import pytest
from archived import ARCHIVE, NOW, Archived

from capture.archive import chain
from capture.archive.history import AHEAD_OBJECTS, Prefetch, recording_at
from capture.archive.recording import HISTORY, HOUR, Recording
from capture.errors import ManifestError
from capture.stores import MemoryStore
from capture.verification.audit import audit

HOURS = 500


class Watched(MemoryStore):
    """Counts what is read, and how much at once: a read ends when nobody begins another one."""

    def __init__(self, store):
        super().__init__(f"watched-{store.url}")
        self._store = store
        self.url = store.url
        self.read, self.most, self.now = [], 0, 0

    async def get(self, path):
        self.read.append(path)
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return await self._store.get(path)

    async def list(self, prefix=""):
        return await self._store.list(prefix)


@pytest.fixture(scope="module")
def archived():
    """An archive with a recording at each half of an hour, for 500 hours."""
    archived = Archived()

    async def make():
        for half in range(2 * HOURS):
            archived.now = NOW + half * HOUR / 2
            await archived.record(state={"messages": half, "first_seq": 1, "last_seq": half + 1})

    asyncio.run(make())
    return archived


async def newest(store):
    return await chain.read(store, await chain.latest_offline(store, Recording), Recording)


def count(recording):
    return recording.streams["ORDERS"].state["messages"]


async def test_the_recording_of_any_time_is_found_and_those_before_it_are_not_read(archived):
    last = await newest(archived.store)
    for half in (2 * HOURS - 1, 2 * HOURS - 2, 2 * HOURS - 19, 2 * HOURS - 60, 100, 1):
        store = Watched(archived.store)
        found = await recording_at(store, last, NOW + half * HOUR / 2 + 60)
        is_kept = half > 2 * HOURS - chain.KEPT or half % 2  # of past days the last of each hour
        assert count(found) == (half if is_kept else half - 1)
        assert len(store.read) <= chain.KEPT + (2 * HOURS - half) // 2 + 2
    store = Watched(archived.store)
    assert await recording_at(store, last, NOW - 1) is None
    assert store.most == AHEAD_OBJECTS
    assert await recording_at(archived.store, last, NOW + 1e9) is last


async def test_a_deep_look_reads_the_history_many_at_a_time_too(archived):
    store = Watched(archived.store)
    assert (await audit(store, archive=ARCHIVE, deep=True)).problems == ()
    assert sorted(path for path in store.read if path.startswith(HISTORY)) == await archived.paths(HISTORY)
    assert store.most == AHEAD_OBJECTS


@pytest.mark.parametrize("age", [15, 30, HOURS - 2])
async def test_a_recording_that_was_changed_is_found_before_an_earlier_one_is_believed(archived, age):
    path = (await archived.paths(HISTORY))[-age]
    data = await archived.store.get(path)
    try:
        await archived.change(path, data.replace(b'"ORDERS"', b'"ORDER5"'))
        with pytest.raises(ManifestError, match=f"{path} was changed"):
            await recording_at(archived.store, await newest(archived.store), NOW - 1)
        assert any(path in problem for problem in (await audit(archived.store, archive=ARCHIVE, deep=True)).problems)
    finally:
        await archived.change(path, data)


async def test_nothing_is_on_its_way_when_reading_ends(archived):
    store = Watched(archived.store)
    async with Prefetch(store, await archived.store.list(HISTORY)) as ahead:
        paths = await archived.paths(HISTORY)
        assert await ahead.get(paths[0]) == await archived.store.get(paths[0])
        assert await ahead.get(paths[40]) == await archived.store.get(paths[40])  # those between are not needed
        assert await ahead.get("_archive.json") == await archived.store.get("_archive.json")
    assert len(asyncio.all_tasks()) == 1
