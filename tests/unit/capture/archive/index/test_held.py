"""The held set against a plain one, over chunks with few and with many runs."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive.index import held as module
from capture.archive.index.held import CHUNK, FEW, Held, change_held, read_held
from capture.archive.sequences import Sequences

places = st.one_of(st.integers(1, 60), st.integers(CHUNK - 20, CHUNK + 20), st.integers(5 * CHUNK, 5 * CHUNK + 30))
ranges = st.tuples(places, st.sampled_from([1, 2, 10, 3 * CHUNK])).map(
    lambda one: Sequences.from_range(one[0], one[0] + one[1] - 1)
)
sets = st.lists(ranges, max_size=6).map(Sequences.union_of)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(sets, sets), max_size=6))
def test_any_changes_leave_what_plain_sets_have(changes: list[tuple[Sequences, Sequences]]) -> None:
    asyncio.run(play(changes))


async def play(changes: list[tuple[Sequences, Sequences]]) -> None:
    pages: dict[bytes, Sequences] = {}
    loaded: list[bytes] = []

    async def load(name: bytes) -> Sequences:
        loaded.append(name)
        return pages[name]

    def keep(number: int, part: Sequences) -> bytes:
        pages[name := b"%d" % len(pages)] = part
        return name

    kept, plain = Held(), Sequences()
    for gone, came in changes:
        before, loaded[:] = kept, []
        kept, again = await change_held(kept, gone, came, load, keep)
        touched = {one // CHUNK for one in (*edges(gone), *edges(came))}
        spared = {number: name for number, name in before.apart.items() if number not in touched}
        assert spared.items() <= kept.apart.items(), "a chunk that did not change was written again"
        assert not set(loaded) & set(spared.values()), "a chunk that did not change was read"
        assert again == (plain - gone) & came
        plain = (plain - gone) | came
        assert await read_held(kept, load) == plain
        assert kept.count == len(plain)
        assert len(kept.runs) <= FEW * 12
        assert all(len(pages[name].first_runs(FEW + 1)) > FEW for name in kept.apart.values())


def edges(held: Sequences) -> list[int]:
    return [one for run in held.runs() for one in range(run[0], run[1] + 1, CHUNK)] + [last for _, last in held.runs()]


def test_a_billion_sequences_in_one_run_are_one_run_and_are_changed_at_once() -> None:
    async def play() -> Held:
        async def load(name: bytes) -> Sequences:
            raise AssertionError(name)

        whole = Held(count=10**9, runs=[(1, 10**9)])
        gone, came = Sequences.from_range(500, 500), Sequences.from_range(10**9 + 1, 10**9 + 7)
        return (await change_held(whole, gone, came, load, lambda number, part: b""))[0]

    assert asyncio.run(play()) == Held(count=10**9 + 6, runs=[(1, 499), (501, 10**9 + 7)])
    assert module.FEW == FEW
