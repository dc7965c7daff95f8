"""Sweeps that are struck: killed anywhere, run again, run by two at once, overtaken by writers."""

import asyncio
import contextlib
from contextvars import ContextVar

import pytest
from failing import Failing
from hypothesis import given, settings
from hypothesis import strategies as st
from indexed import commit_whole, read_whole
from sweeping import GRACE, NOW, OLD, YOUNG, block, committed, sweep, write
from wide_index import SMALL

from capture.archive.chain import Retired, commit
from capture.archive.index import tree
from capture.archive.manifest import Manifest, encode, entry_path
from capture.archive.table import Table
from capture.errors import FencedError, StoreError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.ingest.record import Records
from capture.stores import MemoryStore
from capture.testing import HeadState, MemoryHead


async def prepared():
    """An archive with everything that a sweep meets: new, adopted, retired, forgotten, left over."""
    clock = [OLD]
    store, pointer = Failing(lambda: clock[0]), MemoryHead()
    await write(store, block(1), block(2), block(3), block(4))
    await write(store, block(90), entries=False)  # its writer died
    manifest = Manifest(
        blocks=[block(1)],
        retired=[Retired(block(2).path, OLD), Retired(block(3).path, YOUNG), Retired("blocks/gone", OLD)],
    )
    await commit_whole(store, pointer, None, manifest)  # a sweep died right after this: the entries are still there
    clock[0] = YOUNG
    await write(store, block(91), entries=False)  # its writer is about to write the entry
    await write(store, block(5), block(6))
    return store, pointer


async def settle(store, pointer):
    store.left = -1
    for number in range(1, 5):
        await sweep(store, pointer, now=NOW + 2 * GRACE * number, grace=GRACE)
    manifest = await committed(store, pointer)
    objects = [one.path for one in await store.list() if not one.path.startswith(("_manifest/", "_index/"))]
    return sorted(one.path for one in manifest.blocks), manifest.retired, objects


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("sizes", [tree.SIZES, SMALL], ids=["inline", "pages"])
async def test_a_sweep_that_is_killed_anywhere_and_run_again_has_the_result_of_one_that_was_not(
    monkeypatch, sizes, after
):
    """The next sweeps are the same leader's, so their pages are equal to those that the failed one has left."""
    monkeypatch.setattr(tree, "SIZES", sizes)
    expected = await settle(*await prepared())
    assert expected[0] == sorted(one.path for one in (block(1), block(4), block(5), block(6)))
    assert expected[1] == []
    assert expected[2] == sorted(one.path for one in map(block, (1, 4, 5, 6)))
    for number in range(1, 100):
        store, pointer = await prepared()
        store.left, store.after = number, after
        try:
            await sweep(store, pointer, now=NOW, grace=GRACE)
        except StoreError:
            assert await settle(store, pointer) == expected, f"killed at call {number}"
        else:
            assert number > 15
            return
    raise AssertionError("a sweep makes fewer calls than that")


class Yielding(Failing):
    async def _call(self, done):
        await asyncio.sleep(0)
        return await super()._call(done)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 40))
def test_two_sweeps_at_once_have_the_result_of_one(delay):
    async def run():
        expected = await settle(*await prepared())
        store, pointer = await prepared()
        store.__class__ = Yielding
        other = MemoryHead(2, pointer.state)

        async def late():
            for _ in range(delay):
                await asyncio.sleep(0)
            await sweep(store, other, now=NOW, grace=GRACE)

        results = await asyncio.gather(sweep(store, pointer, now=NOW, grace=GRACE), late(), return_exceptions=True)
        assert all(
            result is None or not isinstance(result, Exception) or isinstance(result, FencedError) for result in results
        )
        assert await settle(store, other) == expected

    asyncio.run(run())


async def test_an_entry_survives_no_longer_than_the_record_of_its_retired_block():
    """However often sweeps die between commit and clean-up, a compacted block is never adopted a second time."""
    store, pointer = Failing(lambda: OLD), MemoryHead()
    await write(store, block(1))

    class Undeletable(Failing):
        async def delete(self, path):
            raise StoreError("killed")

    store.__class__ = Undeletable
    for _ in range(3):
        with pytest.raises(StoreError):
            await sweep(store, pointer, now=NOW, grace=GRACE)
    table = HeadState()
    await commit(store, MemoryHead(1, table), None, Table(consumed=[block(1).path]))
    for now in (OLD, NOW):
        with pytest.raises(StoreError):
            await sweep(store, pointer, table=table, now=now, grace=GRACE)
    store.__class__ = Failing
    for _ in range(4):
        await sweep(store, pointer, table=table, now=NOW, grace=GRACE)
        assert (await committed(store, pointer)).blocks == []
    assert (await committed(store, pointer)).retired == []
    assert await store.list("blocks/") == await store.list("_entries/") == []


