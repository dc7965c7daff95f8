"""Pipelines whose archive and tables are in an S3 server over TLS: a leader is killed, other engines read them."""

import asyncio
import sys
from uuid import uuid4

import pyarrow.compute as pc
import pytest
from capture_chaos_nodes import environment
from iceberg_engines import prepare
from iceberg_on_duckdb import ENVIRONMENT, PACKAGES, running
from patient import PATIENCE, PATIENT
from pipeline_nodes import LARGE, REVENUE, STREAM, expected, leader_of, publish, until_progress, write_config
from pyiceberg.table import StaticTable
from stores import seaweedfs  # noqa: F401

from capture.config.load import load
from capture.stores import open_store
from capture.verification.pipelines import check_pipeline
from natty import Natty
from natty.testing import NatsServer
from natty.testing.spawner import spawn

pytestmark = [pytest.mark.spark]

TABLES = ("revenue", "large")


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
async def natty(own_server):
    async with Natty(**own_server.connect_options(), **PATIENT) as client:
        yield client


@pytest.fixture
def lake(seaweedfs, monkeypatch):  # noqa: F811
    """The S3 server, with its credentials in the environment; `lake.location` is a new archive in it."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    return seaweedfs


@pytest.fixture
async def run_node(own_server, tmp_path, lake):
    """Start `capture run` as a process; what still runs at the end is killed."""
    prefix, started = f"a lake/{uuid4().hex}", []

    def start(name):
        store, link = lake.url(prefix), own_server.connect_options()
        path = write_config(tmp_path, name, store, link, (REVENUE, LARGE))
        with (tmp_path / f"{name}.log").open("ab") as output:
            command = [sys.executable, "-m", "capture", "--log-level", "info", "run", "--config", str(path)]
            process = spawn(command, output=output, folder=tmp_path, environ=environment(lake.environment))
        started.append(process)
        return process

    start.store, start.location = lake.url(prefix), f"s3://lake/{prefix}/_pipelines/iceberg"
    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
            one.wait()


def read_by_pyiceberg(lake, location):
    """Return the rows of each table, sorted. Arrow trusts no authority of ours, so it uses the server's plain port."""
    access = {
        "s3.endpoint": f"http://127.0.0.1:{lake.plain_port}",
        "s3.access-key-id": lake.environment["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": lake.environment["AWS_SECRET_ACCESS_KEY"],
        "s3.region": lake.environment["AWS_REGION"],
    }
    found = {}
    for name in TABLES:
        table = StaticTable.from_metadata(f"{location}/{name}", access).scan().to_arrow()
        columns = [pc.cast(one, "string") if str(one.type).startswith("date") else one for one in table.columns]
        found[name] = sorted(zip(*(one.to_pylist() for one in columns), strict=True))
    return found


async def read_by_duckdb(lake, location):
    """Return the rows of each table, sorted, read over TLS."""
    python = await asyncio.to_thread(prepare, ENVIRONMENT, PACKAGES)
    secret = f"""
        CREATE SECRET (
            TYPE s3, KEY_ID '{lake.environment["AWS_ACCESS_KEY_ID"]}', REGION '{lake.environment["AWS_REGION"]}',
            SECRET '{lake.environment["AWS_SECRET_ACCESS_KEY"]}',
            ENDPOINT '{lake.endpoint.removeprefix("https://")}', URL_STYLE 'path'
        )"""
    trust = [f"SET ca_cert_file = '{lake.ca}'", "SET enable_server_cert_verification = true"]
    found = {}
    async with running(python) as duck:
        await duck.ask(*trust, secret)
        for name in TABLES:
            rows = await duck.ask(f"SELECT COLUMNS(c -> true) FROM iceberg_scan('{location}/{name}')")
            found[name] = sorted(map(tuple, rows))
    return found


async def test_tables_in_an_object_store_survive_their_leader_and_are_read_by_other_engines(
    natty, run_node, lake, tmp_path
):
    store = run_node.store
    await natty.ensure_stream(STREAM, subjects=["orders.>"])
    nodes = {name: run_node(name) for name in ("one", "two")}
    await publish(natty, 1, 150)
    await until_progress(store, TABLES, 150)
    home = open_store(store)
    known = {one.path for one in await home.list("_pipelines/table/")}
    leader = await leader_of(natty)
    await publish(natty, 151, 300)
    async with asyncio.timeout(4 * PATIENCE):
        while not {one.path for one in await home.list("_pipelines/table/")} - known:
            await asyncio.sleep(0.01)
    nodes[leader].kill()
    nodes[leader].wait()
    document = await until_progress(store, TABLES, 300)
    assert len({one.token for table in document.tables.values() for one in table.runs}) > 1
    assert await asyncio.to_thread(read_by_pyiceberg, lake, run_node.location) == expected(300)
    assert await read_by_duckdb(lake, run_node.location) == expected(300)
    config = load(tmp_path / "one.toml", {}, environment={}, pipelines=True)
    for name in TABLES:
        found = await check_pipeline(natty, config, name)
        assert (found.status, found.problems) == (0, ()), found.sentences()
