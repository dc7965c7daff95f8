"""Pipelines that follow their stream: real nodes over TLS, real Spark, beside pipelines that read the archive."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from capture_chaos_nodes import environment
from patient import PATIENCE, PATIENT
from pipeline_nodes import (
    LARGE,
    REVENUE,
    STREAM,
    expected,
    leader_of,
    make_order,
    publish,
    read_document,
    read_rows,
    until_progress,
    write_config,
)

from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.node.pipeline_requests import ask
from capture.verification.pipelines import check_pipeline
from natty import Natty
from natty.testing import NatsServer
from natty.testing.spawner import spawn

pytestmark = [pytest.mark.spark]

REVENUE_NOW = REVENUE | {"name": "revenue_now", "trigger": "stream"}
LARGE_NOW = LARGE | {"name": "large_now", "trigger": "stream"}
ROWS_NOW = LARGE_NOW | {"name": "rows_now", "sql": f"SELECT sequence, country, total FROM {STREAM}"}
COPIED = {
    "name": "copied",
    "schedule": "every 1s",
    "sql": "SELECT sequence, country, total FROM rows_now",
    "mode": "append",
}
SELDOM = {
    "limits": {"max_age": 600.0, "max_messages": 1_000_000},
    "ack_wait": 1200.0,
}  # the archive gets nothing until the end


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
async def natty(own_server):
    async with Natty(**own_server.connect_options(), **PATIENT) as client:
        yield client


@pytest.fixture
async def run_node(own_server, tmp_path):
    """Start `capture run` as a process; what still runs at the end is killed."""
    running = []

    def start(name, pipelines, **more):
        link = own_server.connect_options()
        path = write_config(tmp_path, name, str(tmp_path / "archive"), link, pipelines, **more)
        with (tmp_path / f"{name}.log").open("ab") as output:
            command = [sys.executable, "-m", "capture", "--log-level", "info", "run", "--config", str(path)]
            process = spawn(command, output=output, folder=tmp_path, environ=environment({}))
        running.append(process)
        return process

    yield start
    for one in running:
        if one.poll() is None:
            one.send_signal(signal.SIGCONT)
            one.kill()
            one.wait()


def read_tables(store, names):
    return {name: sorted(tuple(row.values()) for row in read_rows(store, name)) for name in names}


async def expect_tables(store, wanted):
    """The tables have these rows as soon as their last commit is announced: its document comes shortly before."""
    end = time.monotonic() + PATIENCE
    while (found := read_tables(store, wanted)) != wanted and time.monotonic() < end:
        await asyncio.sleep(0.1)
    assert found == wanted


def expected_now(last):
    """The rows of both pipelines that follow the stream."""
    return {f"{name}_now": rows for name, rows in expected(last).items()}


async def prove(natty, folder, names, last):
    config = load(folder / "one.toml", {}, environment={}, pipelines=True)
    for name in names:
        found = await check_pipeline(natty, config, name)
        assert (found.status, found.problems) == (0, ()), found.sentences()
        assert found.inputs[0].held == Sequences.from_range(1, last)


async def test_tables_have_messages_that_the_archive_does_not_have_yet(natty, run_node, tmp_path):
    store, names = str(tmp_path / "archive"), ["revenue_now", "large_now"]
    await natty.ensure_stream(STREAM, subjects=["orders.>"], allow_direct=True)
    await publish(natty, 1, 100)
    node = run_node("one", [REVENUE_NOW, LARGE_NOW], **SELDOM)
    await until_progress(store, names, 100)
    for last in (150, 200, 250):
        await publish(natty, last - 49, last)
        await until_progress(store, names, last)
        await expect_tables(store, expected_now(last))
    assert not list((tmp_path / "archive").glob("blocks/**/*.parquet"))
    await prove(natty, tmp_path, names, 250)
    document = await read_document(store)
    for one in document.tables.values():
        (run,) = one.runs
        assert (run.why, run.rows_in, run.error) == ("stream", 250, "")
        assert run.batches >= 3
    node.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait, 60) == 0
    assert list((tmp_path / "archive").glob("blocks/**/*.parquet"))
    await prove(natty, tmp_path, names, 250)


def find_below(pid, *words):
    """Return the processes that a process has started, over others too, whose command has one of these words."""
    parents, found = {}, []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            with contextlib.suppress(OSError):
                parents[int(one.name)] = int((one / "stat").read_text().rpartition(") ")[2].split()[1])
    for one in parents:
        above = one
        while above in parents and above != pid:
            above = parents[above]
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{one}/cmdline").read_text()
            if above == pid != one and any(word in command for word in words):
                found.append(one)
    return found


async def until_file(folder):
    """Wait until a file comes into a folder."""
    known = set(folder.glob("**/*"))
    async with asyncio.timeout(4 * PATIENCE):
        while not set(folder.glob("**/*")) - known:
            await asyncio.sleep(0.005)


async def until_merged(folder):
    """Wait until a merged file comes into a folder: it is not committed yet."""
    known = set(folder.glob("**/*.parquet"))
    async with asyncio.timeout(8 * PATIENCE):
        while True:
            for one in set(folder.glob("**/*.parquet")) - known:
                known.add(one)
                if "__sequence" in pq.read_schema(one).names:
                    return
            await asyncio.sleep(0.005)


async def publish_slowly(natty, first, counter):
    """Publish an order every few milliseconds, until cancelled; the last one is in `counter`."""
    for number in range(first, first + 100_000):
        await publish(natty, number, number)
        counter.append(number)
        await asyncio.sleep(0.05)


async def test_files_of_batches_become_few_whatever_is_killed_while_they_are_merged(natty, run_node, tmp_path):
    store, pipelines = str(tmp_path / "archive"), [ROWS_NOW, COPIED]
    table = tmp_path / "archive" / "_pipelines" / "table" / "rows_now"
    await natty.ensure_stream(STREAM, subjects=["orders.>"], allow_direct=True)
    nodes = {name: run_node(name, pipelines) for name in ("one", "two")}
    published = []
    publishing = asyncio.create_task(publish_slowly(natty, 1, published))
    for _ in range(3):
        await until_merged(table)
        leader = await leader_of(natty)
        nodes[leader].kill()
        nodes[leader].wait()
        nodes[leader] = run_node(leader, pipelines)
    await until_merged(table)
    publishing.cancel()
    await asyncio.wait([publishing])
    last = published[-1] + 1
    await publish(natty, last, last)  # again, if it was published before it was cancelled: it has a message id
    await until_progress(store, ["rows_now"], last)
    orders = [json.loads(make_order(number)[1]) for number in range(1, last + 1)]
    rows = [(number, one["country"], one["total"]) for number, one in enumerate(orders, 1)]
    await expect_tables(store, {"rows_now": rows, "copied": rows})
    await prove(natty, tmp_path, ["rows_now"], last)
    found = await check_pipeline(natty, load(tmp_path / "one.toml", {}, environment={}, pipelines=True), "copied")
    assert (found.status, found.problems) == (0, ()), found.sentences()
    document = await read_document(store)
    files = {(one.first, one.last) for one in document.files if one.stream == "rows_now"}  # a large run writes several
    assert any(first < last for first, last in files)
    assert len(files) <= document.tables["rows_now"].number - 9
    assert len({one.token for one in document.tables["rows_now"].runs}) > 2


async def until_captured(natty, last):
    async with asyncio.timeout(4 * PATIENCE):
        while (await natty.jetstream.request(f"CONSUMER.INFO.{STREAM}.capture"))["ack_floor"]["stream_seq"] < last:
            await asyncio.sleep(0.1)


async def test_whatever_is_killed_or_stands_still_both_kinds_of_tables_are_equal(natty, run_node, tmp_path):
    pipelines = [REVENUE, LARGE, REVENUE_NOW, LARGE_NOW]
    store, names = str(tmp_path / "archive"), [one["name"] for one in pipelines]
    table = tmp_path / "archive" / "_pipelines" / "table" / "revenue_now"
    await natty.ensure_stream(STREAM, subjects=["orders.>"], allow_direct=True)
    nodes = {name: run_node(name, pipelines) for name in ("one", "two")}
    await publish(natty, 1, 150)
    await until_progress(store, names, 150)
    last = 150
    for strike in ("kill", "stop", "java"):
        leader = await leader_of(natty)
        coming = asyncio.create_task(until_file(table))
        await publish(natty, last + 1, last + 150)
        last += 150
        await coming
        process = nodes[leader]
        if strike == "kill":
            process.kill()
            process.wait()
            nodes[leader] = run_node(leader, pipelines)
        elif strike == "stop":
            process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(4 * PATIENCE):
                while await leader_of(natty) == leader:
                    await asyncio.sleep(0.1)
            await publish(natty, last + 1, last + 50)
            last += 50
            process.send_signal(signal.SIGCONT)
        else:
            javas = find_below(process.pid, "SparkSubmit")
            assert javas
            for one in javas:
                os.kill(one, signal.SIGKILL)
        await until_progress(store, names, last)
    for name in ("revenue_now", "large_now"):
        await ask(natty, STREAM, name, "pause", by="test")
    async with asyncio.timeout(4 * PATIENCE):
        while not all([(await read_document(store)).tables[name].paused for name in ("revenue_now", "large_now")]):
            await asyncio.sleep(0.2)
    await publish(natty, last + 1, last + 100)
    last += 100
    await until_captured(natty, last)
    await natty.jetstream.request(f"STREAM.PURGE.{STREAM}")  # before they were followed
    for name in ("revenue_now", "large_now"):
        await ask(natty, STREAM, name, "resume", by="test")
    await publish(natty, last + 1, last + 30)
    last += 30
    await until_progress(store, names, last)
    await expect_tables(store, expected(last) | expected_now(last))
    await prove(natty, tmp_path, names, last)
    runs = [run for one in (await read_document(store)).tables.values() for run in one.runs]
    assert {"stream", "new"} <= {one.why for one in runs}
    assert len({one.token for one in runs}) > 1
