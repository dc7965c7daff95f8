"""The short form of `make chaos`: real nodes, servers and stores over TLS, each kind of fault, and a control."""

import asyncio

import polars
import pytest
from capture_chaos import Options, chaos, tls_context
from capture_chaos_faults import schedule
from capture_chaos_nodes import Bucket, Folder
from iceberg_engines import prepare
from iceberg_on_duckdb import ENVIRONMENT, PACKAGES, running
from pyiceberg.table import StaticTable
from stores import running_seaweedfs

from natty.testing import NatsServer

SHORT = {"every": 0.5, "max_age": 0.4, "max_messages": 200, "ack_wait": 3.0, "lease": 2.0}


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def bucket(natty_tls, tmp_path):
    with running_seaweedfs(tmp_path / "s3", natty_tls) as server:
        yield Bucket(server, tls_context(natty_tls))


@pytest.fixture
def play(own_server, tmp_path, capsys):
    async def run(store, **options):
        outcome = await chaos([own_server], store, tmp_path, Options(**SHORT | options))
        with capsys.disabled():
            print(f"\n{outcome.summary()}")
        assert outcome.findings.messages >= outcome.options.messages
        return outcome

    return run


async def test_nothing_is_lost_or_invented_whatever_happens_to_nodes_server_and_object_store(play, bucket):
    outcome = await play(bucket, messages=5000, kills=6, pages=True)
    assert outcome.wrong == []
    assert {*outcome.faults.played} == {*schedule("s3", 6, 0), "forget"}
    assert outcome.faults.kills == 6


async def test_nothing_is_lost_or_invented_whatever_happens_to_a_folder(play, tmp_path):
    struck = ("full", "kill", "purge", "kill_sweep", "fail", "rollup", "kill", "delete")
    told = {"layout": "/dated", "pages": True}
    outcome = await play(Folder(tmp_path / "archive"), nodes=2, messages=2000, faults=struck, **told)
    assert outcome.wrong == []
    assert sorted(outcome.faults.played.elements()) == sorted((*struck, "forget"))


async def test_nothing_is_lost_or_invented_where_nodes_share_the_partitions_of_a_group(play, tmp_path):
    struck = ("kill", "purge", "stop", "half_open", "rollup", "server", "kill", "delete", "term")
    outcome = await play(Folder(tmp_path / "archive"), nodes=2, messages=2000, faults=struck, ack="group")
    assert outcome.wrong == []
    assert sorted(outcome.faults.played.elements()) == sorted((*struck, "forget"))


async def test_the_same_harness_finds_out_nodes_that_ack_before_a_block_is_durable(play, tmp_path):
    outcome = await play(Folder(tmp_path / "archive"), nodes=2, messages=1000, faults=("kill",), broken=True)
    assert outcome.verified == 3
    assert any("LOST: in the stream and not in the archive" in wrong for wrong in outcome.wrong), outcome.wrong


async def test_every_snapshot_of_a_fresh_table_holds_each_sequence_once(play, tmp_path):
    struck = ("kill_table", "server", "kill", "kill_table", "stop", "kill_sweep", "fail", "kill_table", "full", "term")
    told = {"every": 2.0, "fresh": 0.3, "spark": True}  # Spark merges at the end
    outcome = await play(Folder(tmp_path / "archive"), nodes=2, messages=4000, faults=struck, **told)
    assert outcome.wrong == []
    assert sorted(outcome.faults.played.elements()) == sorted((*struck, "forget"))
    snapshots = outcome.snapshots
    assert 1 < snapshots.with_blocks <= snapshots.count
    wanted = [*snapshots.read[snapshots.newest]]
    rows = polars.scan_iceberg(StaticTable.from_metadata(snapshots.place)).select("sequence").collect()
    assert sorted(rows["sequence"]) == wanted
    async with running(await asyncio.to_thread(prepare, ENVIRONMENT, PACKAGES)) as duck:
        assert await duck.ask_column(f"SELECT sequence FROM iceberg_scan('{snapshots.place}') ORDER BY 1") == wanted
