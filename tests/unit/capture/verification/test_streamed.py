"""What is added up a leaf at a time against plain sums over lists of all objects (`support/plain_verification.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import plain_verification
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capture.archive.chain import Retired
from capture.archive.index.page import page_path, place_of
from capture.archive.index.tree import Index, Sizes, Where
from capture.archive.index.update import update
from capture.archive.index.version import Version
from capture.archive.manifest import Manifest, Removed, Stored
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.archive.trust import Trust
from capture.errors import ManifestError
from capture.stores.memory import MemoryStore
from capture.verification import objects
from capture.verification.fingerprints import BUCKETS, Fingerprints
from capture.verification.holdings import Finding, State
from capture.verification.objects import read_archive
from capture.verification.verdict import compare

SMALL = Sizes(leaf=1500, inner=3000, apart=45, inline=0)
"""Leaves of a few entries, and pages for the sets of some."""

sets = st.sets(st.integers(1, 40), max_size=12)
records = st.fixed_dictionaries(
    {
        "stream": st.sampled_from("AB"),
        "key": st.sampled_from(["k", "_undecodable"]),
        "format": st.sampled_from(["parquet", "csv", "ndjson-value.zst", "parquet.enc", ""]),
        "held": sets,
        "surplus": st.sampled_from([0, 0, 1]),
        "folder": st.sampled_from(["blocks/", "blocks/", "table/", "table/", "elsewhere/"]),
        "place": st.sampled_from(["adopted", "adopted", "adopted", "pending", "consumed", "retired"]),
        "since": st.integers(0, 1),
        "until": st.sampled_from([0, 2, 2]),
        "compacted": st.booleans(),
        "stored": st.sampled_from(["whole", "whole", "whole", "cut", "gone"]),
        "read": st.sampled_from(["sound", "sound", "wrong", "damaged", "unchecked", "gone"]),
    }
)


def record_of(number: int, facts: dict) -> Stored:
    held = Sequences.from_iterable(facts["held"])
    first, last = (held.first, held.last) if held else (0, 0)
    return Stored(
        path=f"{facts['folder']}{facts['stream']}-1-2-{number}-{number:08x}.{facts['format'] or 'x'}",
        stream=facts["stream"], key=facts["key"], interval=number % 3, first=first, last=last,
        count=len(held) + facts["surplus"], bytes=number + 2, sha256="", format=facts["format"],
        sequences=held.to_bytes(),
    )  # fmt: skip


class World:
    """A store, and its archive at two moments: as it was read first, and as it is now."""

    def __init__(self, facts: list[dict], removed: set[int]) -> None:
        self.store = MemoryStore("world")
        self.facts = {(one := record_of(number, fact)).path: (one, fact) for number, fact in enumerate(facts)}
        self.removed = [
            Removed(stream="A", sequences=Sequences.from_iterable(removed).to_text(), objects=1, bytes=1, at=0)
        ]

    async def fill(self) -> None:
        for path, (record, facts) in self.facts.items():
            if facts["stored"] != "gone":
                await self.store.put(path, b"x" * (record.bytes - (facts["stored"] == "cut")))

    async def find(self, store: MemoryStore, record: Stored, keys: object) -> Finding:
        """Return what reading an object again finds."""
        state = State(self.facts[record.path][1]["read"])
        held = Sequences.from_iterable([record.count, record.bytes]) if state is State.WRONG else None
        return objects.SOUND if state is State.SOUND else Finding(state, f"{record.path} is {state}", held, 2)

    def picture(self, moment: int, stream: str | None) -> tuple[list[Stored], Picture]:
        """Return the entries, and the archive with all its objects in its lists, in the order of an index."""
        there = [(one, facts) for one, facts in self.facts.values() if facts["since"] <= moment <= facts["until"]]
        there = sorted(there, key=lambda one: place_of(one[0]))
        there = [
            (
                one,
                facts | {"place": "consumed"}
                if facts["compacted"] and moment and facts["place"] == "adopted"
                else facts,
            )
            for one, facts in there
        ]
        where = Where(stream=stream)

        def select(*places: str, table: bool) -> list[Stored]:
            return [
                one
                for one, facts in there
                if (facts["folder"] == "table/") is table and facts["place"] in places and where.finds(one)
            ]

        blocks, consumed = select("adopted", "consumed", table=False), select("consumed", table=False)
        files = select("adopted", "consumed", "pending", "retired", table=True)
        retired = [Retired(one.path, 0.0) for one in select("retired", table=False)]
        manifest = Manifest(blocks=blocks, retired=retired, removed=self.removed, number=moment)
        table = Table(files=files, consumed=[place_of(one) for one in consumed], number=moment)
        entries = select("pending", "retired", "consumed", table=False)
        return entries, Picture(manifest, table, where)

    async def indexed(self, picture: Picture) -> Picture:
        """Return the picture as `read_documents` does: its objects are in indexes only."""
        documents = []
        for document in (picture.manifest, picture.table):
            index = Index(self.store, document.PAGES, sizes=SMALL)
            made = await update(index, Version(), document.listed, [], token=1, number=1)
            for name, data in made.pages.items():
                await self.store.put(page_path(document.PAGES, name), data, if_absent=False)
            documents.append(msgspec.structs.replace(document.with_listed([]), index=made.version))
        return Picture(documents[0], documents[1], picture.where)


async def check_same(facts: list[dict], removed: set[int], deep: bool, stream: str | None, live: bool) -> None:
    world = World(facts, removed)
    await world.fill()

    async def plain() -> tuple[list[Stored], Picture]:
        return world.picture(1, stream)

    async def streamed() -> tuple[list[Stored], Picture]:
        entries, picture = world.picture(1, stream)
        return entries, await world.indexed(picture)

    entries, listed = world.picture(0, stream)
    wanted = await plain_verification.read_archive(
        world.store, listed, deep=deep, pending_entries=entries, again=plain if live else None
    )
    found = await read_archive(
        world.store, await world.indexed(listed), deep=deep, pending_entries=entries, again=streamed if live else None
    )
    assert found == wanted
    for name, held in found.items():
        assert compare(held, None) == compare(wanted[name], None)


def some(number, **changed):
    usual = {"stream": "A", "key": "k", "format": "parquet", "held": {number}, "surplus": 0, "folder": "blocks/"}
    return (
        usual
        | {"place": "adopted", "since": 0, "until": 2, "compacted": False, "stored": "whole", "read": "sound"}
        | changed
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(records, max_size=25), sets, st.booleans(), st.sampled_from([None, "A"]), st.booleans())
@example([some(1, until=0, stored="gone"), some(2, read="wrong"), some(3, read="unchecked")], set(), True, None, True)
@example([some(1, until=0, stored="gone"), some(2, stored="gone")], set(), False, "A", True)
@example([some(1, compacted=True, stored="gone"), some(1, since=1, folder="table/")], set(), True, None, True)
@pytest.mark.long
def test_holdings_are_those_of_plain_sums_over_all_objects(facts, removed, deep, stream, live):
    with pytest.MonkeyPatch.context() as patch:
        world: list[World] = []
        patch.setattr(World, "fill", keep_last(world, World.fill))
        patch.setattr(objects, "_check_object", lambda *call: world[-1].find(*call))
        asyncio.run(check_same(facts, removed, deep, stream, live))


def keep_last(kept, fill):
    async def kept_fill(world):
        kept.append(world)
        await fill(world)

    return kept_fill


async def drop_pages(store, kept):
    """Delete the pages that these documents do not need."""
    needed = set()
    for picture in kept:
        for document in (picture.manifest, picture.table):
            index = Index(store, document.PAGES)
            needed |= {index.path(name) for name in await index.reach(document.index)}
    for one in await store.list("_index/"):
        if one.path not in needed:
            await store.delete(one.path)


async def test_pages_that_were_deleted_while_it_was_read_are_found_in_the_newer_index():
    world = World([*(some(number) for number in range(60)), some(60, since=1)], set())
    await world.fill()
    older, newer = [await world.indexed(world.picture(moment, None)[1]) for moment in (0, 1)]
    await drop_pages(world.store, [newer])
    asked = []

    async def again():
        asked.append(1)
        return [], newer

    found = await read_archive(world.store, older, deep=False, again=again)
    assert found["A"].stored == Sequences.from_range(0, 60)
    assert asked == [1]


async def test_a_page_that_is_missing_from_the_newest_index_is_an_error():
    world = World([some(number) for number in range(60)], set())
    await world.fill()
    picture = await world.indexed(world.picture(0, None)[1])
    await drop_pages(world.store, [])

    async def again():
        return [], picture

    for look in (None, again):
        with pytest.raises(ManifestError, match="is missing from"):
            await read_archive(world.store, picture, deep=False, again=look)


async def test_objects_that_were_checked_are_not_read_again_for_a_newer_index(monkeypatch):
    world, read = (
        World([some(0, until=0, stored="gone"), *(some(one) for one in range(1, 30)), some(0, since=1)], set()),
        [],
    )
    await world.fill()
    older, newer = [await world.indexed(world.picture(moment, None)[1]) for moment in (0, 1)]

    async def look(store, record, keys):
        read.append(record.path)
        return objects.SOUND

    async def again():
        return [], newer

    monkeypatch.setattr(objects, "_check_object", look)
    found = await read_archive(world.store, older, again=again)
    assert found["A"].stored == found["A"].proven == Sequences.from_range(0, 29)
    assert found["A"].problems == ()
    assert len(read) == len(set(read)) == 30


async def test_objects_that_must_be_encrypted_are_refused_as_they_are_read():
    world = World([some(1), some(2, format="parquet.enc"), some(3, folder="table/")], set())
    await world.fill()
    picture = await world.indexed(world.picture(0, None)[1])
    held = (await read_archive(world.store, picture, deep=False, trust=Trust(encrypted_only=True)))["A"]
    assert len(held.refused) == 2
    assert all("is not encrypted" in one for one in held.refused)
    assert replace(held, refused=()) == (await read_archive(world.store, picture, deep=False))["A"]


@given(st.sets(st.text()), st.sets(st.text()))
def test_fingerprints_know_what_was_added(added, others):
    known = Fingerprints()
    for half in (sorted(added)[::2], sorted(added)[1::2]):
        for one in half:
            known.add(one)
        assert all(one in known for one in half)
    assert len(known) == len(added)
    assert not any(one in known for one in others - added)
    assert len(known._buckets) == BUCKETS
