import asyncio

import pytest

from capture.archive import chain
from capture.errors import ConfigError, FencedError, StoreError
from capture.maintenance.compaction import compact
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.leading import Leading
from capture.maintenance.sweep import sweep
from capture.maintenance.table_commits import TableLeading
from capture.stores import MemoryStore, OwnStore
from capture.stores.contract import REQUESTS_AT_ONCE
from capture.stores.deletion import delete_all
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


class Many(MemoryStore):
    """Also deletes a hundred at a time, as S3 does a thousand."""

    deletes_at_once = 100

    def __init__(self):
        super().__init__("many")
        self.batches = []

    async def delete(self, path):
        self.batches.append([path])
        await super().delete(path)

    async def delete_many(self, paths):
        self.batches.append(list(paths))
        await asyncio.sleep(0)
        for path in paths:
            if path == "fails":
                raise StoreError(f"deleting {path} failed")
            await super().delete(path)


async def test_many_objects_are_deleted_by_few_requests_each_once():
    store, paths = Many(), [f"a/{number}" for number in range(1001)]
    for path in paths:
        await store.put(path, b"")
    await delete_all(store, [*paths, paths[0]])
    assert await store.list() == []
    assert [len(batch) for batch in store.batches] == [100] * 10 + [1]
    assert [path for batch in store.batches for path in batch] == paths
    await delete_all(store, [])
    await delete_all(store, ["one"])
    assert store.batches[11:] == [["one"]]


async def test_a_term_that_is_over_sends_no_further_request():
    store, pointer, checks = Many(), MemoryHead(1, HeadState()), []

    def check():
        checks.append(1)
        if len(checks) > 2:
            raise FencedError("the term is over")

    pointer.check = check
    with pytest.raises(FencedError):
        await chain.delete(store, pointer, [str(number) for number in range(1000)])
    assert len(store.batches) == 2


async def test_an_object_that_can_not_be_deleted_is_named_and_the_other_requests_are_sent():
    store = Many()
    with pytest.raises(StoreError, match="deleting fails failed"):
        await delete_all(store, [*map(str, range(250)), "fails", *map(str, range(250, 500))])
    assert len(store.batches) == 6


async def test_a_users_store_deletes_many_only_if_it_says_so():
    inner = Many()
    own = OwnStore(inner, "own:store/deep", "deep")
    await delete_all(own, ["a", "b"])
    assert inner.batches == [["deep/a", "deep/b"]]
    with pytest.raises(StoreError, match="is not a path"):
        await own.delete_many(["a", "../b"])
    inner.deletes_at_once = 1  # of another instance: it is asked when it is opened
    await delete_all(OwnStore(inner, "own:store"), ["a", "b"])
    assert inner.batches[1:] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("most", "message"),
    [(5, "deletes_at_once = 5 and without delete_many"), (0, "not a number of objects"), ("5", "not a number")],
)
def test_a_users_store_that_can_not_do_what_it_says_is_refused(most, message):
    store = MemoryStore()
    store.deletes_at_once = most
    with pytest.raises(ConfigError, match=message):
        OwnStore(store)


async def test_a_compaction_deletes_many_at_a_time_and_no_more_than_so_many_before_it_merges(monkeypatch):
    store, manifest, table = MemoryStore("deletions"), HeadState(), HeadState()
    for number in range(80):
        await store.put(f"table/left-{number}.parquet", b"")
    await sweep(Leading(store, MemoryHead(1, manifest), MemoryHead(1, table).read), now=LATER)
    counted = Counted(store.delete)
    monkeypatch.setattr(store, "delete", counted)
    monkeypatch.setattr("capture.maintenance.compaction.MOST_DELETED", 60)
    for left in (20, 0):
        head = MemoryHead(2 if left else 3, table)
        await compact(
            TableLeading(store, head, MemoryHead(9, manifest).read, grace=1.0), ArrowEngine(), Policy(), now=LATER
        )
        assert len(await store.list("table/left-")) == left
    assert counted.most == REQUESTS_AT_ONCE
