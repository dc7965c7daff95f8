import asyncio

import pytest

from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.sweep import sweep
from capture.stores import MemoryStore
from capture.stores.contract import REQUESTS_AT_ONCE
from capture.testing import ArrowEngine, HeadState, MemoryHead
from natty.wire.background import map_concurrently

LATER = 1e10  # after every object's time of writing, and its grace


class Counted:
    """Work that notes how much of it runs together."""

    def __init__(self, work):
        self.done, self.most, self._running, self._work = [], 0, 0, work

    async def __call__(self, one):
        self._running += 1
        self.most = max(self.most, self._running)
        await asyncio.sleep(0)
        try:
            await self._work(one)
            self.done.append(one)
        finally:
            self._running -= 1


async def nothing(_):
    pass


async def test_a_few_are_worked_on_together_and_each_once():
    counted = Counted(nothing)
    await map_concurrently(range(100), counted, at_once=REQUESTS_AT_ONCE)
    assert (sorted(counted.done), counted.most) == (list(range(100)), REQUESTS_AT_ONCE)
    await map_concurrently([], counted)


async def test_an_error_is_raised_when_the_others_are_done():
    async def odd(number):
        if number == 3:
            raise ValueError(f"{number} is odd")

    counted = Counted(odd)
    with pytest.raises(ValueError, match="3 is odd"):
        await map_concurrently(range(10), counted, at_once=2)
    assert counted.done == [0, 1, 2, 4, 5, 6, 7, 8, 9]


async def test_a_compaction_deletes_many_at_a_time_and_no_more_than_so_many_before_it_merges(monkeypatch):
    store, manifest, table = MemoryStore("deletions"), HeadState(), HeadState()
    for number in range(80):
        await store.put(f"table/left-{number}.parquet", b"")
    await sweep(store, MemoryHead(1, manifest), MemoryHead(1, table).read, now=LATER)
    counted = Counted(store.delete)
    monkeypatch.setattr(store, "delete", counted)
    monkeypatch.setattr("capture.maintenance.compaction.MOST_DELETED", 60)
    for left in (20, 0):
        head = MemoryHead(2 if left else 3, table)
        await compact(store, head, MemoryHead(9, manifest).read, ArrowEngine(), Policy(), now=LATER, grace=1.0)
        assert len(await store.list("table/left-")) == left
    assert counted.most == REQUESTS_AT_ONCE