class Hooked(MemoryStore):
    """A store in which something happens right after its n-th listing."""

    def __init__(self, number, happens):
        super().__init__(clock=lambda: OLD)
        self.left, self.happens = number, happens

    async def list(self, prefix=""):
        found = await super().list(prefix)
        self.left -= 1
        if self.left == 0:
            await self.happens(self)
        return found


@pytest.mark.parametrize("number", range(1, 5))
async def test_a_block_that_another_sweep_adopts_meanwhile_is_no_leftover(number):
    state = HeadState()

    async def successors_sweep(store):
        await sweep(store, MemoryHead(2, state), now=NOW, grace=GRACE)

    store = Hooked(number, successors_sweep)
    await write(store, block(1))
    with contextlib.suppress(FencedError):
        await sweep(store, MemoryHead(1, state), now=NOW, grace=GRACE)
    assert (await committed(store, MemoryHead(2, state))).blocks == [block(1)]
    assert [one.path for one in await store.list("blocks/")] == [block(1).path]


async def test_a_block_whose_entry_is_written_while_objects_are_listed_is_no_leftover():
    async def write_entry(store):
        await store.put(entry_path(block(1).path), encode(block(1)))

    store, pointer = Hooked(1, write_entry), MemoryHead()
    await write(store, block(1), entries=False)
    await sweep(store, pointer, now=NOW, grace=GRACE)
    assert (await committed(store, pointer)).blocks == [block(1)]
    assert await store.get(block(1).path)


async def test_a_block_and_its_entry_that_are_stored_while_objects_are_listed_are_adopted_without_a_false_alarm():
    async def write_both(store):
        await write(store, block(1))

    store, pointer = Hooked(1, write_both), MemoryHead()
    report = await sweep(store, pointer, now=NOW, grace=GRACE)
    assert (report.dangling, report.adopted) == ([], 1)
    assert (await committed(store, pointer)).blocks == [block(1)]
    assert await store.list("_entries/") == []


stands_still = ContextVar("whether this sweeper stands still", default=False)


class Standing(MemoryStore):
    """A store in which the deletions of one sweeper stand still until `go`."""

    def __init__(self):
        super().__init__(clock=lambda: OLD)
        self.stands, self.go = asyncio.Event(), asyncio.Event()

    async def delete(self, path):
        if stands_still.get():
            self.stands.set()
            await self.go.wait()
        await super().delete(path)


class Settled:
    """Where messages are acknowledged, as a node sees it."""

    def __init__(self):
        self.acked = []

    def ack(self, messages):
        self.acked += messages.replies

    def nak(self, messages, delay=0.0):
        raise AssertionError("handed back")


def sealed():
    columns = [1], [0], [b"s"], [b""], [b"{}"], [1], [b"reply"], [None]
    return SealedBlock("S", "k", 0, Records("S", *columns), "age")


async def test_a_block_that_is_stored_again_is_not_deleted_with_the_leftover_that_it_was_before():
    """Its writer dies before the entry; two sweepers take it for a leftover; its messages come again in between."""
    store, state, node = Standing(), HeadState(), Settled()
    committer = Committer(store, writer("ndjson"), node, clock=lambda: OLD)
    first = await committer.commit(sealed())
    await store.delete(entry_path(first.path))  # as if the writer had died right before
    told = {"now": NOW, "grace": GRACE}
    stands_still.set(True)
    slow = asyncio.create_task(sweep(store, MemoryHead(1, state), **told))
    stands_still.set(False)
    await store.stands.wait()
    await sweep(store, MemoryHead(2, state), **told)
    assert await store.list("blocks/") == []
    again = await committer.commit(sealed())
    assert (again.sha256, node.acked) == (first.sha256, [b"reply"] * 2)
    store.go.set()
    with contextlib.suppress(FencedError):
        await slow
    report = await sweep(store, MemoryHead(3, state), **told)
    assert report.dangling == []
    assert [one.path for one in await store.list("blocks/")] == [again.path]
    assert (await read_whole(store, report.head, Manifest)).blocks == [again]
