import asyncio
import tempfile
from uuid import uuid4

import msgspec
import pytest
from archived import STREAM, Archived, Settled, records, store_block
from hypothesis import given, settings
from hypothesis import strategies as st
from retaining import stored as described

from capture.archive.encryption import Keys
from capture.archive.manifest import entry_path
from capture.archive.sequences import Sequences
from capture.errors import CipherError, FormatError, KeyMissingError, ManifestError, NotStoredError, SpillError
from capture.formats import writer
from capture.formats.envelope import to_records
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.reading import merge
from capture.reading.merge import make_look, merge_shares, read_stored
from capture.reading.shares import Selection, sequences_of, shares
from capture.stores import MemoryStore
from natty.config.units import parse_time

KEYS = Keys({"k": bytes(32)})
FORMATS = {
    "parquet": lambda: writer("parquet"),
    "ndjson": lambda: writer("ndjson"),
    "raw": lambda: writer("raw"),
    "ndjson.zst": lambda: writer("ndjson", compression="zstd"),
    "raw.gz": lambda: writer("raw", compression="gzip"),
    "raw.sz": lambda: writer("raw", compression="snappy"),
    "parquet.enc": lambda: writer("parquet", keys=KEYS),
    "ndjson.zst.enc": lambda: writer("ndjson", compression="zstd", keys=KEYS),
}
SEQUENCES = st.lists(st.integers(1, 60), min_size=1, max_size=25)


async def all_of(batches):
    return [batch async for batch in batches]


async def read(store, keys=KEYS, **options):
    batches = await all_of(read_stored(store, make_look(store, STREAM), keys=keys, **options))
    return [record for batch in batches for record in to_records(batch, STREAM)]


def sequences(rows):
    return [row.sequence for row in rows]


def as_published(numbers):
    return [(one.subject, one.header_block, one.payload, one.time_ns) for one in records(numbers)]


def content(rows):
    return [(one.subject, one.header_block, one.payload, one.time_ns) for one in rows]


@pytest.fixture
def store():
    return MemoryStore(f"reading-{uuid4().hex}")


@given(
    blocks=st.lists(st.tuples(SEQUENCES, st.sampled_from(sorted(FORMATS))), min_size=1, max_size=6),
    first=st.integers(1, 60),
    length=st.integers(0, 80),
    memory=st.sampled_from([0, 1, 5000, 64 << 20]),
)
@settings(max_examples=60)
async def test_every_message_comes_once_in_order_whatever_the_objects_are(blocks, first, length, memory):
    store = MemoryStore(uuid4().hex)
    for numbers, kind in blocks:
        await store_block(store, sorted(numbers), FORMATS[kind]())
    selection = Selection(start_sequence=first, end_sequence=first + length)
    found = await read(store, selection=selection, memory_bytes=memory)
    wanted = sorted({one for numbers, _ in blocks for one in numbers if first <= one <= first + length})
    assert sequences(found) == wanted
    assert content(found) == as_published(wanted)
    assert list(sequences_of(await make_look(store, STREAM)(), selection)) == wanted


