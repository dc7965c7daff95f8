"""The merge: whatever overlaps, each message comes once and in order; little is open, and little is in memory."""

import os
import tracemalloc
from contextlib import aclosing
from hashlib import sha256

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.block import SealedBlock
from capture.errors import FormatError, NotStored
from capture.manifest import Stored
from capture.record import Records
from capture.restoring import rows
from capture.restoring.rows import Choice, chosen_rows, merged_rows, unfit
from capture.sequences import Sequences
from capture.stores import MemoryStore
from capture.writers import writer

SECOND = 10**9


def block(sequences, payload=lambda sequence: b"%d" % sequence):
    sequences = sorted(sequences)
    count = len(sequences)
    return SealedBlock(
        "S",
        "k",
        0,
        Records(
            "S",
            sequences,
            [one * SECOND for one in sequences],
            [b"s.%d" % (one % 3) for one in sequences],
            [b"NATS/1.0\r\nA: b\r\n\r\n" if one % 2 else b"" for one in sequences],
            [payload(one) for one in sequences],
            [1] * count,
            [b"$JS.ACK.S.c.1.%d.%d.%d.0" % (one, one, one) for one in sequences],
            [None] * count,
        ),
        "stop",
    )


async def put(store, path, sequences, format="parquet", compression="", **options):
    made_by = writer(format, compression=compression)
    one = block(sequences, **options)
    data = made_by.write(one)
    await store.put(path, data)
    return Stored(
        path=path,
        stream="S",
        key="k",
        interval=0,
        first=one.first,
        last=one.last,
        count=one.count,
        bytes=len(data),
        sha256=sha256(data).hexdigest(),
        format=made_by.format,
        sequences=Sequences.from_iterable(sequences).to_text(),
        min_ns=one.first * SECOND,
        max_ns=one.last * SECOND,
    )


async def merged(store, objects, **options):
    tables = [table async for table in merged_rows(store, objects, **options)]
    return pa.concat_tables(tables).to_pylist() if tables else []


BLOCKS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 60), min_size=1, max_size=20),
        st.sampled_from([("parquet", ""), ("ndjson", "zstd"), ("raw", ""), ("raw", "gzip")]),
    ),
    max_size=7,
)


@settings(max_examples=25)
@given(BLOCKS, st.sets(st.integers(1, 60)))
async def test_a_merge_of_overlapping_blocks_is_their_set_in_order(blocks, wanted):
    before = rows.FAN_IN, rows.WINDOW_ROWS
    rows.FAN_IN, rows.WINDOW_ROWS = 2, 4
    try:
        store = MemoryStore("a")
        objects = [
            await put(store, f"blocks/{number}", sequences, *form) for number, (sequences, form) in enumerate(blocks)
        ]
        everything = sorted({one for sequences, _ in blocks for one in sequences})
        found = await merged(store, objects)
        assert [row["sequence"] for row in found] == everything
        assert [row["payload"] for row in found] == [b"%d" % one for one in everything]
        assert [row["header_block"] or None for row in found] == [
            b"NATS/1.0\r\nA: b\r\n\r\n" if one % 2 else None for one in everything
        ]
        some = await merged(store, objects, wanted=Sequences.from_iterable(wanted))
        assert [row["sequence"] for row in some] == [one for one in everything if one in wanted]
    finally:
        rows.FAN_IN, rows.WINDOW_ROWS = before


async def test_a_message_that_stands_in_two_windows_comes_once(monkeypatch):
    monkeypatch.setattr(rows, "WINDOW_ROWS", 4)
    store = MemoryStore("a")
    found = await merged(store, [await put(store, "blocks/a", [1] * 6 + [2] * 3 + [3])])
    assert [row["sequence"] for row in found] == [1, 2, 3]


