"""Micro-batches of a stream give the table that one run over the archive gives, row by row."""

import json
import os
import random

import pytest
import pytest_asyncio
from derivations import Table, messages
from followed import NAME, Followed
from jetstream_ranges import rows_of, source_of
from patient import PATIENT
from spark_blocks import QUICK, parquet_block, quick_driver
from spark_processes import read_of_each

from capture.archive.sequences import Sequences
from capture.errors import SparkError
from capture.pipelines.derivation import Following, Held, Input
from capture.spark import SparkDriver, SparkOptions
from capture.spark.connection_options import write_options
from natty import Natty
from natty.testing import NatsServer, ServerOptions

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

SCHEMA = "country STRING, total DECIMAL(18,2), n BIGINT"
PASSWORD = "do-not-show-me"


async def publish(natty, stream, numbers):
    """Publish messages; some have headers, no payload, or one that is not JSON."""
    chance = random.Random(3)
    for number in numbers:
        body = {"country": chance.choice("abc"), "total": f"{number}.25", "n": chance.choice([number, None])}
        payload = b"" if number % 17 == 0 else b"no" if number % 19 == 0 else json.dumps(body).encode()
        headers = {"Number": str(number)} if number % 3 == 0 else None
        await natty.publish(f"{stream}.{number % 7}", payload, headers=headers, msg_id=f"id-{number}")


def archive(nats_server, stream, store, name="all", **options):
    """Return a block with what the stream has, as capture stores it after some deliveries, and with typed columns."""
    rows = rows_of(source_of(nats_server, stream)(**options))
    return parquet_block(store, name, [row | {"deliveries": 3, "error": "not decoded"} for row in rows])


@pytest.fixture(scope="module", autouse=True)
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "stream_jobs.py").write_text(DOUBLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.path.relpath(folder))
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(jobs, tmp_path_factory):
    async with quick_driver(tmp_path_factory.mktemp("spark")) as driver:
        yield driver


@pytest_asyncio.fixture(loop_scope="module")
async def natty(nats_server):
    async with Natty(**nats_server.connect_options(), **PATIENT) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def stream(natty, natty_name):
    name = natty_name("FOLLOWED")
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)
    await publish(natty, name, range(1, 101))
    return name


SUMS = (
    "SELECT country, sum(total) AS t, count(*) AS c, last(n) AS n, avg(total) AS a FROM S WHERE country IS NOT NULL"
    " GROUP BY country"
)
UPSERTS = "SELECT subject AS k, sequence, total FROM S WHERE total IS NOT NULL"


DOUBLED = """
def doubled(spark, inputs, run):
    [orders] = inputs.values()
    return orders.selectExpr("sequence", "total * 2 AS doubled", "deliveries", "headers")


def clears(spark, inputs, run):
    spark.catalog.clearCache()
    [messages] = inputs.values()
    return messages.select("sequence")
"""
KINDS = {
    "append": {"sql": "SELECT *, total * 2 AS doubled FROM S WHERE n IS NOT NULL"},
    "upsert": {"sql": UPSERTS, "key": ["k"]},
    "merge": {"sql": SUMS, "key": ["country"]},
    "latest": {"latest": "subject", "key": ["key"], "upkeep": "rows"},
    "python": {"python": "stream_jobs:doubled", "upkeep": "rows"},
}


@pytest.mark.parametrize("kind", KINDS)
async def test_micro_batches_give_what_one_run_over_the_archive_gives(driver, store, stream, natty, nats_server, kind):
    table = Followed(driver, store, stream, schema=SCHEMA, **KINDS[kind])
    await table.follow(nats_server)
    await table.until(100)
    await publish(natty, stream, range(101, 131))
    await table.until(130)
    await driver.unfollow(NAME)
    assert len(table.batches) >= 4
    assert table.progress == Sequences.from_range(1, 130)
    whole = Followed(driver, store, stream, schema=SCHEMA, **KINDS[kind])
    await whole.run_block(archive(nats_server, stream, store))
    assert repr(table.read()) == repr(whole.read())
    assert table.read(tombstones=True) == whole.read(tombstones=True)
    assert table.read()
    assert table.types() == whole.types()


async def test_messages_that_the_table_has_already_count_once(driver, store, stream, natty, nats_server):
    table = Followed(driver, store, stream, schema=SCHEMA, **KINDS["merge"])
    await table.run_block(archive(nats_server, stream, store, "some", startSequence=11, endSequence=75))
    await table.follow(nats_server)
    await table.until(100)
    await driver.unfollow(NAME)
    whole = Followed(driver, store, stream, schema=SCHEMA, **KINDS["merge"])
    await whole.run_block(archive(nats_server, stream, store))
    assert table.read() == whole.read()


