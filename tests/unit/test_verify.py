import hashlib
import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capture.chain import Retired
from capture.errors import StoreUnreadableError
from capture.manifest import Manifest, Stored, encode, entry_path
from capture.picture import Picture
from capture.sequences import Sequences
from capture.stores import MemoryStore
from capture.sweep import read_entries
from capture.table import Table
from capture.verify import Holdings, StreamView, compare, read_archive, sequences_in

some = st.sets(st.integers(1, 60))


def of(*sequences):
    return Sequences.from_iterable(sequences)


@given(st.integers(1, 40), st.integers(0, 50), some, some, some, some)
def test_every_sequence_is_in_exactly_one_class(first, last, deleted, stored, table, undecodable):
    last = max(last, first - 1)
    verdict = compare(
        StreamView(first=first, last=last, deleted=of(*deleted)), of(*stored), of(*table), of(*undecodable), 0
    )
    classes = [verdict.stored, verdict.undecodable, verdict.deleted, verdict.expired, verdict.missing]
    everything = Sequences.union_of(classes)
    assert sum(map(len, classes)) == len(everything)
    assert set(everything) == set(range(1, last + 1)) | stored | table
    assert set(verdict.missing) == set(range(first, last + 1)) - deleted - stored - table
    assert verdict.ok == (not verdict.missing)


def test_a_complete_archive_is_ok_and_says_so():
    held = Sequences.from_range(3, 9)
    verdict = compare(StreamView(first=3, last=10, deleted=of(10)), held, Sequences.from_range(3, 8), of(5), 0)
    assert verdict.ok
    assert verdict.sentence() == (
        "6 stored, 1 undecodable and kept raw, 1 deleted in the stream, 2 expired in the stream, "
        "1 of them not compacted yet; nothing is missing"
    )


def test_what_is_missing_is_named():
    verdict = compare(StreamView(first=1, last=10), of(1, 2, 3, 7), of(), of(), 0)
    assert not verdict.ok
    assert verdict.sentence().endswith("; 6 MISSING (4–6, 8–10)")
    assert verdict.as_dict()["missing_runs"] == [[4, 6], [8, 10]]
    assert verdict.as_dict()["ok"] is False


def test_rows_that_the_table_holds_twice_are_not_ok():
    verdict = compare(StreamView(first=1, last=1), of(1), of(1), of(), 2)
    assert not verdict.ok
    assert "2 twice in the table" in verdict.sentence()


def test_an_empty_stream_and_an_empty_archive_agree():
    verdict = compare(StreamView(first=1, last=0), of(), of(), of(), 0)
    assert verdict.ok
    assert verdict.sentence() == "nothing stored; nothing is missing"


def test_a_purged_stream_is_expired_where_the_archive_is_not():
    verdict = compare(StreamView(first=101, last=100), Sequences.from_range(1, 90), of(), of(), 0)
    assert verdict.ok
    assert list(verdict.expired.runs()) == [(91, 100)]


def test_what_is_above_the_streams_last_is_told_apart():
    verdict = compare(StreamView(first=1, last=2), of(1, 2, 3), of(), of(), 0)
    assert verdict.ok
    assert list(verdict.beyond) == [3]


def test_without_a_stream_nothing_can_be_missing_only_damaged():
    verdict = compare(None, of(1, 5), of(), of(), 0)
    assert verdict.ok
    assert (
        verdict.sentence() == "2 stored, 2 of them not compacted yet; every object is sound; the stream was not asked"
    )
    assert not compare(None, of(1, 5), of(), of(), 0, ["blocks/x is missing"]).ok


# --- reading the archive ---------------------------------------------------------------------------------------------


def archive(blocks=(), files=(), consumed=(), retired=()):
    manifest = Manifest(blocks=list(blocks), retired=[Retired(one.path, 0.0) for one in retired])
    return Picture(manifest, Table(files=list(files), consumed=[one.path for one in consumed]))


def parquet(sequences):
    file = io.BytesIO()
    pq.write_table(pa.table({"sequence": pa.array(sequences, pa.int64()), "payload": [b"x"] * len(sequences)}), file)
    return file.getvalue()


def ndjson(sequences):
    return b"".join(b'{"stream":"S","sequence":%d}\n' % one for one in sequences)


async def add(store, sequences, *, path=None, key="k", stream="S", data=None, format="parquet"):
    data = data or (parquet(sequences) if format == "parquet" else ndjson(sequences))
    sha256 = hashlib.sha256(data).hexdigest()
    record = Stored(
        path=path or f"blocks/{sha256[:8]}",
        stream=stream,
        key=key,
        interval=0,
        first=min(sequences),
        last=max(sequences),
        count=len(sequences),
        bytes=len(data),
        sha256=sha256,
        format=format,
        sequences=of(*sequences).to_text(),
    )
    await store.put(record.path, data)
    return record