@given(
    sets=st.lists(SEQUENCES, min_size=1, max_size=8),
    fan_in=st.sampled_from([2, 4, 16]),
    piece_rows=st.integers(1, 4),
    memory=st.sampled_from([0, 4000, 64 << 20]),
)
@settings(max_examples=60)
@pytest.mark.long
async def test_how_objects_are_cut_into_pieces_and_kept_makes_no_difference(sets, fan_in, piece_rows, memory):
    store = MemoryStore(uuid4().hex)
    for numbers in sets:
        await store_block(store, sorted(numbers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "FAN_IN", fan_in)
        patch.setattr("capture.formats.batches.PIECE_ROWS", piece_rows)
        found = await read(store, memory_bytes=memory)
    assert content(found) == as_published(sorted({one for numbers in sets for one in numbers}))


async def test_times_beyond_what_nanoseconds_of_64_bits_hold_are_before_and_after_everything(store):
    await store_block(store, [1, 2, 3])
    everything = Selection(since_ns=parse_time("0001-01-01T00:00:00Z"), until_ns=parse_time("9999-01-01T00:00:00Z"))
    assert sequences(await read(store, selection=everything)) == [1, 2, 3]
    assert sequences(await read(store, selection=Selection(until_ns=everything.since_ns))) == []


@given(sets=st.lists(st.sets(st.integers(1, 40)), max_size=8), first=st.integers(0, 40), last=st.integers(0, 50))
def test_a_plan_gives_each_selected_sequence_from_one_object_that_holds_it(sets, first, last):
    objects = [one for one in map(_described, range(len(sets)), sets) if one is not None]
    plan = shares(objects, Selection(start_sequence=first, end_sequence=last))
    given_ = [one for share in plan for one in share.given]
    assert sorted(given_) == [one for one in sorted(set().union(*sets)) if first <= one <= last]
    for share in plan:
        assert share.given | share.withheld == Sequences.from_bytes(share.stored.sequences)
        assert share.given.isdisjoint(share.withheld)
    firsts = [share.given.first for share in plan]
    assert firsts == sorted(firsts)


def _described(number, numbers, folder="blocks", format="parquet"):
    if not numbers:
        return None
    entry = described(min(numbers), max(numbers), stream=STREAM, folder=folder, key=str(number))
    return msgspec.structs.replace(entry, sequences=Sequences.from_iterable(numbers).to_bytes(), format=format)


def test_the_table_gives_what_blocks_hold_too_and_csv_only_what_nothing_else_holds():
    block, file = _described(1, {1, 2, 3}), _described(2, {2, 3}, folder="table")
    csv = _described(3, {1, 4}, format="csv")
    plan = shares([csv, block, file])
    assert {share.stored.path: list(share.given) for share in plan} == {
        file.path: [2, 3],
        block.path: [1],
        csv.path: [4],
    }


async def test_adopted_waiting_and_compacted_are_one_and_other_streams_are_none():
    archived = await Archived().make()
    assert sequences(await read(archived.store)) == [1, 2, 3, 4, 6, 7, 8, 9]
    await archived.sweep()
    await archived.compact()
    assert sequences(await read(archived.store)) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert await all_of(read_stored(archived.store, make_look(archived.store, "OTHER"))) == []


async def test_a_message_that_was_delivered_twice_is_kept_as_it_came_first(store):
    twice = records([5, 5, 6])
    twice.deliveries = [1, 2, 1]
    await _commit(store, twice)
    assert [(one, two) async for one, two in _columns(store, "sequence", "deliveries")] == [(5, 1), (6, 1)]


async def _commit(store, kept, made_by=None):
    block = SealedBlock(STREAM, "eu", 1_795_230_000, kept, "age")
    return await Committer(store, made_by or writer("parquet"), Settled()).commit(block)


async def _columns(store, *names):
    async for batch in read_stored(store, make_look(store, STREAM), columns=names):
        assert batch.schema.names == list(names)
        for row in batch.to_pylist():
            yield tuple(row.values())


# --- what is selected ------------------------------------------------------------------------------------------------


async def test_times_and_subjects_are_selected_and_objects_of_other_times_are_not_read(store):
    for numbers in ([1, 2], [4, 5], [7, 8]):
        await store_block(store, numbers)
    since, until = records([2]).times_ns[0], records([5]).times_ns[0]
    assert sequences(await read(store, selection=Selection(since_ns=since, until_ns=until))) == [2, 4]
    chosen = Selection(subjects=("orders.4", "orders.7"))
    assert sequences(await read(store, selection=chosen)) == [4, 7]
    assert [one async for one in _only(store, Selection(subjects=("orders.8",)), "payload")] == [b"8"]

    unread = [one.path for one in await make_look(store, STREAM)() if one.first == 7]
    await store.put(unread[0], b"changed", if_absent=False)
    assert sequences(await read(store, selection=Selection(until_ns=until))) == [1, 2, 4]
    with pytest.raises(FormatError):
        await read(store)


async def _only(store, selection, column):
    async for batch in read_stored(store, make_look(store, STREAM), columns=[column], selection=selection):
        for value in batch.column(column).to_pylist():
            yield value


@pytest.mark.parametrize(
    ("pattern", "taken"),
    [
        ("a.b", {"a.b"}),
        ("a.*", {"a.b", "a.c"}),
        ("a.>", {"a.b", "a.c", "a.b.c", "a.c.d\nx"}),
        ("*.b.*", {"a.b.c"}),
        (">", {"a", "a.b", "a.c", "a.b.c", "a.c.d\nx", "aXb"}),
        ("a+", set()),
    ],
)
async def test_subjects_match_as_servers_match_them(store, pattern, taken):
    subjects = ["a", "a.b", "a.c", "a.b.c", "a.c.d\nx", "aXb"]
    kept = records(range(1, len(subjects) + 1))
    kept.subjects = [one.encode() for one in subjects]
    await _commit(store, kept)
    assert {one.subject for one in await read(store, selection=Selection(subjects=(pattern,)))} == taken


# --- what is wrong ---------------------------------------------------------------------------------------------------


async def test_an_object_that_is_not_what_was_recorded_is_named(store):
    entry = await store_block(store, [1, 2, 3])
    data = await store.get(entry.path)
    wrong = [
        (data[:-10], f"{entry.path} has {len(data) - 10:,} bytes, not {len(data):,}: it was cut off or changed"),
        (data[:-1] + b"?", f"{entry.path} was changed: its SHA-256 is not the recorded one"),
    ]
    for changed, sentence in wrong:
        await store.put(entry.path, changed, if_absent=False)
        for memory in (0, 64 << 20):
            with pytest.raises(FormatError) as caught:
                await read(store, memory_bytes=memory)
            assert str(caught.value) == sentence


async def _with_entry(store, entry, **changes):
    changed = msgspec.structs.replace(entry, **changes)
    await store.put(entry_path(entry.path), msgspec.json.encode(changed), if_absent=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"count": 4}, "it has 3 rows, its record says 4"),
        ({"last": 4, "sequences": Sequences.from_range(1, 4).to_bytes()}, "1 message is missing"),
        ({"sequences": Sequences.from_iterable([1, 3]).to_bytes()}, "holds messages that its record does not name"),
        ({"sequences": b""}, "its sequences are not from 1 to 3"),
        ({"sequences": b"?"}, "not a set of sequences"),
        ({"format": "parquet2"}, "'parquet2' is not a format that this version reads"),
        ({"format": "ndjson"}, "can't be read as ndjson"),
        ({"version": 2}, "has format 2; this version reads up to 1"),
    ],
)
async def test_a_record_that_says_something_else_is_no_silence(store, changes, said):
    entry = await store_block(store, [1, 2, 3])
    await _with_entry(store, entry, **changes)
    with pytest.raises((FormatError, ManifestError)) as caught:
        await read(store)
    assert said in str(caught.value)
    assert entry.path.rpartition("/")[2].removesuffix(".parquet") in str(caught.value)


