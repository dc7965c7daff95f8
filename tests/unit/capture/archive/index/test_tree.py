"""The index against a dictionary: any changes, in any order, with pages so small that each one matters."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive.index.change import change
from capture.archive.index.page import page_path, place_of
from capture.archive.index.tree import Index, Sizes, Where
from capture.archive.index.version import Version
from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.stores.memory import MemoryStore

SMALL = Sizes(leaf=3000, inner=2000, apart=150)
TINY = Sizes(leaf=100, inner=100, apart=150)  # each page has as little as it may


def entry(
    number: int, *, stream: str = "S", key: str = "k", interval: int = 0, step: int = 1, count: int = 10
) -> Stored:
    held = Sequences.from_iterable(range(number * 1000, number * 1000 + count * step, step))
    return Stored(
        path=f"blocks/{stream}/{key}/{interval}/{number}", stream=stream, key=key, interval=interval,
        first=held.first, last=held.last, count=count, bytes=100 + number, sha256=f"{number:064x}", format="parquet",
        sequences=held.to_bytes(), min_ns=number, max_ns=number + 5,
    )  # fmt: skip


async def store_change(store: MemoryStore, change) -> bytes:
    for name, data in change.pages.items():
        await store.put(page_path("_index/", name), data)  # never one that is there
    return change.root


async def all_of(index: Index, root: bytes, where: Where | None = None) -> list[Stored]:
    found = []
    async for part in index.scan(Version(root=root), where or Where()):
        found += [await index.whole(one) for one in part]
    return found


entries = st.builds(
    entry, st.integers(1, 12), stream=st.sampled_from("AB"), key=st.sampled_from(["", "eu", "us/x"]),
    interval=st.sampled_from([0, 3600]), step=st.sampled_from([1, 2, 70_000]), count=st.sampled_from([1, 10, 300]),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(entries, max_size=25), st.integers(0, 100)), max_size=6), st.randoms())
def test_any_changes_leave_what_a_dictionary_has(changes, dice: random.Random) -> None:
    asyncio.run(play(changes, dice))


async def play(changes, dice: random.Random) -> None:
    store, root, held = MemoryStore(f"index-{dice.random()}"), b"", {}
    needed: set[bytes] = set()
    for number, (adds, share) in enumerate(changes):
        index = Index(store, "_index/", cache_bytes=4000, sizes=dice.choice([SMALL, TINY]))
        removes = [place for place in held if dice.randrange(100) < share]
        made = await change(index, root, adds, removes, token=1, number=number)
        root = await store_change(store, made)
        held = {place: one for place, one in held.items() if place not in removes} | {
            place_of(one): one for one in adds
        }
        assert await all_of(index, root) == [held[place] for place in sorted(held)]
        after = {bytes.fromhex(one.path.rpartition("/")[2]) for one in await store.list("_index/")}
        reached = await index.reach(Version(root=root))
        assert made.replaced <= after - reached, "a page that is still needed would be deleted"
        needed = (needed | made.pages.keys()) - made.replaced
        assert needed == reached, "a page is left over that no version names"
        assert await index.verify(Version(root=root)) == len(held)
    places = list(held)[::3]
    assert (
        {place: await index.whole(one) for place, one in (await index.find(Version(root=root), places)).items()}
        == {place: held[place] for place in places}
        if changes
        else True
    )
