import asyncio
import math
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from uuid import uuid4

import pytest
from archived import GRACE, STREAM, Archived, Settled, records, store_block
from msgspec.structs import replace
from patient import PATIENCE, until

from capture.archive.encryption import Keys
from capture.archive.index import tree
from capture.archive.index.tree import Sizes
from capture.cli.sql import Engine, best_engine
from capture.errors import ConfigError, FormatError, NotStoredError, QueryError
from capture.formats import writer
from capture.ingest.block import SealedBlock
from capture.ingest.commit import Committer
from capture.reading import arrowfs
from capture.reading.ddl import fields
from capture.reading.duck import query
from capture.reading.inventory import take_inventory
from capture.reading.merge import make_look
from capture.stores import MemoryStore, open_store

KEYS = Keys({"k": bytes(32)})


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return open_store(str(tmp_path / "a store") if request.param == "file" else f"memory://{uuid4().hex}")


async def ask(store, sql, **options):
    return await query(store, await make_look(store)(), sql, **options)


async def test_raw_and_compacted_repeated_and_encrypted_are_one_table(store):
    archived = Archived()
    archived.store = store
    await store_block(store, [1, 2, 3, 4])
    await store_block(store, [3, 4, 5])  # delivered again
    await archived.sweep()
    await archived.compact()
    await store_block(store, [5, 6])
    await store_block(store, [6, 7, 8], writer("ndjson", compression="zstd"))
    await store_block(store, [9], writer("raw", keys=KEYS), key="us")
    await store_block(store, [10, 10, 11])
    counted = "SELECT count(*), count(DISTINCT sequence), min(sequence), max(sequence) FROM messages"
    answer = await ask(store, counted, keys=KEYS)
    assert answer.rows == [[11, 11, 1, 11]]
    answer = await ask(store, "SELECT * FROM messages ORDER BY sequence", keys=KEYS)
    wanted = records(range(1, 12))
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert [row["time_ns"] for row in rows] == wanted.times_ns
    assert rows[0]["headers"] == {"Nats-TTL": ["1h"], "Colour": ["red", "blue"]}
    assert rows[1]["headers"] is None
    assert rows[0]["payload"] == "1"
    assert rows[3]["payload"] == "AP8="  # no text: in base64
    joined = "SELECT count(*) FROM messages a JOIN messages b USING (sequence) WHERE a.sequence > 4"
    assert (await ask(store, joined, keys=KEYS)).rows == [[7]]


@pytest.mark.long
async def test_after_each_change_of_the_archive_a_query_counts_each_message_once(monkeypatch):
    """Whatever blocks, manifests, table files and tables are there or gone at that moment."""
    archived, counts = Archived(), []

    def watched(change):
        async def changed(store, path, *more, **options):
            await change(store, path, *more, **options)
            if not path.startswith("iceberg/"):
                [counted] = (await ask(store, "SELECT count(*), count(DISTINCT sequence) FROM messages")).rows
                counts.append(tuple(counted))

        return changed

    for name in ("put", "delete"):
        monkeypatch.setattr(MemoryStore, name, watched(getattr(MemoryStore, name)))
    for number in (1, 2, 3):
        await store_block(archived.store, [number, number + 1, number + 2], clock=lambda: archived.now)
        await archived.sweep()
        await archived.compact()
        await archived.sweep()
        archived.now += GRACE
    await archived.sweep()
    assert [one for one, _ in counts] == sorted(distinct for _, distinct in counts)
    assert counts[-1] == (5, 5)
    assert len(counts) > 20
    assert await archived.store.list("blocks/") == []


async def test_an_empty_archive_is_an_empty_table(store):
    assert (await ask(store, "SELECT count(*) AS n FROM messages")).rows == [[0]]


async def put(store, *payloads):
    kept = records(range(1, len(payloads) + 1))
    kept.payloads = list(payloads)
    await Committer(store, writer("parquet"), Settled()).commit(SealedBlock(STREAM, "k", 0, kept, "age"))


