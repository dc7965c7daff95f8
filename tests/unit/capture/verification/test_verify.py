from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from sealed import block

from capture.archive.chain import Retired
from capture.archive.encryption import Keys
from capture.archive.manifest import Manifest, Removed, Stored, encode, entry_path
from capture.archive.picture import Picture
from capture.archive.sequences import Sequences
from capture.archive.table import Table
from capture.errors import StoreUnreadableError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.maintenance.sweep import read_entries
from capture.stores import MemoryStore
from capture.verification import objects
from capture.verification.objects import read_archive
from capture.verification.verdict import StreamReport, compare

some = st.sets(st.integers(1, 60))
KEYS = Keys({"k": bytes(range(32))})
FORMATS = [
    ("parquet", "", None), ("parquet", "", KEYS), ("ndjson", "", None), ("ndjson", "gzip", KEYS), ("raw", "zstd", None),
    ("raw", "", KEYS), ("csv", "", None), ("csv", "snappy", KEYS),
]  # fmt: skip


def of(*sequences):
    return Sequences.from_iterable(sequences)


def upto(first, last):
    return Sequences.from_range(first, last)


class Ignored:
    def ack(self, messages): ...

    def nak(self, messages, delay=0.0): ...


def archive(blocks=(), files=(), consumed=(), retired=(), removed=()):
    manifest = Manifest(blocks=list(blocks), retired=[Retired(one.path, 0.0) for one in retired], removed=list(removed))
    return Picture(manifest, Table(files=list(files), consumed=[one.path for one in consumed]))


def sealed(sequences, stream="S", key="k"):
    records = block(*[(b"a", b"", b'{"n":1}')] * len(sequences)).records
    times = [1_792_540_800_000_000_000 + one for one in sequences]
    records = replace(records, stream=stream, sequences=list(sequences), times_ns=times)
    return SealedBlock(stream, key, 1_792_540_800, records, "age")


async def add(store, sequences, *, stream="S", key="k", format="parquet", compression="", keys=None, path=None):
    """Store a block as nodes do, or a file of the table under a path, and return its record."""
    wanted = writer(format, compression=compression, keys=keys)
    stored = await Committer(store, wanted, Ignored()).commit(sealed(sequences, stream, key))
    await store.delete(entry_path(stored.path))
    if path is None:
        return stored
    await store.put(path, await store.get(stored.path))
    await store.delete(stored.path)
    return msgspec.structs.replace(stored, path=path)


def problems_of(streams):
    return [problem for held in streams.values() for problem in held.problems]


async def change(store, record, change):
    await store.put(record.path, change(await store.get(record.path)), if_absent=False)


@pytest.mark.parametrize("deep", [False, True])
async def test_a_sound_archive_is_what_its_records_say(deep):
    store = MemoryStore()
    blocks = [await add(store, [1, 2]), await add(store, [2, 3], format="ndjson"), await add(store, [9], stream="T")]
    table = [await add(store, [4, 5, 6], path="table/one")]
    raw = await add(store, [1, 7], key="_undecodable")
    view = await read_archive(store, archive([*blocks, raw], table), deep=deep)
    held = view["S"]
    assert problems_of(view) == []
    assert held.stored == of(1, 2, 3, 4, 5, 6, 7)
    assert (held.table, held.undecodable, held.proven) == (of(4, 5, 6), of(7), held.stored if deep else of())
    assert (held.objects, held.bytes) == (4, sum(one.bytes for one in [*blocks[:2], *table, raw]))
    assert view["T"].stored == of(9)
    assert "U" not in view
    assert compare(held, StreamReport(first=1, last=7)).ok


@pytest.mark.parametrize(("format", "said"), [("ndjson", "kept raw"), ("csv", "not kept whole")])
async def test_undecodable_messages_are_kept_raw_only_where_the_format_keeps_messages_whole(format, said):
    store = MemoryStore()
    blocks = [await add(store, [1], format=format), await add(store, [2, 3], key="_undecodable", format=format)]
    own = await add(store, [3], key="_undecodable", format="raw")
    held = (await read_archive(store, archive(blocks)))["S"]
    assert held.undecodable == of(2, 3)
    assert held.incomplete == ({} if format == "ndjson" else {"csv": of(1, 2, 3)})
    stream = StreamReport(first=1, last=3)
    assert compare(held, stream).sentence().startswith(f"1 stored, 2 undecodable and {said}, ")
    held = (await read_archive(store, archive([*blocks, own])))["S"]
    assert held.incomplete == ({} if format == "ndjson" else {"csv": of(1, 2)})
    if format == "csv":
        wanted = "1 stored, 1 undecodable and kept raw, 1 undecodable and not kept whole, "
        assert compare(held, stream).sentence().startswith(wanted)


