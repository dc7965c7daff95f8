"""Rows of any amount are sorted in bounded memory, and a group's merge is the same whether they fit in it or not."""

import asyncio
import random
from hashlib import sha256
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest
from merging import KEYS, block, every_format, evolving, group, table_of

from capture.archive.sequences import Sequences
from capture.errors import CompactionError
from capture.formats import read_object
from capture.maintenance.engine import Merged
from capture.maintenance.merge import external_sort
from capture.maintenance.merge.external_sort import Runs
from capture.maintenance.merge.inputs import columns_of
from capture.maintenance.merge.merge_group import merge_group
from capture.maintenance.merge.scratch_file import Temporary
from capture.spark.merge_task import StoreAccess, Task, carry_out
from capture.spark.scratch import PREFIX
from capture.stores import FileStore, open_store
from capture.testing import ArrowEngine

SCHEMA = pa.schema([("sequence", pa.int64()), ("deliveries", pa.int32()), ("payload", pa.binary())])


def rows_of(numbers, size=8):
    """Rows with these sequences and deliveries; the payload tells which row it was."""
    columns = [
        [one for one, _ in numbers],
        [many for _, many in numbers],
        [b"%0*d" % (size, n) for n in range(len(numbers))],
    ]
    return pa.table(columns, schema=SCHEMA)


def added(folder, rows, *, memory_bytes, at_once=50, encrypted=False):
    held = Runs(folder, SCHEMA, memory_bytes, encrypted=encrypted)
    for start in range(0, len(rows), at_once):
        held.add(rows.slice(start, at_once))
    return held


@pytest.mark.parametrize("memory_bytes", [1 << 30, 10_000, 0], ids=["in memory", "in some files", "a file each time"])
@pytest.mark.parametrize("most_runs", [3, 64])
@pytest.mark.parametrize("encrypted", [False, True])
def test_rows_come_back_sorted_alike_ones_in_the_order_in_which_they_came(
    tmp_path, monkeypatch, memory_bytes, most_runs, encrypted
):
    monkeypatch.setattr(external_sort, "MOST_RUNS", most_runs)
    monkeypatch.setattr(external_sort, "PIECE_BYTES", 500)
    chance = random.Random(1)
    rows = rows_of([(chance.randrange(300), chance.randrange(1, 4)) for _ in range(3000)])
    held = added(tmp_path, rows, memory_bytes=memory_bytes, encrypted=encrypted)
    assert len(list(tmp_path.iterdir())) <= most_runs
    wanted = sorted(rows.to_pylist(), key=lambda row: (row["sequence"], row["deliveries"], row["payload"]))
    assert [row for batch in held.sort() for row in batch.to_pylist()] == wanted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_order", [False, True], ids=["in no order", "one after the other"])
