"""Leaders of the compaction on a real server: one that stands still before its commit, and who reads the table then."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from archiving import compact_once, store_all, sweep_once
from electing import vacated_archive
from exposing import sequences_of, static_table
from indexed import read_whole
from patient import PATIENCE
from troubles import texts

from capture.archive.heads import COMPACTION, SWEEP
from capture.archive.iceberg_state import archive_location, folder
from capture.archive.table import Table
from capture.config.load import load
from capture.ingest.board import Board, NodeState
from capture.node.leader_tasks import Duty, Sweeps
from capture.node.status.status import look
from capture.stores import FileStore, open_store
from capture.testing import ArrowEngine

SUPPORT = Path(__file__).parents[3] / "support"

STANDS_STILL = """
import asyncio, os, signal, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from deposed import elected_and_asleep

from capture.maintenance.compaction import compact
from capture.config.load import load
from capture.errors import FencedError
from capture.archive.heads import COMPACTION, SWEEP, TermHead
from capture.iceberg import Exposer
from capture.maintenance.compaction_plan import Policy
from capture.maintenance.table_commits import TableLeading
from capture.stores import open_store
from capture.testing import ArrowEngine
from natty import Natty

config = load(Path(sys.argv[1]))
store = open_store(config.store)
put = store.put

async def put_and_stand_still(path, data, **options):
    await put(path, data, **options)
    if path.startswith("iceberg/") and path.endswith(".metadata.json"):
        os.kill(os.getpid(), signal.SIGSTOP)

async def main():
    async with Natty(**config.nats) as natty:
        term = await elected_and_asleep(natty.election(COMPACTION.election(config.name), lease=30.0, node_name="old"))
        store.put = put_and_stand_still
        reader, policy = SWEEP.reader(natty, config.name), Policy(min_files=1, max_wait=0.0)
        try:
            leading = TableLeading(store, TermHead(term, COMPACTION), reader, exposure=Exposer(store, node="old"))
            await compact(leading, ArrowEngine(), policy, now=time.time())
        except FencedError as error:
            print("fenced:", error, flush=True)

asyncio.run(main())
"""
"""Its arguments: the configuration, and where the tests' support is. It believes in its term for ever."""

READS = """
import sys
from pyiceberg.table import StaticTable

table = StaticTable.from_metadata(sys.argv[1])
print(sorted(table.scan().to_arrow()["sequence"].to_pylist()))
"""


