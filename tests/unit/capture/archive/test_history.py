"""The recordings of past hours: found by a few pointers, or read many at a time; each one is checked by its SHA-256."""

import asyncio
from hashlib import sha256

import msgspec
import pytest
from archived import ARCHIVE, NOW, SIGNER, Archived
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive import chain, recording
from capture.archive.history import DAYS_AT_ONCE, Prefetch, recording_at, recordings_around
from capture.archive.recording import HISTORY, HOUR, SKIP, Earlier, Recording, StreamRecord, add_hour, history_path
from capture.errors import ManifestError, NotStoredError
from capture.stores import MemoryStore
from capture.stores.contract import AHEAD_OBJECTS
from capture.verification.audit import audit

HOURS = 500


class Watched(MemoryStore):
    """Counts what is read, and how much at once: a read ends when nobody begins another one."""

    def __init__(self, store):
        super().__init__(f"watched-{store.url}")
        self._store = store
        self.url = store.url
        self.read, self.listed, self.most, self.now = [], [], 0, 0

    async def get(self, path):
        self.read.append(path)
        self.now += 1
        self.most = max(self.most, self.now)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now -= 1
        return await self._store.get(path)

    async def list(self, prefix=""):
        self.listed.append(prefix)
        return await self._store.list(prefix)


async def make_archive(**settings):
    """An archive with a recording at each half of an hour, for 500 hours."""
    archived = Archived(**settings)
    for half in range(2 * HOURS):
        archived.now = NOW + half * HOUR / 2
        await archived.record(state={"messages": half, "first_seq": 1, "last_seq": half + 1})
    return archived


@pytest.fixture(scope="module")
def archived():
    return asyncio.run(make_archive())


@pytest.fixture(scope="module")
def old_archived():
    """An archive whose first half was recorded by a version that knows no pointers."""

    async def make():
        with pytest.MonkeyPatch.context() as patched:
            count = 0

            def add(document, before, hour):
                nonlocal count
                count += 1
                if count < HOURS // 2:
                    return msgspec.structs.replace(document, earlier=hour)
                return add_hour(document, before, hour)

            patched.setattr(recording, "add_hour", add)
            return await make_archive()

    return asyncio.run(make())


async def newest(store):
    return await chain.read(store, await chain.latest_offline(store, Recording), Recording)


def count(recording):
    return recording.streams["ORDERS"].state["messages"]


TIMES = (2 * HOURS - 1, 2 * HOURS - 2, 2 * HOURS - 19, 2 * HOURS - 60, 513, 512, 100, 1)


@pytest.mark.parametrize("half", TIMES)
async def test_the_recording_of_any_time_is_found_by_a_few_requests(archived, half):
    store = Watched(archived.store)
    found = await recording_at(store, await newest(archived.store), NOW + half * HOUR / 2 + 60)
    is_kept = half > 2 * HOURS - chain.KEPT or half % 2  # of past days the last of each hour
    assert count(found) == (half if is_kept else half - 1)
    assert len([path for path in store.read if path.startswith(HISTORY)]) <= 5
    assert len(store.read) <= 5 + chain.KEPT
    assert len(store.listed) <= 1


async def test_before_the_first_recording_there_is_none_and_after_the_newest_there_is_only_that_one(archived):
    last, store = await newest(archived.store), Watched(archived.store)
    assert await recording_at(store, last, NOW - 1) is None
    assert await recording_at(store, last, NOW - 1e9) is None
    _, first = await recordings_around(store, last, NOW - 1)
    assert count(first) == 1, "the first recording of the hour is not kept any more"
    assert await recording_at(archived.store, last, NOW + 1e9) is last


@pytest.mark.parametrize("half", TIMES)
async def test_hours_without_pointers_are_read_one_after_the_other_many_at_a_time(old_archived, half):
    store = Watched(old_archived.store)
    found = await recording_at(store, await newest(old_archived.store), NOW + half * HOUR / 2 + 60)
    assert count(found) == (half if half > 2 * HOURS - chain.KEPT or half % 2 else half - 1)
    assert len(store.read) <= 10 + chain.KEPT + max(0, HOURS - half) // 2 + 1
    assert half > 100 or store.most == AHEAD_OBJECTS
    assert HISTORY not in store.listed


@settings(max_examples=30)
@given(st.integers(1, 5000), st.data())
def test_any_hour_is_reached_by_the_logarithm_of_their_number(hours, data):
    documents, store = [Recording(created=0.0)], {}
    for number in range(1, hours + 1):
        before = msgspec.structs.replace(
            documents[-1], number=number, created=number * HOUR - 1, streams={"S": StreamRecord(created="")}
        )
        documents[-1] = before
        path = history_path(before)
        store[path] = before
        documents.append(add_hour(Recording(created=number * HOUR), before, Earlier(path, "")))
    wanted, document, steps = data.draw(st.integers(1, hours)), documents[-1], 0
    place = history_path(documents[wanted - 1])
    while later := [one.path for one in document.list_hours() if one.path >= place]:
        document, steps = store[min(later)], steps + 1
    assert document is documents[wanted - 1]
    assert SKIP ** (steps - 2) < hours
    assert sum(map(len, documents[-1].skips)) <= SKIP * (len(documents[-1].skips))
    assert SKIP ** (len(documents[-1].skips) - 1) <= hours


