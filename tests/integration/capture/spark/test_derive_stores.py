"""What a run reads and writes, and where: other pipelines' rows, object stores, encrypted objects, many small files."""

import json

import msgspec
import pytest
from derivations import Table, messages, part
from spark_blocks import row, stored

from capture.errors import PipelineError
from capture.pipelines.derivation import Input, Part
from capture.pipelines.document import record_of
from capture.stores import FileStore, open_store

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="session")]

SCHEMA = "k STRING, v INT"


def bodies(first, *values):
    return {first + at: {"k": k, "v": v} for at, (k, v) in enumerate(values)}


async def test_a_pipeline_reads_the_rows_of_another_each_run_as_later_than_the_one_before(driver, store):
    first = Table(driver, store, "SELECT k, sum(v) AS total FROM S GROUP BY k", schema=SCHEMA, key=["k"], buckets=1)
    second = Table(driver, store, "SELECT total, last(k) AS k FROM first GROUP BY total", name="q", key=["total"])
    kept = Table(driver, store, "SELECT substr(k, 1, 1) AS c, k, total FROM first", name="r", key=["c"])

    async def follow(done, table):
        records = [record_of(one, "first", first.number) for one in done.came]
        given = Input(store=(store / "_pipelines").as_uri(), new=[Part(stored=one) for one in records],
                      columns=first.columns)  # fmt: skip
        return await table.run([], inputs={"first": given})

    done = await first.run([messages(store, "1", bodies(1, ("ax", 1), ("b", 2)))])
    assert (await follow(done, second)).rows_in == 2
    await follow(done, kept)
    done = await first.run([messages(store, "2", bodies(3, ("ay", 2), ("ax", 0), ("b", 7)))])
    await follow(done, second)
    assert [(one["total"], one["k"]) for one in second.read()] == [(1, "ax"), (2, "ay"), (9, "b")]
    assert not {name for one in second.read() for name in one if name.startswith("__")}
    with pytest.raises(PipelineError, match="its key is not unique: c = a"):  # of one run: neither is the later one
        await follow(done, kept)


async def test_a_run_reads_and_writes_an_object_store(driver, store, s3, tmp_path):
    """By our own client: Spark gets no credential of the store."""
    await driver.kill()  # the next one has the store's credentials in its environment
    lake = open_store(s3.url())

    async def moved(block):
        await lake.put(block.path, (store / block.path).read_bytes())
        return block

    table = Table(driver, store, "SELECT k, sum(v) AS v, avg(v) AS a FROM S GROUP BY k", key=["k"])
    for number, values in enumerate([[("a", 1), ("b", 2)], [("a", 3)], [("c", 4), ("b", 5)]], 1):
        block = await moved(messages(store, f"{number}", bodies(10 * number, *values)))
        given = Input(store=lake.url, new=[part(block)], payload_schema=SCHEMA)
        done = await table.run([], inputs={"S": given}, store=lake.url)
        assert done.rows_in == len(values)
    for one in table.files:
        await FileStore(store / "_pipelines").put(one.path, await lake.get(one.path))
    assert [(one["k"], one["v"], one["a"]) for one in table.read()] == [("a", 4, 2.0), ("b", 7, 3.5), ("c", 4, 4.0)]


async def test_encrypted_objects_are_refused_since_the_table_would_be_plain(driver, store):
    block = messages(store, "1", bodies(1, ("a", 1)))
    secret = msgspec.structs.replace(block, path=f"{block.path}.enc", format="parquet.enc")
    with pytest.raises(PipelineError, match=r"^pipeline p: it reads blocks/.*\.enc, which is encrypted"):
        await Table(driver, store, "SELECT k FROM S", schema=SCHEMA).run([secret])


async def test_an_object_that_was_exchanged_fails_the_run(driver, store):
    block = messages(store, "1", bodies(1, ("a", 1), ("b", 2)))
    (store / block.path).write_bytes(b"no Parquet at all")
    with pytest.raises(PipelineError, match=r"^pipeline p: [^\n]*1\.parquet[^\n]*$"):
        await Table(driver, store, "SELECT k FROM S", schema=SCHEMA).run([block])
    assert (await driver.ping()).spark


async def test_hundreds_of_units_are_written_by_a_task_and_each_row_once(driver, store):
    values = [(f"k{at}", at % 7) for at in range(3000)]
    table = Table(driver, store, "SELECT k, v FROM S", schema=SCHEMA, key=["k", "v"], partition=["v"], buckets=100)
    done = await table.run([messages(store, "1", bodies(1, *values))])
    assert len(done.came) == len({one.unit.to_text() for one in done.came}) == len({one.path for one in done.came})
    assert len(done.came) > 600
    assert [(one["k"], one["v"]) for one in table.read()] == sorted(
        values, key=lambda one: repr({"k": one[0], "v": one[1]})
    )


async def test_objects_of_other_formats_and_with_other_columns_are_read_together(driver, store):
    lines = [row(1, stream="S", payload='{"k": "a", "v": 1}')]
    text = [{**one, "header_block_base64": None, "payload_base64": None} for one in lines]
    ndjson = stored(store, "blocks/stream=S/1.ndjson", lines,
                    lambda file: file.write_text("".join(json.dumps(one) + "\n" for one in text)))  # fmt: skip
    parquet = messages(store, "2", bodies(2, ("b", 2)))
    table = Table(driver, store, "SELECT k, v, sequence FROM S", schema=SCHEMA)
    await table.run([ndjson, parquet])
    assert [(one["k"], one["v"], one["sequence"]) for one in table.read()] == [("a", 1, 1), ("b", 2, 2)]
