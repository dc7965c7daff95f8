"""Pipelines that follow their stream: real nodes over TLS, real Spark, beside pipelines that read the archive."""

import asyncio
import signal
import sys
import time

import pytest
from capture_chaos_nodes import environment
from patient import PATIENCE, PATIENT
from pipeline_nodes import (
    LARGE,
    REVENUE,
    STREAM,
    expected,
    leader_of,
    publish,
    read_document,
    read_rows,
    until_progress,
    write_config,
)

from capture.archive.sequences import Sequences
from capture.config.load import load
from capture.verification.pipelines import check_pipeline
from natty import Natty
from natty.testing import NatsServer
from natty.testing.spawner import spawn

pytestmark = [pytest.mark.spark]

REVENUE_NOW = REVENUE | {"name": "revenue_now", "trigger": "stream"}
LARGE_NOW = LARGE | {"name": "large_now", "trigger": "stream"}
SELDOM = {"limits": {"max_age": 600.0, "max_messages": 1_000_000}, "ack_wait": 1200.0}  # the archive gets nothing until the end


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
        assert read_tables(store, names) == expected_now(last)
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


__all__ = ["LARGE", "PATIENCE", "REVENUE", "leader_of", "time"]
