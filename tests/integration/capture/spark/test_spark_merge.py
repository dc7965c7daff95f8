"""Spark makes of any blocks what pyarrow's engine does: the same rows in the same order, counts and columns."""

import asyncio

import msgspec
import pyarrow as pa
import pytest
import pytest_asyncio
from held_opens import hold, let_go, prepared
from merging import KEY_LINE, KEYS, block, every_format, evolving, group, table_of
from patient import until
from secret import write_secret
from spark_blocks import QUICK
from spark_processes import read_of_each

from capture.archive.encryption import Keys
from capture.archive.sequences import Sequences
from capture.formats import read_object
from capture.maintenance.merge.schema_evolution import write_columns
from capture.maintenance.read_back import read_back
from capture.spark import SparkDriver, SparkOptions, View
from capture.spark.protocol import SMALL_BYTES
from capture.stores import FileStore
from capture.testing import ArrowEngine

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def gates(tmp_path_factory):
    """A folder of pipes at which Spark's workers wait, see `held_opens`."""
    with pytest.MonkeyPatch.context() as changed:
        folder = prepared(tmp_path_factory.mktemp("gates"))
        changed.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(tmp_path_factory, gates):
    folder = tmp_path_factory.mktemp("spark")
    write_secret(folder / "keys", KEY_LINE)
    options = SparkOptions(properties=QUICK)
    async with SparkDriver(options, log=folder / "driver.log", key_file=str(folder / "keys")) as driver:
        yield driver


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path)


@pytest.fixture(params=["together", "alone"])
def alike(request, driver, store):
    """Merge groups by Spark, in one job or each alone, and by pyarrow; compare what came of them, return the tables."""
    small_bytes = SMALL_BYTES if request.param == "together" else 0

    async def compare(*groups):
        found = await driver.merge(store.url, groups, small_bytes=small_bytes)
        twins = [msgspec.structs.replace(one, output=one.output.replace("c-1-", "c-2-")) for one in groups]
        wanted = await ArrowEngine(KEYS).merge(store.url, twins)
        tables = []
        for ours, theirs in zip(found, wanted, strict=True):
            assert said(ours) == said(theirs)
            for one, other in zip(ours.outputs, theirs.outputs, strict=True):
                table, expected = [await rows_of(store, output) for output in (one, other)]
                assert table.schema == expected.schema
                assert table.to_pylist() == expected.to_pylist()
                tables.append(table)
            await read_back(store, ours.outputs, KEYS)
        return found, tables

    return compare


def said(merged):
    """What of a result does not depend on who merged, and when."""
    unlike = ("path", "bytes", "sha256", "stored_ns", "node")
    outputs = [{k: v for k, v in msgspec.structs.asdict(one).items() if k not in unlike} for one in merged.outputs]
    return msgspec.structs.replace(merged, outputs=[]), outputs


async def rows_of(store, output):
    if output.format == "parquet":
        return (await table_of(store, output)).replace_schema_metadata(None)
    return read_object(await store.get(output.path), output, KEYS).replace_schema_metadata(None)


async def test_blocks_of_every_format_compressed_and_encrypted(alike, store):
    inputs = await every_format(store)
    exclude = Sequences.from_iterable([2, 50]).to_text()
    [merged], [table] = await alike(group(inputs, ending=".enc", exclude=exclude))
    assert merged.outputs[0].format == "parquet.enc"
    assert len(table) == 10 * len(inputs) + 2


async def test_typed_columns_that_are_added_and_widened_and_conflict(alike, store):
    inputs = await evolving(store)
    earlier = write_columns(pa.schema([("id", pa.int32()), ("gone", pa.bool_())]))
    [merged], [table] = await alike(group(inputs, columns=earlier))
    assert merged.conflicts == {"id": 1}
    assert table["id"].to_pylist() == [1, 2, 2**40 + 3, 2**40 + 4, None, None, None]
    assert {"id", "total", "value_key", "when", "more", "_conflicts"} <= set(table.column_names)
    late = await block(store, [7, 8], columns={"id": pa.int64()}, payload=lambda number: b'{"id": 9}')
    _, [again] = await alike(group([*merged.outputs, late], columns=merged.columns))
    assert len(again) == 8


async def test_a_large_group_is_split_at_its_bounds(alike, store):
    inputs = [await block(store, range(first, 1000, 3)) for first in (1, 2, 3)]
    [merged], tables = await alike(group(inputs, bounds=[400, 700]))
    assert [(one.first, one.last) for one in merged.outputs] == [(1, 399), (400, 699), (700, 999)]
    assert sum(map(len, tables)) == 999


