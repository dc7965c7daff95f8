"""The totals beside a root against plain sums over the entries, with objects that hold the same sequences."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wide_index import as_entry

from capture.archive.index.page import Page, decode, encode, page_path, place_of
from capture.archive.index.tree import SIZES, Index, Sizes
from capture.archive.index.update import held_of, update
from capture.archive.index.version import Held, Runs, Total, Version
from capture.archive.manifest import Stored
from capture.archive.sequences import WIDEST, Sequences
from capture.errors import ManifestError
from capture.stores.memory import MemoryStore

spans = st.tuples(st.integers(1, 40), st.integers(0, 12), st.sampled_from([1, 2, 3]))

additions = st.lists(st.tuples(spans, st.sampled_from("AB")), max_size=8)


def entry(number: int, span: tuple[int, int, int], stream: str) -> Stored:
    first, more, step = span
    held = Sequences.from_iterable(range(first, first + more + 1, step))
    return Stored(
        path=f"blocks/{stream}/{number}", stream=stream, key="k", interval=number % 3, first=held.first,
        last=held.last, count=len(held) + number % 2, bytes=number, sha256="", format="ab"[number % 2],
        sequences=held.to_bytes(),
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.tuples(spans, st.sampled_from("AB")), max_size=8), st.integers(0, 100)), max_size=6),
    st.randoms(),
)
def test_totals_are_those_of_the_entries(changes, dice: random.Random) -> None:
    asyncio.run(play(changes, dice))


async def play(changes, dice: random.Random) -> None:
    store, version, held, serial = MemoryStore(f"totals-{dice.random()}"), Version(), {}, 0
    needed, replaced = set[bytes](), set[bytes]()
    for number, (new, share) in enumerate(changes):
        adds = [entry(serial := serial + 1, span, stream) for span, stream in new]
        removes = [one for one in held.values() if dice.randrange(100) < share]
        index = Index(store, "_index/", sizes=dice.choice([SIZES, Sizes(leaf=1000, inner=2000, apart=45, inline=0)]))
        made = await update(index, version, adds, removes, token=1, number=number)
        for name, data in made.pages.items():
            await store.put(page_path("_index/", name), data)
        version = made.version
        held = {place: one for place, one in held.items() if one not in removes} | {place_of(one): one for one in adds}
        assert version.objects == len(held)
        for stream in "AB":
            mine = [one for one in held.values() if one.stream == stream]
            sets = [Sequences.from_bytes(one.sequences) for one in mine]
            assert await held_of(index, version, stream) == Sequences.union_of(sets)
            assert (stream in version.streams) == bool(mine)
            if mine:
                total = version.streams[stream]
                assert total.messages == sum(one.count for one in mine)
                assert total.bytes == sum(one.bytes for one in mine)
                assert Sequences.from_text(total.twice) == Sequences.find_repeated(sets)
                assert total.held.count == len(Sequences.union_of(sets))
                assert total.formats == dict(Counter(one.format for one in mine))
        replaced |= made.replaced
        needed = (needed | made.pages.keys()) - made.replaced
        assert needed == await index.reach(version)
        assert needed == {bytes.fromhex(one.path.rpartition("/")[2]) for one in await store.list()} - replaced


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("first", 2**64 - 1), ("last", -1), ("interval", 2**63 - 1), ("min_ns", 2**64 - 1), ("max_ns", -1), ("count", -1)],
)
def test_an_entry_with_a_number_that_no_scan_would_find_is_damage(field: str, wrong: int) -> None:
    one = msgspec.structs.replace(as_entry("A"), **{field: wrong})
    name, data = encode(Page(level=0, token=1, number=1, entries=[one]))
    with pytest.raises(ManifestError, match=r"is damaged: .*(Expected `int`|out of range)"):
        decode(data, page_path("_index/", name))


@pytest.mark.parametrize("runs", [[(-5, 5)], [(2**64 - 5, 2**64 - 1)]])
def test_a_total_with_numbers_that_are_no_sequences_is_refused_when_it_is_read(runs: Runs) -> None:
    data = msgspec.json.encode(Held(count=1, runs=runs))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=Held)


async def test_a_total_that_would_fill_the_memory_is_refused() -> None:
    runs = [(number * 10**12, number * 10**12 + WIDEST // 2) for number in range(3)]
    version = Version(streams={"A": Total(held=Held(count=1, runs=runs))})
    with pytest.raises(ManifestError, match="the total of A is damaged: it has 150,000,000,003 sequences"):
        await held_of(Index(MemoryStore(), "_index/"), version, "A")