def test_what_is_sorted_takes_no_more_memory_than_it_may(tmp_path, monkeypatch, in_order):
    monkeypatch.setattr(external_sort, "PIECE_BYTES", 32 << 10)
    mib, chance, before = 1 << 20, random.Random(1), pa.total_allocated_bytes()
    held, most = Runs(tmp_path, SCHEMA, memory_bytes=mib), 0
    for number in range(40):
        first = number * 500
        sequences = range(first, first + 500) if in_order else (chance.randrange(10**9) for _ in range(500))
        held.add(rows_of([(one, 1) for one in sequences], size=1000))
        most = max(most, pa.total_allocated_bytes() - before)
    count = 0
    for batch in held.sort():
        count += len(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == 40 * 500
    assert most < 5 * mib  # of 20: two files' worth, and a piece of each file


def test_nothing_comes_of_nothing(tmp_path):
    assert [len(batch) for batch in Runs(tmp_path, SCHEMA).sort()] == []


def test_where_rows_can_not_be_written_it_says_where_and_what_to_do(tmp_path):
    with pytest.raises(CompactionError, match=r"could not be written to .*; free space there, or set TMPDIR"):
        added(tmp_path / "gone", rows_of([(1, 1)]), memory_bytes=0)


# --- a merge of more than fits in memory -----------------------------------------------------------------------------


@pytest.fixture
def store():
    return open_store(f"memory://{uuid4().hex}")


async def rows_in(store, output):
    if output.format == "parquet":
        return (await table_of(store, output)).to_pylist()
    return read_object(await store.get(output.path), output, KEYS).to_pylist()


async def test_blocks_of_every_format_and_typed_columns_give_the_same_file_through_the_disk(store):
    inputs = [*await every_format(store), *await evolving(store)]
    columns = (await columns_of(store, inputs, KEYS)).of(inputs)
    exclude = Sequences.from_iterable([2, 50]).to_text()
    found = [
        await merge_group(
            store, group(inputs, ending=".enc", exclude=exclude), columns, KEYS, stored_ns=1, memory_bytes=memory_bytes
        )
        for memory_bytes in (1 << 30, 0)
    ]
    in_memory, on_disk = [await rows_in(store, one.outputs[0]) for one in found]
    assert in_memory == on_disk
    assert len({msgspec.structs.astuple(msgspec.structs.replace(one, outputs=[]))[1:3] for one in found}) == 1


@pytest.mark.parametrize(
    ("keys", "ending", "encrypted", "seen"),
    [(KEYS, ".enc", False, False), (KEYS, "", False, False), (None, "", True, False), (None, "", False, True)],
    ids=["encrypted as before", "to be plain from now on", "on disks that are encrypted", "nothing of it is"],
)
async def test_what_is_a_secret_is_never_on_the_disk_in_plain(store, monkeypatch, keys, ending, encrypted, seen):
    secret, found, reading = b"what nobody else may read", [], Temporary.open_to_read

    def looked_at(file):
        found.append(secret in file.path.read_bytes())
        return reading(file)

    monkeypatch.setattr(Temporary, "open_to_read", looked_at)
    inputs = [await block(store, [one], format="raw", keys=keys, payload=lambda number: secret) for one in (2, 1, 3)]
    made = group(inputs, ending=ending)
    merged = await merge_group(store, made, pa.schema([]), KEYS, stored_ns=1, memory_bytes=0, encrypted=encrypted)
    assert len(found) == 3 + (not seen)  # a run of each input, and the output where it is not put as it is
    assert set(found) == {seen}
    rows = await rows_in(store, merged.outputs[0])
    assert [(row["sequence"], row["payload"]) for row in rows] == [(number, secret) for number in (1, 2, 3)]
    output, stored = merged.outputs[0], await store.get(merged.outputs[0].path)
    assert (output.bytes, output.sha256) == (len(stored), sha256(stored).hexdigest())


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_task_of_spark_s_encrypts_what_is_on_the_disk_if_spark_does(tmp_path, monkeypatch, encrypted):
    made = []
    monkeypatch.setattr(
        Temporary, "open_to_write", lambda file, write=Temporary.open_to_write: made.append(file) or write(file)
    )
    store = FileStore(tmp_path)
    task = Task(group=group([asyncio.run(block(store, [1, 2]))]), columns="", stored_ns=1)
    merged = msgspec.json.decode(
        carry_out(StoreAccess(store.url, encrypted=encrypted), msgspec.json.encode(task)), type=Merged
    )
    assert merged.outputs[0].count == 2
    assert [file.encrypted for file in made] == [encrypted]
    [folder] = [one for one in made[0].path.parents if one.name.startswith(PREFIX)]  # of a killed one, too
    assert not folder.exists()


async def test_a_part_is_made_of_the_inputs_that_have_something_of_it(store, monkeypatch):
    inputs = [await block(store, range(first, first + 150)) for first in range(1, 1000, 100)]
    wanted = group(inputs, bounds=[400, 700])
    [whole] = await ArrowEngine().merge(store.url, [wanted])
    read, get = [], store.get
    monkeypatch.setattr(type(store), "get", lambda self, path: read.append(path) or get(path))
    twin = group(inputs, bounds=[400, 700])
    parts = [await merge_group(store, twin, pa.schema([]), None, stored_ns=1, part=part) for part in twin.parts]
    assert [one.outputs[0].sequences for one in parts] == [one.sequences for one in whole.outputs]
    assert sum(one.rows_in for one in parts) == whole.rows_in == 1500
    assert (read.count(inputs[0].path), read.count(inputs[3].path), len(read)) == (1, 2, 12)