async def test_of_many_objects_at_one_place_few_are_open_and_nothing_stays_on_the_disk(tmp_path, monkeypatch):
    store, count, most = MemoryStore("a"), 90, 0
    objects = [await put(store, f"blocks/{one}", range(1 + one, 1000, count)) for one in range(count)]
    opened, closed = rows._Open.__init__, rows._Open.advance
    now = 0

    def counting(self, *arguments):
        nonlocal now, most
        opened(self, *arguments)
        now += 1
        most = max(most, now)

    def ending(self):
        nonlocal now
        if more := closed(self):
            return more
        now -= 1
        return more

    monkeypatch.setattr(rows._Open, "__init__", counting)
    monkeypatch.setattr(rows._Open, "advance", ending)
    found = await merged(store, objects, scratch=tmp_path)
    assert [row["sequence"] for row in found] == list(range(1, 1000))
    assert rows.FAN_IN < most <= 2 * rows.FAN_IN + 1
    assert list(tmp_path.iterdir()) == []


async def test_memory_is_that_of_windows_whatever_the_size_of_the_objects(tmp_path):
    store, payload = MemoryStore("a"), os.urandom(20_000)
    objects = [
        await put(store, f"blocks/{one}", range(1 + one, 2001, 4), payload=lambda sequence: payload) for one in range(4)
    ]
    assert sum(one.count for one in objects) * len(payload) == 40_000_000
    pool, total, most = pa.default_memory_pool(), 0, 0
    before = pool.bytes_allocated()
    tracemalloc.start()
    async with aclosing(merged_rows(store, objects, scratch=tmp_path)) as tables:
        async for table in tables:
            total += len(table)
            most = max(most, pool.bytes_allocated() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 2000
    assert most < 24 << 20, f"Arrow had {most:,} bytes"
    assert python < 12 << 20, f"Python had {python:,} bytes"  # the memory store's objects were there before


async def test_an_object_that_is_not_what_its_record_says_is_named():
    store = MemoryStore("a")
    good = await put(store, "blocks/good", [1, 2, 3])
    changed = await put(store, "blocks/changed", [4, 5])
    replaced = msgspec.structs.replace(changed, sha256="0" * 64)
    with pytest.raises(FormatError, match=r"blocks/changed was changed or cut off"):
        await merged(store, [good, replaced])
    with pytest.raises(FormatError, match="blocks/changed does not hold as many rows"):
        await merged(store, [good, msgspec.structs.replace(changed, count=3)])
    with pytest.raises(NotStored):
        await merged(store, [good, msgspec.structs.replace(changed, path="blocks/gone")])
    csv = await put(store, "blocks/csv", [6], "csv")
    assert unfit([good, csv]) == ["blocks/csv"]
    with pytest.raises(FormatError, match="blocks/csv is csv, which does not keep messages whole"):
        await merged(store, [good, csv])
    data = b"no parquet"
    await store.put("blocks/none", data)
    none = msgspec.structs.replace(changed, path="blocks/none", bytes=len(data), sha256=sha256(data).hexdigest())
    with pytest.raises(FormatError, match="blocks/none can't be read"):
        await merged(store, [none])


async def test_messages_are_chosen_by_time_and_subject_and_only_doubtful_objects_are_read():
    store = MemoryStore("a")
    objects = [await put(store, f"blocks/{one}", range(10 * one + 1, 10 * one + 11)) for one in range(4)]
    read, get = [], store.get_range

    async def counted(path, start, length):
        read.append(path)
        return await get(path, start, length)

    store.get_range = counted
    everything = Sequences.from_range(1, 40)
    choice = Choice(after_ns=12 * SECOND, upto_ns=35 * SECOND)
    assert list(await chosen_rows(store, objects, choice, wanted=everything)) == list(range(13, 36))
    assert set(read) == {"blocks/1", "blocks/3"}
    choice = Choice(subjects=("s.1", "other"), upto_ns=8 * SECOND)
    assert list(await chosen_rows(store, objects, choice, wanted=everything - Sequences.from_range(4, 4))) == [1, 7]