def is_stopped(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.long
async def test_a_leader_that_stands_still_between_metadata_and_commit_is_refused_by_the_server(fleet):
    config = load(fleet.configure(partition="time", decoder="raw"))
    store = open_store(config.store)

    async def committed():
        return await read_whole(store, await COMPACTION.reader(fleet.natty, config.name)(), Table)

    await fleet.publish([b"1", b"2", b"3"])
    await store_all(fleet.natty, config, store)
    await sweep_once(fleet.natty, config, store)
    old = fleet.start("old", fleet.folder / "capture.toml", script=STANDS_STILL, arguments=[SUPPORT])
    async with asyncio.timeout(2 * PATIENCE):
        while not is_stopped(old):
            assert old.poll() is None, fleet.log("old").read_text()
            await asyncio.sleep(0.02)
    written = {one.path for one in await store.list("iceberg/")}
    assert any(path.endswith(".metadata.json") for path in written)
    assert not (await committed()).iceberg
    await fleet.publish([b"4", b"5"])
    await store_all(fleet.natty, config, store)
    await sweep_once(fleet.natty, config, store)
    await compact_once(fleet.natty, config, store)
    after = await committed()
    assert not written & after.list_named()
    old.send_signal(signal.SIGCONT)
    assert await fleet.ended(old) == 0
    assert "fenced:" in fleet.log("old").read_text()
    assert await committed() == after
    table = static_table(store, fleet.stream)
    assert sequences_of(table) == [1, 2, 3, 4, 5]
    [snapshot] = table.snapshots()
    assert snapshot.summary["capture.epoch"] == str(after.token)
    await sweep_once(fleet.natty, config, store)
    await compact_once(fleet.natty, config, store)
    assert sequences_of(static_table(store, fleet.stream)) == [1, 2, 3, 4, 5]


async def test_the_table_is_read_by_a_program_that_knows_nothing_of_us_and_of_no_server(fleet):
    config = load(fleet.configure(partition="time", decoder="raw"))
    store = open_store(config.store)
    await fleet.publish([b"1", b"2", b"3"])
    await store_all(fleet.natty, config, store)
    await sweep_once(fleet.natty, config, store)
    await compact_once(fleet.natty, config, store)
    assert read_alone(f"{store.root}/{folder(fleet.stream)}") == "[1, 2, 3]\n"


def read_alone(place):
    """Return what a program prints that knows only where the table is, and neither us nor a server."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("CAPTURE_", "NATS_", "PYTHON"))
    }
    command = [sys.executable, "-I", "-c", READS, place]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.long
async def test_the_table_of_a_users_store_is_for_other_engines_at_the_location_that_is_named(fleet, monkeypatch):
    module, objects = ModuleType("shelves"), fleet.folder / "objects"
    module.shelf = lambda folder: FileStore(folder)
    monkeypatch.setitem(sys.modules, "shelves", module)
    settings = {
        "store": f"shelves:shelf?folder={objects}",
        "compaction__min_files": 1,
        "compaction__max_wait": 0.0,
        "partition": "time",
        "decoder": "raw",
    }

    async def compacted(payload, **table):
        config = load(fleet.configure(**settings, **table))
        store = open_store(config.store)
        await fleet.publish([payload])
        await store_all(fleet.natty, config, store)
        await sweep_once(fleet.natty, config, store)
        await compacted_by("node-1", fleet, config)
        return store

    store = await compacted(b"1")
    assert await store.list("table/")
    assert await store.list("iceberg/") == [], "no other engine could open it"
    await compacted(b"2", table__location=objects.as_uri())
    assert read_alone(f"{objects}/{folder(fleet.stream)}") == "[1, 2]\n"
    assert static_table(FileStore(objects), fleet.stream).location().startswith(objects.as_uri())


async def compacted_by(node, fleet, config):
    """Compact as a node's leader does it, without Spark."""

    async def work(term):
        duty = Duty(fleet.natty, open_store(config.store), config, node)
        return await duty.compact_once(duty.lead_compaction(term), ArrowEngine())

    await vacated_archive(fleet.natty, config.name)
    await fleet.natty.election(COMPACTION.election(config.name), lease=PATIENCE).run(work)


async def swept_by(node, fleet, config):
    """Sweep as a node's leader does it, who publishes the archive's state."""

    async def work(term):
        return await Sweeps(Duty(fleet.natty, open_store(config.store), config, node), term).run()

    await vacated_archive(fleet.natty, config.name)
    await fleet.natty.election(SWEEP.election(config.name), lease=PATIENCE).run(work)


async def test_nodes_that_know_the_archive_by_different_urls_are_told_of_and_do_not_move_the_table(fleet, caplog):
    settings = {"compaction__min_files": 1, "compaction__max_wait": 0.0, "table__keep_for": 3600.0}
    one = load(fleet.configure(partition="time", decoder="raw", **settings))
    other = load(fleet.configure(partition="time", decoder="raw", **settings, table__location="s3://lake/orders"))
    store, board = open_store(one.store), Board(fleet.natty, one.name)
    places = {"node-1": archive_location(store), "node-2": "s3://lake/orders"}

    async def compacted(node, config, payload):
        await fleet.publish([payload])
        await store_all(fleet.natty, config, store)
        await swept_by(node, fleet, config)
        said = NodeState(node=node, version="", since=0.0, every=PATIENCE, location=places[node])
        await board.announce(said)
        await compacted_by(node, fleet, config)
        await swept_by(node, fleet, config)
        [status] = await look(fleet.natty, [config])
        return status

    status = await compacted("node-1", one, b"1")
    [table] = status.board.state.tables
    assert (table.location, table.snapshots, table.expires) == (f"{places['node-1']}/{folder(fleet.stream)}", 1, None)
    assert not any("URLs" in trouble for trouble in texts(status.troubles))
    status = await compacted("node-2", other, b"2")
    [kept] = status.board.state.tables
    assert (kept.location, kept.snapshots) == (table.location, 2)
    assert kept.expires == kept.made + 3600.0
    assert sequences_of(static_table(store, fleet.stream)) == [1, 2]
    wrong = (
        f"nodes use different URLs for the archive, {places['node-1']} (node-1), s3://lake/orders (node-2): "
        "set [table] location to the URL of engines on all nodes"
    )
    assert wrong in texts(status.troubles)
    assert f"the table stays where it is: {wrong}" in caplog.text
    await board.withdraw("node-1")
    status = await compacted("node-2", other, b"3")
    [moved] = status.board.state.tables
    assert moved.location == f"s3://lake/orders/{folder(fleet.stream)}"


async def test_the_nodes_leader_keeps_as_many_snapshots_as_it_is_told(fleet):
    settings = {
        "table__keep_snapshots": 2,
        "table__keep_for": 0.0,
        "compaction__min_files": 1,
        "compaction__max_wait": 0.0,
    }
    config = load(fleet.configure(partition="time", decoder="raw", **settings))
    store = open_store(config.store)
    for payload in (b"1", b"2", b"3", b"4"):
        await fleet.publish([payload])
        await store_all(fleet.natty, config, store)
        await sweep_once(fleet.natty, config, store)
        await compacted_by("node-1", fleet, config)
    table = static_table(store, fleet.stream)
    assert sequences_of(table) == [1, 2, 3, 4]
    before, now = table.snapshots()
    assert sequences_of(table, before.snapshot_id) == [1, 2, 3]
    assert now.summary["capture.leader"] == "node-1"