@pytest.mark.parametrize(("format", "compression", "keys"), FORMATS)
async def test_every_format_is_read_again_and_what_is_changed_is_found(format, compression, keys):
    store = MemoryStore()
    record = await add(store, [3, 5, 9], format=format, compression=compression, keys=keys)
    assert (record.min_ns, record.max_ns) == (1_792_540_800_000_000_003, 1_792_540_800_000_000_009)
    held = (await read_archive(store, archive([record]), keys=keys))["S"]
    assert (held.problems, held.unchecked, held.stored) == ((), (), of(3, 5, 9))
    assert held.proven == (of() if format == "csv" else of(3, 5, 9))  # it keeps no payload of what it makes rows of
    for fact, lie in (
        ("sequences", of(3, 5, 10).to_bytes()), ("count", 4), ("first", 2), ("last", 10), ("min_ns", 1), ("max_ns", 2),
        ("interval", 1_792_540_801),
    ):  # fmt: skip
        told = msgspec.structs.replace(record, **{fact: lie})
        held = (await read_archive(store, archive([told]), keys=keys))["S"]
        assert len(held.problems) == 1, fact
        assert not held.proven, fact
    await change(store, record, lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:])
    held = (await read_archive(store, archive([record]), keys=keys))["S"]
    assert held.problems == (f"{record.path} was changed: its SHA-256 is not the recorded one",)
    assert (held.stored, held.lost) == (of(), of(3, 5, 9))


@pytest.mark.parametrize("deep", [False, True])
async def test_an_object_that_is_missing_or_cut_off_holds_nothing(deep):
    store = MemoryStore()
    gone, cut, longer, sound = [await add(store, [number]) for number in range(1, 5)]
    await store.delete(gone.path)
    await change(store, cut, lambda data: data[:50])
    await change(store, longer, lambda data: data + b"x")
    view = await read_archive(store, archive([gone, cut, longer, sound]), deep=deep)
    assert view["S"].stored == of(4)
    assert problems_of(view) == [
        f"{gone.path} is missing",
        f"{cut.path} has 50 bytes, not {cut.bytes:,}",
        f"{longer.path} has {longer.bytes + 1:,} bytes, not {longer.bytes:,}",
    ]
    assert list(compare(view["S"], StreamReport(first=1, last=4)).missing) == [1, 2, 3]


async def test_a_changed_byte_takes_reading_again():
    store = MemoryStore()
    record = await add(store, [1, 2, 3])
    await change(store, record, lambda data: data[:10] + bytes([data[10] ^ 1]) + data[11:])
    quick = (await read_archive(store, archive([record]), deep=False))["S"]
    assert (quick.problems, quick.stored, quick.proven) == ((), of(1, 2, 3), of())
    assert not (await read_archive(store, archive([record])))["S"].stored


async def test_of_a_record_that_lies_what_is_really_there_counts():
    store = MemoryStore()
    record = msgspec.structs.replace(await add(store, [1, 2, 3]), sequences=of(1, 2, 9).to_bytes())
    held = (await read_archive(store, archive([record])))["S"]
    assert held.problems == (f"{record.path} differs from its record: without 9, with 3 in addition",)
    assert (held.stored, held.lost, held.proven) == (of(1, 2, 3), of(9), of())


async def test_a_record_whose_sequences_are_unreadable_is_a_problem_not_the_end():
    store = MemoryStore()
    record = msgspec.structs.replace(await add(store, [1]), sequences=b"AAAA")
    for deep in (False, True):
        view = await read_archive(store, archive([record]), deep=deep)
        assert len(problems_of(view)) == 1


