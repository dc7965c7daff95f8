"""What a derived table does not have yet, in archives with overlapping blocks, files of the table and late messages."""

import random

import pytest
from archived import STREAM, Archived, store_block

from capture.archive.manifest import TABLE, Manifest
from capture.archive.picture import read_documents
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.reading import increment
from capture.reading.increment import find_all_parts, find_new, find_parts
from capture.reading.inventory import Inventory


async def look(archive):
    picture = await read_documents(archive.store, archive.heads[Manifest].read, archive.heads[Table].read)
    return Inventory(archive.store, picture)


def given(part):
    return Sequences.from_text(part.given) if part.given else Sequences.from_bytes(part.stored.sequences)


def total(parts):
    """The sequences of all parts; none is in two of them."""
    sets = [given(one) for one in parts]
    assert not Sequences.find_repeated(sets)
    return Sequences.union_of(sets)


@pytest.mark.parametrize("seed", range(25))
async def test_each_new_message_is_in_one_part(seed, monkeypatch):
    chance = random.Random(seed)
    monkeypatch.setattr(increment, "APART", chance.choice([1, 3, 1 << 20]))
    monkeypatch.setattr(increment, "MOST_SPANS", chance.choice([1, 2, 64]))
    archive, stored, progress = Archived(), set(), Sequences()
    for _ in range(chance.randint(2, 6)):
        for _ in range(chance.randint(0, 4)):
            begin = chance.randint(1, 60)
            some = sorted(chance.sample(range(begin, begin + 20), chance.randint(1, 12)))  # with gaps, repeated ones
            await store_block(archive.store, some, key=chance.choice(["eu", "us"]))
            stored |= set(some)
        await archive.sweep()
        if chance.random() < 0.5:
            await archive.compact()
        inventory = await look(archive)
        new = await find_new(inventory, STREAM, progress)
        assert set(new) == stored - set(progress)
        assert total(await find_parts(inventory, STREAM, new)) == new
        assert set(total(await find_all_parts(inventory, STREAM))) == stored
        taken = Sequences.from_iterable(chance.sample(sorted(new), len(new) // 2))  # the others are late
        progress |= taken


async def test_a_part_of_a_whole_object_names_no_sequences():
    archive = Archived()
    await store_block(archive.store, [1, 2, 3])
    await archive.sweep()
    inventory = await look(archive)
    [whole] = await find_parts(inventory, STREAM, Sequences.from_range(1, 3))
    [some] = await find_parts(inventory, STREAM, Sequences.from_range(2, 3))
    assert (whole.given, set(given(some))) == ("", {2, 3})
    await archive.compact()
    [file] = await find_parts(await look(archive), STREAM, Sequences.from_range(1, 3))
    assert file.stored.path.startswith(TABLE)


async def test_of_nothing_there_is_nothing_to_read():
    archive = Archived()
    await store_block(archive.store, [1, 2, 3])
    await archive.sweep()
    inventory = await look(archive)
    assert not await find_new(inventory, STREAM, Sequences.from_range(1, 9))
    assert await find_parts(inventory, STREAM, Sequences()) == []
    assert await find_parts(inventory, "OTHER", Sequences.from_range(1, 9)) == []