async def test_the_fields_of_payloads_are_columns_where_a_schema_is_given():
    store = MemoryStore(uuid4().hex)
    await put(
        store,
        b'{"n": 1, "who": {"name": "a", "ages": [1, 2]}, "Subject": "s", "stamp": "2026-11-21T06:00:00", "cost": 1.25}',
        b'{"n": "no number", "who": 5}',
        b"no json",
        b"\xff",
        b"[1, 2]",
        b"",
    )
    schema = "n INT, who STRUCT<name: STRING, ages: ARRAY<BIGINT>>, Subject STRING, stamp TIMESTAMP, cost DECIMAL(9,2)"
    sql = "SELECT n, who, Subject, stamp, cost FROM messages ORDER BY sequence"
    answer = await ask(store, sql, payload_schema=schema)
    assert answer.columns == ["n", "who", "Subject", "stamp", "cost"]
    assert answer.rows[0] == [1, {"name": "a", "ages": [1, 2]}, "s", "2026-11-21T06:00:00", "1.25"]
    assert all(cell in (None, {"name": None, "ages": None}) for row in answer.rows[1:] for cell in row)
    everything = await ask(store, "SELECT * FROM messages LIMIT 1", payload_schema=schema)
    assert everything.columns.count("subject") == 0
    assert everything.columns[-5:] == ["n", "who", "Subject", "stamp", "cost"]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a STRING", {"a": "VARCHAR"}),
        ("a: int, `b c` LONG", {"a": "INT", "b c": "BIGINT"}),
        ("a ARRAY<ARRAY<BINARY>>", {"a": "BLOB[][]"}),
        ("a STRUCT<b: INT, c: MAP<STRING, DOUBLE>>", {"a": 'STRUCT("b" INT, "c" MAP(VARCHAR, DOUBLE))'}),
        ("a DECIMAL(10, 2), b INTEGER[]", {"a": "DECIMAL(10, 2)", "b": "INTEGER[]"}),
    ],
)
def test_spark_s_words_for_types_are_understood(text, kinds):
    assert fields(text) == kinds


@pytest.mark.parametrize("text", ["", "a", "a INT,", "a INT b INT", "a ARRAY<INT", "a INT)", "a 'x'", "a DECIMAL(1"])
def test_a_schema_that_is_none_is_refused_with_the_place(text):
    with pytest.raises(ConfigError, match="is wrong at"):
        fields(text)


@pytest.mark.parametrize(
    ("sql", "schema", "said"),
    [
        ("SELECT nonsense FROM messages", None, "nonsense"),
        ("SELEKT 1", None, "syntax error"),
        ("SELECT 1 FROM records", None, "records"),
        ("SELECT 1", "a NOSUCHTYPE", "NOSUCHTYPE"),
        ("", None, "the query is empty: write a statement"),
        (" ; -- count them", None, "the query is empty: write a statement"),
    ],
)
async def test_a_query_that_can_t_be_answered_is_one_sentence(sql, schema, said):
    with pytest.raises(QueryError) as caught:
        await ask(MemoryStore(uuid4().hex), sql, payload_schema=schema)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_an_answer_has_at_most_so_many_rows():
    store = MemoryStore(uuid4().hex)
    await store_block(store, range(1, 30))
    answer = await ask(store, "SELECT sequence FROM messages ORDER BY 1", limit=10)
    assert (answer.rows, answer.truncated) == ([[one] for one in range(1, 11)], True)
    assert not (await ask(store, "SELECT sequence FROM messages", limit=29)).truncated


async def test_values_of_every_kind_can_be_said_in_json():
    answer = await ask(
        MemoryStore(uuid4().hex),
        "SELECT DATE '2026-01-02', INTERVAL 1 HOUR, uuid(), 1.5::DOUBLE, 2::HUGEINT, [NULL, 1], MAP {'a': 'b'::BLOB},"
        " true, 'x'",
    )
    (row,) = answer.rows
    assert row[0] == "2026-01-02"
    assert row[1] == "PT3600S"
    assert row[3:] == [1.5, 2, [None, 1], {"a": "b"}, True, "x"]
    assert math.isclose(row[3], 1.5)


async def test_an_object_that_can_t_be_read_is_named(store):
    plain = await store_block(store, [1, 2])
    other = await store_block(store, [3], writer("ndjson"))
    for one in (plain, other):
        data = await store.get(one.path)
        await store.put(one.path, data[:-20], if_absent=False)
        with pytest.raises((QueryError, FormatError)) as caught:
            await ask(store, "SELECT sum(octet_length(payload)) FROM messages")
        assert one.path in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "Traceback" not in str(caught.value)
        await store.put(one.path, data, if_absent=False)
    assert (await ask(store, "SELECT count(*) FROM messages")).rows == [[3]]


async def test_what_the_store_says_of_an_object_is_the_error_and_no_traceback(store):
    one = await store_block(store, [1, 2, 3])
    with pytest.raises(NotStoredError, match=f"^there is no blocks/gone in {store.url}$"):
        await query(store, [replace(one, path="blocks/gone")], "SELECT count(*) FROM messages")


def count_reading_threads():
    """Return how many threads are in `StoredFile.readinto`."""
    stacks = (traceback.extract_stack(frame) for frame in sys._current_frames().values())
    return sum(any(one.name == "readinto" for one in stack) for stack in stacks)


