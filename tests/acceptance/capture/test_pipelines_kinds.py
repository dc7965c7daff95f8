"""One node with pipelines of all kinds over a stream and a bucket, on real Spark: twice, with more messages between."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from types import SimpleNamespace

import pytest
import pytest_asyncio
from capture_chaos_nodes import environment
from patient import PATIENCE, PATIENT
from pipeline_nodes import STREAM, are_announced, read_document, read_rows, write_config

from natty import Natty
from natty.testing import NatsServer
from natty.testing.spawner import spawn

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module")]

BUCKET, FIRST, LAST = "config", 150, 240
SCHEMA = "country STRING, total BIGINT"
ALL = f"SELECT sequence, country, total FROM {STREAM}"
JOBS = """
from pyspark.sql import functions as F


def double(spark, inputs, run):
    assert run.pipeline == "doubled"
    new = inputs["ORDERS"].where("country IS NOT NULL")
    return new.select("sequence", (F.col("total") * 2).alias("twice"), F.lit(run.number).alias("run"))
"""
APPEND = {"schedule": "every 1s", "schema": SCHEMA, "mode": "append"}
BROKEN, STRICT, CHECKED, LARGE, COUNTRIES, DOUBLED, KEYS = PIPELINES = (
    APPEND | {"name": "broken", "sql": f"SELECT sequence, nothing FROM {STREAM}"},
    APPEND | {"name": "strict", "sql": ALL, "expect": ["total >= 0"]},
    APPEND | {"name": "checked", "sql": ALL, "expect": ["country IS NOT NULL"], "on_violation": "quarantine"},
    APPEND | {"name": "large", "sql": f"{ALL} WHERE total >= 50"},
    {
        "name": "countries",
        "schedule": "every 1s",
        "sql": "SELECT coalesce(country, '?') AS country, count(*) AS n, sum(total) AS total FROM large GROUP BY 1",
        "mode": "upsert",
        "key": "country",
        "buckets": 2,
    },
    APPEND | {"name": "doubled", "python": "own_jobs:double", "inputs": [STREAM]},
    {"name": "keys", "schedule": "every 1s", "kind": "latest", "key": "subject", "inputs": [f"KV_{BUCKET}"]},
)


def make_order(number):
    """The order with this number: some have no country, the last ones a negative total."""
    country = None if number % 40 == 7 else ("de", "dk", "se")[number % 3]
    return {"country": country, "total": -1 if number > LAST - 3 else number * 37 % 100}


async def publish(natty, first, last):
    for number in range(first, last + 1):
        await natty.publish("orders.new", json.dumps(make_order(number)).encode(), msg_id=str(number))


async def until(store, condition):
    """Return the first document of the pipelines that meets a condition, and that readers without a catalog see."""
    async with asyncio.timeout(4 * PATIENCE):
        while True:
            document = await read_document(store)
            if condition(document) and await are_announced(store, document, document.iceberg):
                return document
            await asyncio.sleep(0.1)


def has(document, table, stream, count):
    """Whether a table has so many messages of a stream."""
    held = document.progress.streams.get(f"{table} {stream}")
    return held is not None and held.held.count >= count


async def read_bucket(bucket):
    return {key: (await bucket.get(key)).value for key in await bucket.keys()}


def read_all(store, document):
    """Return the rows of every table that pyiceberg can read, as dictionaries."""
    return {name: read_rows(store, name) for name in document.iceberg}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seen(natty_tls, nats_server_binary, tmp_path_factory):
    """What there is after the first messages, and after more of them."""
    folder = tmp_path_factory.mktemp("kinds")
    store = str(folder / "archive")
    (folder / "own_jobs.py").write_text(JOBS)
    with NatsServer(folder=folder / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await natty.ensure_stream(STREAM, subjects=["orders.>"])
            bucket = await natty.create_bucket(BUCKET, history=5)
            for key in ("a", "b", "c", "d", "emptied"):
                await bucket.put(key, f"{key}1".encode())
            await bucket.put("b", b"b2")
            await bucket.delete("c")
            await publish(natty, 1, FIRST)
            path = write_config(
                folder,
                "one",
                store,
                server.connect_options(),
                PIPELINES,
                stream="",
                streams=[STREAM, f"KV_{BUCKET}"],
                log=str(folder),
            )
            with (folder / "one.log").open("ab") as output:
                command = [sys.executable, "-m", "capture", "--log-level", "info", "run", "--config", str(path)]
                surroundings = environment({})
                surroundings["PYTHONPATH"] += f":{folder}"
                node = spawn(command, output=output, folder=folder, environ=surroundings)
            try:
                found = await collect(natty, bucket, store)
                found[1].status = await read_status(path)
                yield found
            finally:
                node.kill()
                node.wait()


async def read_status(path):
    """Return what `capture status` says once it names a failing pipeline: nodes report every second."""
    async with asyncio.timeout(PATIENCE):
        while True:
            command = [sys.executable, "-m", "capture", "status", "--json", "--stream", STREAM, "--config", str(path)]
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment({}))
            said, _ = await process.communicate()
            if b"pipeline strict" in said:
                return said.decode()


async def collect(natty, bucket, store):
    """Wait until all tables have the first messages, then publish more, and wait again."""

    def have(document, last, revisions, tables):
        streams = all(has(document, one, STREAM, last) for one in tables)
        done = document.tables.get("countries") and document.tables["countries"].inputs["large"]
        return streams and done == document.tables["large"].number and has(document, "keys", f"KV_{BUCKET}", revisions)

    await until(store, lambda one: have(one, FIRST, 7, ("strict", "checked", "large", "doubled")))
    document = await until(store, lambda one: one.tables["broken"].runs)
    first = SimpleNamespace(document=document, tables=read_all(store, document), bucket=await read_bucket(bucket))
    await bucket.put("c", b"again")
    await bucket.purge("a")
    await bucket.put("emptied", b"")
    await bucket.put("d", b"d2")
    await bucket.delete("d")
    await bucket.put("new", b"new")
    await publish(natty, FIRST + 1, LAST)
    await until(store, lambda one: have(one, LAST, 11, ("checked", "large", "doubled")))
    document = await until(store, lambda one: one.tables["strict"].runs[-1].error)
    return first, SimpleNamespace(document=document, tables=read_all(store, document), bucket=await read_bucket(bucket))


def orders(last, condition=lambda order: True):
    """The orders up to one that meet a condition, as rows."""
    made = [{"sequence": number, **make_order(number)} for number in range(1, last + 1)]
    return [one for one in made if condition(one)]


def by_sequence(rows):
    return sorted(rows, key=lambda one: one["sequence"])


async def test_spark_logs_into_the_folder_that_the_configuration_names(seen, tmp_path_factory):
    assert (tmp_path_factory.getbasetemp() / "kinds0" / "spark-one-pipelines.log").is_file()


async def test_a_bucket_is_a_table_of_its_current_keys(seen):
    for moment in seen:
        found = {one["key"].removeprefix(f"$KV.{BUCKET}."): one["payload"] for one in moment.tables["keys"]}
        assert found == moment.bucket
        assert len(found) == len(moment.tables["keys"])
    assert seen[1].bucket == {"b": b"b2", "c": b"again", "emptied": b"", "new": b"new"}


async def test_a_function_of_the_user_gets_the_new_messages_of_each_run(seen):
    for moment, last in zip(seen, (FIRST, LAST), strict=True):
        rows = by_sequence(moment.tables["doubled"])
        wanted = orders(last, lambda one: one["country"] is not None)
        assert [(one["sequence"], one["twice"]) for one in rows] == [
            (one["sequence"], 2 * one["total"]) for one in wanted
        ]
        numbers = [one.number for one in moment.document.tables["doubled"].runs]
        assert {one["run"] for one in rows} == set(numbers)


async def test_a_pipeline_reads_the_rows_that_another_one_has_added(seen):
    for moment, last in zip(seen, (FIRST, LAST), strict=True):
        large = orders(last, lambda one: one["total"] >= 50)
        assert by_sequence(moment.tables["large"]) == large
        wanted = {}
        for one in large:
            n, total = wanted.get(one["country"] or "?", (0, 0))
            wanted[one["country"] or "?"] = n + 1, total + one["total"]
        found = {one["country"]: (one["n"], one["total"]) for one in moment.tables["countries"]}
        assert found == wanted
        assert len(found) == len(moment.tables["countries"])


async def test_rows_that_do_not_meet_a_condition_are_in_a_table_of_their_own_with_the_reason(seen):
    for moment, last in zip(seen, (FIRST, LAST), strict=True):
        assert by_sequence(moment.tables["checked"]) == orders(last, lambda one: one["country"])
        bad = orders(last, lambda one: not one["country"])
        wanted = [one | {"reason": "country IS NOT NULL"} for one in bad]
        assert by_sequence(moment.tables["checked__quarantine"]) == wanted
        counted = [one.violations.get("country IS NOT NULL", 0) for one in moment.document.tables["checked"].runs]
        assert sum(counted) == len(bad)


async def test_a_pipeline_that_fails_keeps_its_last_good_table_while_all_others_run(seen):
    first, then = seen
    assert first.tables["strict"] == then.tables["strict"]
    assert by_sequence(then.tables["strict"]) == orders(FIRST)
    strict, broken = (then.document.tables[name] for name in ("strict", "broken"))
    *good, bad = strict.runs
    assert {one.error for one in good} == {""}
    assert bad.error.startswith("pipeline strict: ")
    assert "'total >= 0': 3" in bad.error
    assert strict.number == good[-1].number
    assert then.document.progress.streams[f"strict {STREAM}"].held.count == FIRST
    assert not broken.number
    assert "broken" not in then.document.iceberg
    for one in broken.runs:
        assert one.error.startswith("pipeline broken: ")
        assert "nothing" in one.error
    assert all(one in then.status for one in ("pipeline strict: rows do not meet", "pipeline broken: "))
    others = [one for name, one in then.document.tables.items() if name not in ("strict", "broken")]
    assert {run.error for one in others for run in one.runs} == {""}