async def test_csv_is_refused_by_name_where_nothing_else_holds_its_messages(store):
    in_csv = records([1, 2])
    in_csv.replies = [b"$JS.ACK.ORDERS.c.1.1.1.0.0"] * 2
    await _commit(store, in_csv, writer("csv"))
    await store_block(store, [2, 3])
    with pytest.raises(FormatError, match=r"\.csv: csv does not keep messages whole"):
        await read(store)
    await store_block(store, [1])
    assert sequences(await read(store)) == [1, 2, 3]


async def test_without_the_key_or_with_another_one_the_object_is_named(store):
    entry = await store_block(store, [1], writer("raw", keys=KEYS))
    for keys, said in ((None, "it is encrypted, and there are no keys"), (Keys({"k": b"x" * 32}), "is not the one")):
        with pytest.raises(KeyMissingError) as caught:
            await read(store, keys=keys)
        assert str(caught.value).startswith(f"{entry.path}: ")
        assert said in str(caught.value)
    assert issubclass(KeyMissingError, CipherError)


async def test_an_entry_whose_block_its_writer_gave_up_holds_nothing(store):
    entry = await store_block(store, [1, 2])
    await store_block(store, [2, 3])
    await store.delete(entry.path)
    assert sequences(await read(store)) == [2, 3]