async def test_messages_that_repeat_an_id_are_left_out(alike, store):
    def ids(number):
        return b"id-%d" % (number % 40) if number % 7 else b""

    inputs = [await block(store, range(first, 300, 2), ids=ids) for first in (2, 1)]
    exclude = Sequences.from_iterable([1, 5]).to_text()
    [merged], tables = await alike(group(inputs, distinct="message_id", bounds=[150], exclude=exclude))
    assert len(Sequences.from_text(merged.repeated)) > 100
    names = [name for table in tables for name in table["message_id"].to_pylist() if name]
    assert len(names) == len(set(names))


async def test_many_small_groups_are_merged_in_one_job(driver, store):
    groups = [group([await block(store, [10 * n + m, 10 * n + m + 1]) for m in range(3)]) for n in range(60)]
    merged = await driver.merge(store.url, groups)
    assert [one.outputs[0].path for one in merged] == [one.output for one in groups]
    assert {(one.rows_in, one.duplicates) for one in merged} == {(6, 2)}


@pytest.mark.parametrize("quick_ones", ["alone", "together"])
async def test_groups_are_merged_side_by_side_so_that_none_waits_for_a_slow_one(driver, gates, store, quick_ones):
    slow = await block(store, range(1000), format="ndjson")
    quick = group([await block(store, [1001, 1002], format="ndjson")])
    pipe = hold(gates, slow.path)
    small_bytes = 0 if quick_ones == "alone" else quick.bytes
    merging = asyncio.create_task(driver.merge(store.url, [group([slow]), quick], small_bytes=small_bytes))
    await until(lambda: (store.root / quick.output).exists() or merging.done())
    assert not merging.done()
    await until(lambda: let_go(pipe))
    assert [(one.rows_in, one.failed) for one in await merging] == [(1000, ""), (2, "")]


async def test_a_group_that_is_small_in_the_store_only_is_sorted_through_the_disk(driver, store):
    zeros = bytes(4 << 20)
    inputs = [await block(store, range(first, first + 24), payload=lambda number: zeros) for first in (1, 20, 40)]
    wanted = group(inputs)
    assert wanted.bytes < SMALL_BYTES
    [merged] = await driver.merge(store.url, [wanted])
    assert (merged.failed, merged.outputs[0].count) == ("", 63)


async def test_keys_stand_in_no_command_line_or_environment(driver, store):
    inputs = [await block(store, [1, 2], keys=KEYS)]
    [merged] = await driver.merge(store.url, [group(inputs, ending=".enc")], small_bytes=0)
    assert merged.outputs[0].count == 2
    for name in ("cmdline", "environ"):
        found = read_of_each(driver.session, name)
        assert len(found) >= 2
        assert not any(KEY_LINE.encode() in one for one in found.values())


async def test_where_there_are_keys_what_spark_writes_to_disks_is_encrypted(driver, store):
    asked = [
        await driver.query(store.url, {}, f"SET spark.io.encryption.{name}") for name in ("enabled", "keySizeBits")
    ]
    assert [answer.rows[0][1] for answer in asked] == ["true", "256"]
    inputs = [await block(store, range(first, first + 9)) for first in (1, 5)]
    answer = await driver.query(  # a shuffle, and rows that go to a worker
        store.url, {"t": View(objects=inputs, repeated=True)}, "SELECT count(*), sum(sequence) FROM t"
    )
    assert answer.rows == [[13, 91]]


async def test_a_key_that_is_not_there_fails_the_group_with_a_sentence(driver, store):
    others = Keys({"theirs": bytes(32)})
    for small_bytes in (SMALL_BYTES, 0):
        inputs = [await block(store, [1, 2], format="raw", keys=others)]
        [merged] = await driver.merge(store.url, [group(inputs, ending=".enc")], small_bytes=small_bytes)
        assert "it is encrypted with the key 'theirs'; the given ones are Keys(ours)" in merged.failed
        assert len(merged.failed.splitlines()) == 1


async def test_a_view_shows_blocks_of_every_format_and_typed_columns(driver, store):
    objects = [*await every_format(store), *await evolving(store)]
    answer = await driver.query(
        store.url, {"t": View(objects=objects)}, "SELECT count(*), count(DISTINCT sequence), sum(total) FROM t"
    )
    assert answer.rows[0][:2] == [14 * 13 + 7, 134]