async def test_no_thread_waits_for_the_loop_when_a_query_has_failed(store, monkeypatch):
    """Python does not end while a thread of Arrow waits, and Arrow has few of them."""
    gone, slow = [await store_block(store, sequences) for sequences in ([1, 2, 3], [4, 5, 6])]
    both = asyncio.Event()

    class Contents:
        url = store.url

        async def get_range(self, path, start, length):
            if path == slow.path:
                both.set()
                await asyncio.Event().wait()
            await both.wait()
            raise NotStoredError(f"there is no {path} in {self.url}")

    async def check(store, objects):
        return Contents()

    monkeypatch.setattr(arrowfs, "SMALL_BYTES", -1)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(NotStoredError, match=f"^there is no {gone.path} in"):
            await query(store, [gone, slow], "SELECT sum(time_ns) FROM messages", check=check)
    assert both.is_set()
    assert count_reading_threads() == 0


def is_answering():
    """Return whether a thread is in `_answer`."""
    stacks = (traceback.extract_stack(frame) for frame in sys._current_frames().values())
    return any(one.name == "_answer" for stack in stacks for one in stack)


ENDLESS = "SELECT sum(a.range * b.range) FROM range(10_000_000_000) a, range(10_000_000) b, messages"


async def test_a_query_that_is_cancelled_ends(store):
    """Otherwise its thread works on, and Python waits for it at the end."""
    await store_block(store, [1, 2, 3])
    asking = asyncio.create_task(ask(store, ENDLESS))
    await until(is_answering)
    asking.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert not is_answering()


async def test_a_file_of_a_query_that_is_over_is_not_read(store):
    block = await store_block(store, [1, 2, 3])
    async with arrowfs.StoreFiles(store, {block.path: block.bytes}) as files:
        file = files.open_input_file(block.path)
        assert await asyncio.to_thread(file.read_at, 4, 0) == b"PAR1"
    with pytest.raises(OSError, match="the query is over"):
        await asyncio.to_thread(file.read_at, 4, 0)


READ_MUCH = """
import asyncio, io, sys
import pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
from pyarrow.fs import PyFileSystem
from capture.formats.envelope import SCHEMA
from capture.reading.arrowfs import StoreFiles
from capture.reading.pruned import PrunedDataset

class Files(StoreFiles):
    def open_input_file(self, path):
        return pa.PythonFile(io.BytesIO(data), mode="r")

written = io.BytesIO()
pq.write_table(pa.Table.from_pylist([{"sequence": 1}], SCHEMA), written)
data = written.getvalue()
sizes = {str(number): len(data) for number in range(8)}

def choose(filter):
    files = PyFileSystem(Files(None, sizes))
    return ds.FileSystemDataset.from_paths(list(sizes), schema=SCHEMA, format=ds.ParquetFileFormat(), filesystem=files)

async def main():
    for number in range(1500):
        assert PrunedDataset(choose).scanner(columns=["sequence"]).to_reader().read_all().num_rows == 8

sys.setswitchinterval(1e-5)
asyncio.run(main())
"""


@pytest.mark.long
async def test_many_scans_end_whichever_thread_has_python_s_lock():
    """Not in this process: a thread that keeps the lock stops all of it."""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", READ_MUCH], capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