@pytest.mark.parametrize("deep", [False, True])
async def test_a_sound_archive_is_what_its_records_say(deep):
    store = MemoryStore()
    blocks = [await add(store, [1, 2]), await add(store, [2, 3], format="ndjson"), await add(store, [9], stream="T")]
    table = [await add(store, [5, 4, 6], path="table/one")]
    raw = await add(store, [7, 1], key="_undecodable")
    view = await read_archive(store, archive([*blocks, raw], table), deep=deep)
    assert view.problems == []
    assert view.of("S") == Holdings(stored=of(1, 2, 3, 4, 5, 6, 7), table=of(4, 5, 6), undecodable=of(7))
    assert view.of("T").stored == of(9)
    assert view.of("U") == Holdings()
    assert view.of("S").compare(StreamView(first=1, last=7)).ok


@pytest.mark.parametrize("deep", [False, True])
async def test_an_object_that_is_missing_or_cut_off_holds_nothing(deep):
    store = MemoryStore()
    gone, cut, sound = await add(store, [1]), await add(store, [2, 3]), await add(store, [4])
    await store.delete(gone.path)
    await store.put(cut.path, (await store.get(cut.path))[:50], if_absent=False)
    view = await read_archive(store, archive([gone, cut, sound]), deep=deep)
    assert view.of("S").stored == of(4)
    assert view.problems == [f"{gone.path} is missing", f"{cut.path} has 50 bytes, not {cut.bytes:,}"]
    assert list(view.of("S").compare(StreamView(first=1, last=4)).missing) == [1, 2, 3]


async def test_a_changed_byte_is_found_by_reading_again():
    store = MemoryStore()
    record = await add(store, [1, 2, 3])
    data = bytearray(await store.get(record.path))
    data[10] ^= 1
    await store.put(record.path, bytes(data), if_absent=False)
    assert (await read_archive(store, archive([record]))).problems == []
    view = await read_archive(store, archive([record]), deep=True)
    assert view.problems == [f"{record.path} was changed: its SHA-256 is not the recorded one"]
    assert not view.of("S").stored


async def test_a_record_that_says_more_or_less_than_the_file_is_found_by_reading_again():
    store = MemoryStore()
    record = await add(store, [1, 2, 3])
    for lie, text in (
        ({"sequences": of(1, 2, 9).to_text()}, "without 9, with 3 besides"),
        ({"count": 4}, "has 3 rows, its record says 4"),
    ):
        view = await read_archive(store, archive([msgspec.structs.replace(record, **lie)]), deep=True)
        assert text in view.problems[0]
        assert view.of("S").stored == of(1, 2, 3)


@pytest.mark.parametrize("format", ["parquet", "ndjson", "csv"])
async def test_a_file_that_is_no_such_file_is_found_by_reading_again(format):
    store = MemoryStore()
    record = await add(store, [1], data=b"anything else", format=format)
    view = await read_archive(store, archive(files=[record]), deep=True)
    assert "can be read" in view.problems[0]


async def test_an_object_that_cannot_be_read_is_a_problem_not_the_end():
    class Unreadable(MemoryStore):
        async def get(self, path):
            raise StoreUnreadableError

    store = Unreadable()
    view = await read_archive(store, archive([await add(store, [1])]), deep=True)
    assert "can't be read: The store can't be read" in view.problems[0]


@pytest.mark.parametrize("deep", [False, True])
async def test_rows_that_two_table_files_hold_are_counted(deep):
    store = MemoryStore()
    table = [await add(store, [1, 2, 3], path="table/a"), await add(store, [3, 4], path="table/b")]
    holdings = (await read_archive(store, archive(files=table), deep=deep)).of("S")
    assert holdings.duplicates == 1
    assert not holdings.compare(StreamView(first=1, last=4)).ok


async def test_a_row_that_a_block_holds_twice_is_no_duplicate_of_the_table():
    store = MemoryStore()
    view = await read_archive(store, archive([await add(store, [1, 1, 2])]), deep=True)
    assert view.problems == []
    assert view.of("S").duplicates == 0


async def test_entries_that_wait_for_the_sweep_count_as_stored_once():
    store = MemoryStore()
    adopted, waiting, retired, consumed = [await add(store, [number]) for number in range(1, 5)]
    for one in (adopted, waiting, retired, consumed):
        await store.put(entry_path(one.path), encode(one))
    await store.put("_entries/bad.json", b"{")
    entries, unreadable = await read_entries(store)
    assert len(unreadable) == 1
    picture = archive([adopted], consumed=[consumed], retired=[retired])
    view = await read_archive(store, picture, pending_entries=entries)
    assert view.of("S").stored == of(1, 2)


async def test_a_block_that_the_table_names_is_left_out():
    store = MemoryStore()
    compacted, waiting = await add(store, [1, 2]), await add(store, [3])
    table = await add(store, [1, 2], path="table/one")
    await store.delete(compacted.path)
    view = await read_archive(store, archive([compacted, waiting], [table], consumed=[compacted]))
    assert view.problems == []
    assert view.of("S") == Holdings(stored=of(1, 2, 3), table=of(1, 2))


@pytest.mark.parametrize("format", ["parquet", "ndjson"])
async def test_ndjson_and_parquet_rows_have_their_sequences_in_order(format):
    store = MemoryStore()
    record = await add(store, [3, 1, 2], format=format)
    assert sequences_in(await store.get(record.path), record) == [3, 1, 2]