async def test_a_bucket_keeps_its_last_values(driver, store, natty, nats_server, natty_name):
    name = natty_name("bucket")
    bucket = await natty.create_bucket(name, history=1)
    stream = f"KV_{name}"
    for number in range(30):
        await bucket.put(f"k{number % 5}", b"" if number == 29 else b"%d" % number)
    await bucket.delete("k1")
    table = Followed(driver, store, stream, **KINDS["latest"])
    await table.follow(nats_server)
    await table.until(31)
    await bucket.put("k2", b"again")
    await bucket.put("k1", b"new")
    await bucket.purge("k3")
    await table.until(34)
    await driver.unfollow(NAME)
    found = {row["key"].rpartition(".")[2]: row["payload"] for row in table.read()}
    assert found == {"k0": b"25", "k1": b"new", "k2": b"again", "k4": b""}
    whole = Followed(driver, store, stream, **KINDS["latest"])
    await whole.run_block(archive(nats_server, stream, store))
    assert table.read() == whole.read()


async def test_a_batch_is_held_until_the_next_one_is_asked_for(driver, store, stream, nats_server):
    table = Followed(driver, store, stream, schema=SCHEMA, **KINDS["append"])
    await table.follow(nats_server)
    first = await driver.next_batch(NAME, -1)
    assert await driver.next_batch(NAME, -1) == first, "an answer that was lost is given again"
    second = await driver.next_batch(NAME, first.number)
    assert Sequences.from_text(second.sequences) == Sequences.from_range(41, 80)
    await driver.unfollow(NAME)
    with pytest.raises(SparkError, match=f"pipeline {NAME} has no streaming query"):
        await driver.next_batch(NAME, second.number)


async def test_a_held_batch_is_not_read_again_from_a_stream_that_does_not_have_it_any_more(
    driver, store, natty, nats_server, natty_name
):
    """Another pipeline's function may clear Spark's cache, which is that of all sessions."""
    name = natty_name("PURGED")
    await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)
    await publish(natty, name, range(1, 31))
    table = Followed(driver, store, name, schema=SCHEMA, **KINDS["append"])
    await table.follow(nats_server)
    batch = await driver.next_batch(NAME, -1)
    await natty.jetstream.request(f"STREAM.PURGE.{name}")
    other = Table(driver, store / "other", name="other", python="stream_jobs:clears", upkeep="rows")
    await other.run([messages(store / "other", "1", {1: {"n": 1}})])
    held = Held(number=batch.number, count=batch.count, bytes=batch.bytes)
    await table.run_input(Input(store=store.as_uri(), held=held, **table.input_settings()))
    whole = [number for number in range(1, 31) if number % 17 and number % 19]
    assert {one["sequence"] for one in table.read()} <= set(whole)
    assert table.read()
    await driver.unfollow(NAME)


async def test_a_query_that_ends_says_why(driver, store, stream, natty, nats_server):
    table = Followed(driver, store, stream, schema=SCHEMA, **KINDS["append"])
    await table.follow(nats_server)
    await table.until(100)
    await natty.jetstream.request(f"STREAM.DELETE.{stream}")
    with pytest.raises(SparkError, match=f"query of pipeline {NAME} has ended: there is no stream {stream}"):
        await table.step()
    await driver.unfollow(NAME)


async def test_a_password_is_in_the_environment_only_and_on_no_command_line(
    natty_tls, nats_server_binary, tmp_path, store
):
    options = ServerOptions(authorization=f"authorization {{ user: me, password: {PASSWORD} }}")
    log = tmp_path / "driver.log"
    with NatsServer(options, folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        link = {**server.connect_options(), "user": "me", "password": PASSWORD}
        async with Natty(**link, **PATIENT) as natty, SparkDriver(SparkOptions(properties=QUICK), log=log) as driver:
            await natty.create_stream("S", subjects=["S.>"], allow_direct=True)
            await publish(natty, "S", range(1, 21))
            given, driver.variables = write_options(link)
            given |= {"stream": "S", "failOnDataLoss": "false"}
            await driver.follow(Following(pipeline=NAME, options=given, every=0.1))
            batch = await driver.next_batch(NAME, -1)
            assert Sequences.from_text(batch.sequences) == Sequences.from_range(1, 20)
            environs, commands = (read_of_each(driver.session, name).values() for name in ("environ", "cmdline"))
            assert any(PASSWORD.encode() in one for one in environs)
            assert not any(PASSWORD.encode() in one for one in commands)
            await driver.unfollow(NAME)
    assert PASSWORD not in log.read_text()