async def test_the_command_says_one_sentence_of_an_object_that_is_gone(tmp_path):
    archived = await Archived(folder=tmp_path / "lake").make()
    [table] = (tmp_path / "lake" / "table").rglob("*.parquet")
    table.unlink()
    words = ["sql", "SELECT sum(time_ns) FROM messages", "--store", archived.store.url, "--stream", STREAM]
    done = subprocess.run(
        [sys.executable, "-m", "capture", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("capture: there is no table/")
    assert done.stderr.count("\n") == 1


def cpu_seconds(pid):
    """Return the CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.long
async def test_the_command_ends_when_it_is_interrupted(tmp_path):
    await Archived(folder=tmp_path / "lake").make()
    words = ["sql", ENDLESS, "--store", str(tmp_path / "lake"), "--stream", STREAM]
    command = [sys.executable, "-m", "capture", *words]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        await until(lambda: [*tmp_path.glob("capture-*")])  # the query begins
        begun = cpu_seconds(process.pid)
        await until(lambda: cpu_seconds(process.pid) > begun + 1)  # DuckDB computes
        process.send_signal(signal.SIGINT)
        try:
            _, said = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said


@pytest.mark.long
async def test_the_command_writes_an_absent_value_as_sql_does(tmp_path):
    archived = await Archived(folder=tmp_path / "lake").make()
    words = ["sql", "SELECT NULL AS a, 'None' AS b", "--store", archived.store.url]
    done = subprocess.run([sys.executable, "-m", "capture", *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["a", "b", "NULL", "None"]


@pytest.mark.parametrize(
    ("installed", "engine"),
    [
        ({"duckdb", "pyspark"}, Engine.DUCKDB),
        ({"duckdb"}, Engine.DUCKDB),
        ({"pyspark"}, Engine.SPARK),
        (set(), Engine.DUCKDB),  # what to install: the smaller one
    ],
)
def test_spark_answers_only_where_duckdb_is_not_installed_and_spark_is(monkeypatch, installed, engine):
    monkeypatch.setattr("capture.cli.sql.find_spec", lambda name: name if name in installed else None)
    assert best_engine() is engine


async def hourly(store, hours=30):
    """An archive of blocks, table files and entries, three messages in each; every fifth hour has another key."""
    archived = Archived()
    archived.store = store
    for hour in range(hours):
        await store_block(store, range(3 * hour + 1, 3 * hour + 4), key=f"k{hour % 5 == 0}")
        if hour == hours // 3:
            await archived.sweep()
            await archived.compact()
        if hour == 2 * hours // 3:
            await archived.sweep()
    return archived


FIRST_NS = records([1]).times_ns[0]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("sequence BETWEEN 50 AND 52", range(50, 53)),
        (f"time_ns >= {FIRST_NS + 69} AND time_ns < {FIRST_NS + 73}", range(70, 74)),
        ("sequence = 51", [51]),  # the last one of its object
        (f"time_ns = {FIRST_NS + 50}", [51]),
        ("sequence IN (4, 88)", [4, 88]),
        ("sequence < 3 OR sequence = 80", [1, 2, 80]),
        ("stream = 'OTHER'", []),
        (f"stream = '{STREAM}' AND sequence > 85", range(86, 91)),
        ("subject = 'orders.40'", [40]),
        ("sequence % 30 = 1", [1, 31, 61]),
        ("sequence = (SELECT max(sequence) FROM messages)", [90]),
    ],
)
async def test_conditions_choose_objects_by_the_index_and_the_answer_is_that_of_all_of_them(
    store, monkeypatch, condition, wanted
):
    monkeypatch.setattr(tree, "SIZES", Sizes(leaf=900, inner=700, apart=60, inline=0))
    await hourly(store)
    sql = f"SELECT sequence FROM messages WHERE {condition} ORDER BY 1"
    found = await query(store, await take_inventory(store), sql)
    assert [one for [one] in found.rows] == list(wanted)
    listed = await query(store, await make_look(store)(), sql)
    assert found == listed


@pytest.mark.parametrize(
    ("condition", "objects"),
    [("sequence BETWEEN 85 AND 86", 1), (f"time_ns = {FIRST_NS + 88}", 1), ("sequence IN (85, 88)", 2)],
)
async def test_objects_that_can_t_meet_the_conditions_are_not_read(store, monkeypatch, condition, objects):
    monkeypatch.setattr(tree, "SIZES", Sizes(leaf=900, inner=700, apart=60, inline=0))
    await hourly(store)
    inventory = await take_inventory(store)
    read, get_range, get = set(), store.get_range, store.get

    async def ranged(path, *where):
        read.add(path)
        return await get_range(path, *where)

    async def whole(path):
        read.add(path)
        return await get(path)

    monkeypatch.setattr(store, "get_range", ranged)
    monkeypatch.setattr(store, "get", whole)
    await query(store, inventory, f"SELECT count(*) FROM messages WHERE {condition}")
    pages = {one for one in read if one.startswith("_index/")}
    assert len(read - pages) == objects
    assert len(pages) < len(await store.list("_index/")) / 2


async def test_repeated_and_unreadable_rows_are_merged_of_the_chosen_objects_only(store):
    await store_block(store, [1, 2, 3])
    await store_block(store, [3, 4], writer("ndjson"))
    other = await store_block(store, [9, 9, 10], writer("raw"))
    await store.put(other.path, b"damaged", if_absent=False)
    sql = "SELECT a.sequence, b.sequence FROM messages a, messages b WHERE a.sequence < 4 AND b.sequence = 4 ORDER BY 1"
    assert (await query(store, await take_inventory(store), sql)).rows == [[1, 4], [2, 4], [3, 4]]
    with pytest.raises(FormatError, match=other.path):
        await query(store, await take_inventory(store), "SELECT count(*) FROM messages WHERE sequence > 4")
