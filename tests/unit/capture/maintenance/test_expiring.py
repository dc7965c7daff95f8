"""What retention removes, found in indexes, against the rules on plain lists."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from capture.archive.coverage import coverage, read_coverage
from capture.archive.index.tree import Index, Sizes
from capture.archive.index.update import update
from capture.archive.index.version import Version
from capture.archive.manifest import Stored
from capture.archive.retention import Retention, Rule
from capture.archive.sequences import Sequences
from capture.maintenance.expiring import find_expiring
from capture.stores.memory import MemoryStore

SMALL = Sizes(leaf=2000, inner=2000, apart=45, inline=0)
HOUR = 3600
NOW = 40.0 * HOUR

rules = st.lists(
    st.builds(
        Rule,
        older_than=st.one_of(st.none(), st.integers(1, 45).map(lambda hours: float(hours * HOUR))),
        keep_bytes=st.one_of(st.none(), st.integers(1, 900)),
        stream=st.sampled_from(["*", "A", "B"]),
        key=st.sampled_from(["*", "*", "eu"]),
    ),
    max_size=3,
)
partitions = st.tuples(st.sampled_from("AB"), st.sampled_from(["eu", "us"]), st.integers(0, 39))
objects = st.lists(st.tuples(partitions, st.integers(1, 90), st.booleans()), max_size=40)


def stored(number: int, partition: tuple[str, str, int], size: int, timed: bool) -> Stored:
    stream, key, hour = partition
    held = Sequences.from_iterable(range(number * 3, number * 3 + 5, 2))  # neighbours overlap
    times = {"min_ns": hour * HOUR * 10**9, "max_ns": (hour * HOUR + 1800) * 10**9} if timed else {}
    return Stored(
        path=f"blocks/{stream}/{key}/{number}", stream=stream, key=key, interval=hour * HOUR, first=held.first,
        last=held.last, count=len(held), bytes=size, sha256="", format="ndjson", sequences=held.to_bytes(), **times,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(objects, rules, st.randoms())
def test_the_indexes_give_what_the_rules_remove_of_plain_lists(described, given_rules, dice: random.Random) -> None:
    asyncio.run(play(described, Retention(given_rules, HOUR), dice))


async def play(described, retention: Retention, dice: random.Random) -> None:
    everything = [stored(number, *one) for number, one in enumerate(described, start=1)]
    parts: list[list[Stored]] = [[], [], [], []]  # blocks, table files, blocks to adopt, consumed ones
    for one in everything:
        parts[dice.randrange(4)].append(one)
    blocks, files, adding, consumed = parts
    sources = [await indexed([*blocks, *consumed]), await indexed(files)]
    found = await find_expiring(retention, sources, NOW, adding=adding, left_out=consumed)

    expected = {one.object.path for one in retention.find_expired([*blocks, *files, *adding], NOW)}
    gone = {one.path for part in found.objects for one in part}
    assert gone == {one.path for one in (*blocks, *files) if one.path in expected}
    assert [one for one in found.objects[0] if one not in blocks] == []
    assert [one for one in found.objects[1] if one not in files] == []

    again = retention.find_expired([*adding, *found.objects[0], *found.objects[1]], NOW, elsewhere=found.elsewhere)
    assert {one.object.path for one in again} == expected  # what a plan decides with only these loaded

    removed = {"A": Sequences.from_range(1, 4), "C": Sequences.from_range(1, 2)}
    sources = [await indexed(blocks), await indexed(files)]
    assert await read_coverage(*sources, removed) == coverage([*blocks, *files], removed)


async def indexed(objects: list[Stored]) -> tuple[Index, Version]:
    index = Index(MemoryStore(), "_index/", sizes=SMALL)
    made = await update(index, Version(), objects, [], token=1, number=1)
    index.keep(made.pages)
    return index, made.version