async def test_an_object_that_is_adopted_and_gone_is_named():
    archived = await Archived().make()
    (lost,) = await archived.paths("table/")
    await archived.store.delete(lost)
    with pytest.raises(NotStoredError, match="and the archive still names it") as caught:
        await read(archived.store)
    assert lost in str(caught.value)


async def test_a_full_disk_is_told_as_one(store, monkeypatch):
    entry = await store_block(store, [1, 2])

    class Full:
        def write(self, data):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(tempfile, "TemporaryFile", Full)
    with pytest.raises(SpillError, match="No space left on device; free space there, or set TMPDIR"):
        await read(store, memory_bytes=0)
    assert entry.count == 2


# --- while the archive changes ---------------------------------------------------------------------------------------


async def test_what_is_compacted_and_swept_away_meanwhile_is_read_where_it_is_then(monkeypatch):
    monkeypatch.setattr(merge, "AHEAD_SMALL", 1)
    archived = Archived()
    await store_block(archived.store, range(1, 5))
    await store_block(archived.store, range(5, 9))
    await store_block(archived.store, range(9, 12), writer("raw"))
    await archived.sweep()
    batches = read_stored(archived.store, make_look(archived.store, STREAM))
    found = [await anext(batches)]
    await archived.compact()
    await archived.sweep()
    archived.now += 10_000
    await archived.sweep()  # the blocks are gone
    assert await archived.paths("blocks/") == []
    found += await all_of(batches)
    assert [one for batch in found for one in batch.column("sequence").to_pylist()] == list(range(1, 12))


async def test_reading_that_is_given_up_leaves_nothing_open(store):
    for number in range(1, 30, 3):
        await store_block(store, [number, number + 1, 40 + number])
    before = asyncio.all_tasks()
    for memory in (0, 64 << 20):
        batches = read_stored(store, make_look(store, STREAM), memory_bytes=memory)
        await anext(batches)
        await batches.aclose()
    assert asyncio.all_tasks() == before


async def test_objects_are_opened_only_when_they_are_needed(store):
    for number in range(1, 100, 2):
        await store_block(store, [number, number + 1])
    objects = await make_look(store, STREAM)()
    plan = shares(objects)
    opened = []
    get = store.get
    store.get = lambda path: (opened.append(path), get(path))[1]
    batches = merge_shares(store, plan)
    await anext(batches)
    assert len(opened) <= merge.AHEAD_SMALL + 2
    await batches.aclose()


@pytest.mark.parametrize("few", [0, 1, 5])
@pytest.mark.long
async def test_small_objects_are_fetched_together_within_an_eighth_of_the_memory(store, few):
    for number in range(1, 101):
        await store_block(store, [number])
    plan = shares(await make_look(store, STREAM)())
    size = max(one.stored.bytes for one in plan)
    on_their_way, most, get = 0, 0, store.get

    async def watched(path):
        nonlocal on_their_way, most
        on_their_way += 1
        most = max(most, on_their_way)
        for _ in range(3):
            await asyncio.sleep(0)
        on_their_way -= 1
        return await get(path)

    store.get = watched
    memory = 8 * size * few if few else merge.MEMORY_BYTES
    found = [row for batch in await all_of(merge_shares(store, plan, memory_bytes=memory)) for row in batch["sequence"]]
    assert len(found) == 100
    assert most == {0: merge.AHEAD_SMALL, 1: merge.AHEAD, 5: 5}[few]