@pytest.mark.parametrize("format", ["parquet", "ndjson", "csv", "raw", "ndjson.gz", "parquet.enc", "unheard-of"])
async def test_a_file_that_is_no_such_file_is_found_by_reading_again(format):
    store = MemoryStore()
    record = await add(store, [1], format="ndjson")
    record = msgspec.structs.replace(record, format="ndjson" if format == "parquet" else format)
    if format in ("parquet", "ndjson"):
        await store.put(record.path, b"anything else", if_absent=False)
        record = msgspec.structs.replace(record, bytes=13, sha256="9" * 64)
    view = await read_archive(store, archive([record]), keys=KEYS)
    assert len(problems_of(view)) == 1
    assert not view["S"].stored


async def test_what_can_not_be_opened_for_want_of_a_key_is_unchecked_not_damaged():
    store = MemoryStore()
    record = await add(store, [1, 2], keys=KEYS)
    for keys, why in ((None, "there are no keys"), (Keys({"other": bytes(32)}), "the given ones are Keys(other)")):
        held = (await read_archive(store, archive([record]), keys=keys))["S"]
        assert (held.problems, held.stored, held.proven) == ((), of(1, 2), of())
        assert why in held.unchecked[0]


async def test_an_object_that_lies_in_another_ones_place_is_damaged():
    store = MemoryStore()
    one, other = await add(store, [1], keys=KEYS), await add(store, [2], keys=KEYS)
    swapped = msgspec.structs.replace(one, path=other.path, sha256=other.sha256, bytes=other.bytes)
    held = (await read_archive(store, archive([swapped]), keys=KEYS))["S"]
    assert "it is another object, S 2–2" in held.problems[0]
    assert held.lost == of(1)


async def test_an_object_that_can_not_be_read_is_unchecked_not_the_end():
    class Unreadable(MemoryStore):
        async def get_range(self, path, start, length):
            raise StoreUnreadableError

    store = Unreadable()
    held = (await read_archive(store, archive([await add(store, [1])])))["S"]
    assert "can't be read: The store can't be read" in held.unchecked[0]
    assert (held.problems, held.stored, held.proven) == ((), of(1), of())


@pytest.mark.parametrize("deep", [False, True])
async def test_rows_that_two_table_files_hold_are_counted(deep):
    store = MemoryStore()
    table = [await add(store, [1, 2, 3], path="table/a"), await add(store, [3, 4], path="table/b")]
    held = (await read_archive(store, archive(files=table), deep=deep))["S"]
    assert held.duplicates == 1
    assert not compare(held, StreamReport(first=1, last=4)).ok


async def test_a_row_that_a_block_holds_twice_is_no_duplicate_of_the_table():
    store = MemoryStore()
    held = (await read_archive(store, archive([await add(store, [1, 1, 2])])))["S"]
    assert (held.problems, held.duplicates) == ((), 0)


async def test_what_is_not_adopted_yet_is_stored_and_not_proven():
    store = MemoryStore()
    adopted, waiting, retired, consumed = [await add(store, [number]) for number in range(1, 5)]
    for one in (adopted, waiting, retired, consumed):
        await store.put(entry_path(one.path), encode(one))
    await store.put("_entries/bad.json", b"{")
    entries, unreadable = await read_entries(store)
    assert len(unreadable) == 1
    picture = archive([adopted], consumed=[consumed], retired=[retired])
    held = (await read_archive(store, picture, pending_entries=entries))["S"]
    assert (held.stored, held.proven) == (of(1, 2), of(1))


async def test_a_block_that_its_writer_gave_up_is_no_loss_unless_its_messages_were_acknowledged():
    store = MemoryStore()
    given_up, stored_again = await add(store, [1, 2, 3]), await add(store, [1, 2])
    await store.delete(given_up.path)
    held = (await read_archive(store, archive([stored_again]), pending_entries=[given_up]))["S"]
    assert (held.problems, held.lost) == ((), of())
    assert compare(held, StreamReport(first=1, last=2)).ok
    for view in (StreamReport(first=1, last=3), StreamReport(first=4, last=3), None):
        verdict = compare(held, view)
        assert list(verdict.missing) == [3]
        assert verdict.problems == (f"{given_up.path} is missing",)