@given(st.lists(st.integers(60, 5 * 3600), min_size=1, max_size=chain.KEPT), st.data())
async def test_the_recording_that_was_valid_is_found_whatever_the_hours_between_them(pauses, data):
    archived, times = Archived(), []
    for number, pause in enumerate(pauses):
        archived.now += pause
        times.append(archived.now)
        await archived.record(state={"messages": number, "first_seq": 1, "last_seq": number + 1})
    at = data.draw(st.floats(times[0] - 3600, times[-1] + 3600) | st.sampled_from(times))
    valid = [number for number, time in enumerate(times) if time <= at]
    found = await recording_at(archived.store, await newest(archived.store), at)
    there = found is not None and found.streams  # the first document of a chain is empty
    assert (count(found) if there else None) == (valid[-1] if valid else None)


async def test_a_recording_within_the_hour_names_the_same_hours():
    archived = Archived()
    for hours in range(10):
        archived.now = NOW + hours * HOUR
        await archived.record(state={"messages": hours, "first_seq": 1, "last_seq": hours + 1})
    before, pointer = await newest(archived.store), archived.pointer(Recording)
    after = Recording(created=archived.now + 60, streams=before.streams)
    await recording.follow_up(archived.store, pointer, await pointer.read(), before, after, grace=900.0)
    last = await newest(archived.store)
    assert (last.earlier, last.hours, last.skips) == (before.earlier, before.hours, before.skips)
    assert len(last.skips[0]) == SKIP


async def test_a_deep_look_reads_the_history_by_days_and_many_documents_at_a_time(archived):
    store = Watched(archived.store)
    assert (await audit(store, archive=ARCHIVE, deep=True)).problems == ()
    assert sorted(path for path in store.read if path.startswith(HISTORY)) == await archived.paths(HISTORY)
    assert store.most == AHEAD_OBJECTS
    assert HISTORY not in store.listed


async def test_a_deep_look_goes_on_after_days_without_a_recording():
    archived = Archived()
    for days in (0, 1, 2, 40, 41, 400):
        for hours in range(3):
            archived.now = NOW + 24 * HOUR * days + HOUR * hours
            await archived.record(state={"messages": days, "first_seq": 1, "last_seq": days + hours})
    store = Watched(archived.store)
    found = await audit(store, archive=ARCHIVE, deep=True)
    assert found.problems == ()
    assert sorted(path for path in store.read if path.startswith(HISTORY)) == await archived.paths(HISTORY)
    assert len([prefix for prefix in store.listed if prefix.startswith(HISTORY)]) <= 4 * DAYS_AT_ONCE * 2


@pytest.mark.parametrize("age", [1, 2, 15, 30, HOURS - 2])
@pytest.mark.parametrize("change", ["changed", "replaced", "missing"])
async def test_an_hour_that_was_touched_is_found_where_it_is_wanted(archived, age, change):
    paths = await archived.paths(HISTORY)
    path, at = paths[-age], NOW + (HOURS - 1 - age) * HOUR + 2000
    data = await archived.store.get(path)
    other = {
        "changed": data.replace(b'"ORDERS"', b'"ORDER5"'),
        "replaced": await archived.store.get(paths[-age - 1]),
        "missing": None,
    }
    last = await newest(archived.store)
    try:
        await archived.change(path, other[change])
        with pytest.raises(NotStoredError if change == "missing" else ManifestError, match=path):
            await recording_at(archived.store, last, at)
        assert any(path in problem for problem in (await audit(archived.store, archive=ARCHIVE, deep=True)).problems)
    finally:
        await archived.change(path, data)
    assert count(await recording_at(archived.store, last, at)) == 2 * (HOURS - 1 - age) + 1


async def test_a_pointer_that_contradicts_the_history_is_found():
    archived = Archived()
    for hours in range(20):
        archived.now = NOW + hours * HOUR
        await archived.record(state={"messages": hours, "first_seq": 1, "last_seq": hours + 1})
    last = await newest(archived.store)
    wrong = msgspec.structs.replace(last.skips[0][0], sha256=sha256(b"another").hexdigest())
    absent = Earlier(f"{HISTORY}2020-01-01/00-0000000001-1.json", sha256(b"none").hexdigest())
    pointer = archived.pointer(Recording)
    skips = [[wrong, *last.skips[0][1:]], [absent, *last.skips[1]]]
    await chain.commit(
        archived.store, pointer, await pointer.read(), msgspec.structs.replace(last, skips=skips, created=archived.now)
    )
    problems = (await audit(archived.store, archived.readers, archive=ARCHIVE, deep=True)).problems
    assert any(f"another SHA-256 of {wrong.path}" in problem for problem in problems)
    assert any(problem.startswith(absent.path) for problem in problems)


async def test_a_version_without_pointers_reads_the_new_ones_and_may_drop_them():
    archived = Archived(SIGNER)
    for hours in range(12):
        archived.now = NOW + hours * HOUR
        await archived.record(state={"messages": hours, "first_seq": 1, "last_seq": hours + 1})
        if hours == 5:  # a leader of an earlier version commits one
            last, pointer = await newest(archived.store), archived.pointer(Recording)
            old = msgspec.structs.replace(last, hours=0, skips=[], created=archived.now + 1)
            await chain.commit(archived.store, pointer, await pointer.read(), old)
    last = await newest(archived.store)
    for hours in range(12):
        assert count(await recording_at(archived.store, last, NOW + hours * HOUR + 60)) == hours
    assert (await audit(archived.store, archived.readers, archive=ARCHIVE, deep=True)).ok


async def test_nothing_is_on_its_way_when_reading_ends(archived):
    store = Watched(archived.store)
    async with Prefetch(store, await archived.store.list(HISTORY)) as ahead:
        paths = await archived.paths(HISTORY)
        assert await ahead.get(paths[0]) == await archived.store.get(paths[0])
        assert await ahead.get(paths[40]) == await archived.store.get(paths[40])  # those between are not needed
        assert await ahead.get("_archive.json") == await archived.store.get("_archive.json")
    assert len(asyncio.all_tasks()) == 1
