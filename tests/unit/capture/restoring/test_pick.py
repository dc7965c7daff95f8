"""What a restore reads: each message once and in order, whatever overlaps; little is open, and little is in memory."""

import os
import tracemalloc
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from supplying import SECOND, block, put, supply_of

from capture.archive.manifest import Stored
from capture.archive.sequences import Sequences
from capture.errors import FormatError, NotStoredError
from capture.formats.batches import pieces
from capture.formats.envelope import to_table
from capture.formats.parquet import PAGE_ROWS
from capture.reading import merge
from capture.reading.shares import Selection
from capture.restoring import pick
from capture.restoring.pick import find_selected, rows_of
from capture.stores import MemoryStore

EVERYTHING = Sequences.from_range(1, 10**6)


async def merged(store, objects, wanted=EVERYTHING):
    tables = [table async for table in rows_of(store, await supply_of(objects), wanted)]
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "FAN_IN", 4)
        patch.setattr("capture.formats.batches.PIECE_ROWS", 4)
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


async def test_a_message_that_stands_in_two_pieces_comes_once(monkeypatch):
    monkeypatch.setattr("capture.formats.batches.PIECE_ROWS", 4)
    store = MemoryStore("a")
    found = await merged(store, [await put(store, "blocks/a", [1] * 6 + [2] * 3 + [3])])
    assert [row["sequence"] for row in found] == [1, 2, 3]


@pytest.mark.parametrize("memory", [0, merge.MEMORY_BYTES])
async def test_of_many_objects_at_one_place_few_are_open_and_nothing_stays_on_the_disk(monkeypatch, memory):
    monkeypatch.setattr(pick, "MEMORY_BYTES", memory)
    store, count, most, folds = MemoryStore("a"), 90, 0, 0
    objects = [await put(store, f"blocks/{one}", range(1 + one, 1000, count)) for one in range(count)]
    step, fold = merge._step, merge._Opener.fold
    files = len(list(Path("/proc/self/fd").iterdir()))

    def counting(active, *given):
        nonlocal most
        most = max(most, len(active))
        return step(active, *given)

    def folding(self, active):
        nonlocal folds
        folds += 1
        fold(self, active)

    monkeypatch.setattr(merge, "_step", counting)
    monkeypatch.setattr(merge._Opener, "fold", folding)
    found = await merged(store, objects)
    assert [row["sequence"] for row in found] == list(range(1, 1000))
    assert most == merge.FAN_IN
    assert folds == (count - merge.FAN_IN + merge.FAN_IN // 2 - 2) // (merge.FAN_IN // 2 - 1)  # each makes 8 to one
    assert len(list(Path("/proc/self/fd").iterdir())) == files


@pytest.mark.parametrize(
    ("format", "compression"), [("parquet", ""), ("ndjson", "zstd"), ("raw", "gzip")], ids=["parquet", "ndjson", "raw"]
)
@pytest.mark.long
async def test_memory_is_that_of_pieces_whatever_the_size_of_the_objects(format, compression):
    store, payload = MemoryStore("a"), os.urandom(20_000)
    objects = [
        await put(
            store, f"blocks/{one}", range(1 + one, 2001, 4), format, compression, payload=lambda sequence: payload
        )
        for one in range(4)
    ]
    assert sum(one.count for one in objects) * len(payload) == 40_000_000
    pool, total, most = pa.default_memory_pool(), 0, 0
    before = pool.bytes_allocated()
    tracemalloc.start()
    async with aclosing(rows_of(store, await supply_of(objects), EVERYTHING)) as tables:
        async for table in tables:
            total += len(table)
            most = max(most, pool.bytes_allocated() - before)
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 2000
    assert most < 24 << 20, f"Arrow had {most:,} bytes"
    assert python < 16 << 20, f"Python had {python:,} bytes"  # the store's own objects were there before


async def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path):
    rows = to_table(block(range(1, 257), payload=lambda sequence: os.urandom(1 << 18)).records)
    file = tmp_path / "one.parquet"
    pq.write_table(rows, file, row_group_size=len(rows), use_dictionary=[], write_batch_size=PAGE_ROWS)
    stored = block(range(1, 257))
    record = Stored(
        path="table/one", stream="S", key="k", interval=0, first=1, last=256, count=256, bytes=0, sha256="",
        format="parquet", sequences=Sequences.from_range(1, stored.last).to_bytes(),
    )  # fmt: skip
    del rows
    tracemalloc.start()
    with file.open("rb") as source:
        assert sum(len(piece) for piece in pieces(source, record)) == 256
    python = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert python < 16 << 20, f"{python:,} bytes of {file.stat().st_size:,} were read at once"


async def test_rows_of_very_different_sizes_are_cut_by_their_bytes():
    store = MemoryStore("a")
    one = await put(
        store, "blocks/a", range(1, 1001), payload=lambda sequence: b"x" * (10 if sequence < 970 else 1 << 18)
    )
    found = [table.nbytes async for table in rows_of(store, await supply_of([one]), EVERYTHING)]
    assert max(found) <= 1 << 20


async def test_an_object_that_is_not_what_its_record_says_is_named():
    store = MemoryStore("a")
    good = await put(store, "blocks/good", [1, 2, 3])
    changed = await put(store, "blocks/changed", [4, 5])
    replaced = msgspec.structs.replace(changed, sha256="0" * 64)
    with pytest.raises(FormatError, match=r"blocks/changed was changed: its SHA-256 is not the recorded one"):
        await merged(store, [good, replaced])
    with pytest.raises(FormatError, match="blocks/changed: it has 2 rows, its record says 3"):
        await merged(store, [good, msgspec.structs.replace(changed, count=3)])
    with pytest.raises(NotStoredError):
        await merged(store, [good, msgspec.structs.replace(changed, path="blocks/gone")])
    csv = await put(store, "blocks/csv", [6], "csv")
    assert [row["sequence"] for row in await merged(store, [good, csv])] == [1, 2, 3]
    data = b"no parquet"
    await store.put("blocks/none", data)
    none = msgspec.structs.replace(changed, path="blocks/none", bytes=len(data), sha256=sha256(data).hexdigest())
    with pytest.raises(FormatError, match="blocks/none can't be read as parquet"):
        await merged(store, [none])


async def test_messages_are_chosen_by_time_and_subject_and_only_doubtful_objects_are_read():
    store = MemoryStore("a")
    objects = [await put(store, f"blocks/{one}", range(10 * one + 1, 10 * one + 11)) for one in range(4)]
    read, get = [], store.get

    async def noted(path):
        read.append(path)
        return await get(path)

    store.get = noted
    everything = Sequences.from_range(1, 40)
    selection = Selection(since_ns=13 * SECOND, until_ns=35 * SECOND + 1)
    assert list(await find_selected(store, await supply_of(objects), selection, everything)) == list(range(13, 36))
    assert read == ["blocks/1", "blocks/3"]
    selection = Selection(subjects=("s.1", "other"), until_ns=8 * SECOND + 1)
    assert list(
        await find_selected(store, await supply_of(objects), selection, everything - Sequences.from_range(4, 4))
    ) == [1, 7]