async def test_a_block_that_the_table_names_is_left_out():
    store = MemoryStore()
    compacted, waiting = await add(store, [1, 2]), await add(store, [3])
    table = await add(store, [1, 2], path="table/one")
    await store.delete(compacted.path)
    view = await read_archive(store, archive([compacted, waiting], [table], consumed=[compacted]))
    assert problems_of(view) == []
    assert (view["S"].stored, view["S"].table) == (of(1, 2, 3), of(1, 2))


async def test_what_retention_has_removed_is_known_unless_it_is_there_all_the_same():
    store = MemoryStore()
    record = await add(store, [4, 5])
    removed = Removed(stream="S", sequences=upto(1, 4).to_text(), objects=1, bytes=1, at=0.0)
    held = (await read_archive(store, archive([record], removed=[removed])))["S"]
    assert (held.removed, held.stored) == (of(1, 2, 3), of(4, 5))


# --- while others work on it -----------------------------------------------------------------------------------------


async def test_a_block_that_is_compacted_and_removed_while_it_is_read_is_not_missing():
    store = MemoryStore()
    block, other = await add(store, [1, 2]), await add(store, [3])
    table = await add(store, [1, 2], path="table/one")
    await store.delete(block.path)
    asked = []

    async def again():
        asked.append(1)
        return [], archive([block, other], [table], consumed=[block])

    view = await read_archive(store, archive([block, other]), again=again)
    assert problems_of(view) == []
    assert (view["S"].stored, view["S"].table, view["S"].duplicates) == (of(1, 2, 3), of(1, 2), 0)
    assert asked == [1]


async def test_a_block_that_is_still_named_and_gone_is_missing():
    store = MemoryStore()
    gone, other = await add(store, [1]), await add(store, [2])
    await store.delete(gone.path)
    later = await add(store, [3])

    async def again():
        return [], archive([gone, other, later])

    view = await read_archive(store, archive([gone, other]), again=again)
    assert problems_of(view) == [f"{gone.path} is missing"]
    assert view["S"].lost == of(1)


async def test_who_waits_is_told_how_many_objects_were_looked_at():
    store = MemoryStore()
    blocks = [await add(store, [number]) for number in range(1, 7)]
    told = []
    await read_archive(store, archive(blocks), on_progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 6) for done in range(1, 7)]


# --- size ------------------------------------------------------------------------------------------------------------


async def test_objects_are_read_piece_by_piece(monkeypatch):
    monkeypatch.setattr(objects, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(objects, "SPOOL_BYTES", 2000)
    pieces = []

    class Pieces(MemoryStore):
        async def get_range(self, path, start, length):
            pieces.append(length)
            return await super().get_range(path, start, length)

    store = Pieces()
    wanted = writer("parquet", compression="none")
    record = await Committer(store, wanted, Ignored()).commit(sealed(range(1, 3001)))
    held = (await read_archive(store, archive([record])))["S"]
    assert (held.problems, held.proven) == ((), upto(1, 3000))
    assert set(pieces) == {1000}
    assert len(pieces) == -(-record.bytes // 1000)


def highest_memory():
    """Return the most resident memory of this process so far, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def test_ten_thousand_blocks_of_ten_million_messages_take_little_memory():
    """Each with every tenth message of its part of the stream: the sets have no long runs."""
    store, blocks = MemoryStore(), []
    for number in range(10_000):
        part, key = divmod(number, 10)
        held = Sequences.from_iterable(range(part * 10_000 + key + 1, (part + 1) * 10_000 + 1, 10))
        path = f"blocks/{number}"
        await store.put(path, b"x")
        blocks.append(
            Stored(
                path=path,
                stream="S",
                key=f"{key}",
                interval=0,
                first=held.first,
                last=held.last,
                count=len(held),
                bytes=1,
                sha256="",
                format="parquet",
                sequences=held.to_bytes(),
            )
        )
    picture = archive(blocks)
    Path("/proc/self/clear_refs").write_text("5")  # from here on the highest use of memory is counted anew
    before = highest_memory()
    view = await read_archive(store, picture, deep=False)
    verdict = compare(view["S"], StreamReport(first=1, last=10_000_000))
    used = highest_memory() - before
    print(f"{used / 1e6:.1f} MB for 10 000 blocks")
    assert verdict.ok
    assert len(verdict.stored) == 10_000_000
    assert used < 60e6
