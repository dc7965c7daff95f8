"""The user's catalog beside a running archive: its leader registers the table, and commands show and mend the entry."""

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys

import pytest
from archiving import store_all
from electing import vacated_archive
from exposing import sequences_of
from patient import PATIENCE, until
from pyiceberg.catalog.sql import SqlCatalog

from capture.archive.heads import COMPACTION, SWEEP
from capture.config.load import load
from capture.ingest.board import Board, NodeState
from capture.node.leader_tasks import Duty, Sweeps
from capture.node.status.status import look
from capture.node.status.status_page import metrics
from capture.stores import open_store
from capture.testing import ArrowEngine


class Lake:
    """An archive of the fleet that is registered in a SQL catalog."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.uri = f"sqlite:///{fleet.folder}/catalog.db"
        self.path = self.configure()
        self.config = load(self.path)
        self.store = open_store(self.config.store)

    def configure(self, **settings):
        catalog = {"type": "sql", "uri": self.uri, "namespace": "lake"} | settings
        given = {f"table__catalog__{name}": value for name, value in catalog.items()}
        rules = {"compaction__min_files": 1, "compaction__max_wait": 0.0, "partition": "time", "decoder": "raw"}
        rules |= {"compaction__every": 1.0, "limits__max_age": 0.3, "sweep__every": 0.2}
        return self.fleet.configure(**rules, **given)

    async def compact(self, payload):
        """Compact a message as a node's leader does, without Spark. Return its entries, and what fails."""
        await self.fleet.publish([payload])
        await store_all(self.fleet.natty, self.config, self.store)

        async def sweep(term):
            await Sweeps(Duty(self.fleet.natty, self.store, self.config, "node-1"), term).run()

        await vacated_archive(self.fleet.natty, self.config.name)
        await self.fleet.natty.election(SWEEP.election(self.config.name), lease=PATIENCE).run(sweep)

        async def work(term):
            duty = Duty(self.fleet.natty, self.store, self.config, "node-1")
            async with duty.keep_catalog():
                await duty.compact_once(duty.lead_compaction(term), ArrowEngine())
                await duty.catalog.set_all()
                state = NodeState(
                    node="node-1", version="1", since=1.0, every=3600.0, catalogs=duty.catalogs,
                    troubles=list(duty.failing.values()),
                )  # fmt: skip
                await Board(self.fleet.natty, self.config.name).announce(state)
                return duty.catalogs, dict(duty.failing)

        await vacated_archive(self.fleet.natty, self.config.name)
        election = self.fleet.natty.election(COMPACTION.election(self.config.name), lease=PATIENCE)
        return await election.run(work)

    async def run(self, *arguments, path=None):
        """Return exit status, output and errors of `capture`."""
        command = [sys.executable, "-m", "capture", *arguments, "--config", path or self.path]
        ran = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
        )
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout, ran.stderr

    def shown(self):
        """Return the sequences that the catalog shows."""
        with SqlCatalog("default", uri=self.uri) as catalog:
            return sequences_of(catalog.load_table(("lake", self.fleet.stream)))

    def change(self):
        """Change the entry as another program does."""
        with SqlCatalog("default", uri=self.uri) as catalog:
            catalog.load_table(("lake", self.fleet.stream)).transaction().set_properties(owner="X").commit_transaction()


@pytest.fixture
def lake(fleet):
    return Lake(fleet)


async def test_the_leader_registers_the_table_and_status_page_and_metrics_show_it(lake):
    name = f"lake.{lake.fleet.stream}"
    [state], failing = await lake.compact(b"1")
    assert (state.entry, state.trouble, failing) == (name, "", {})
    assert lake.shown() == [1]
    [state], _ = await lake.compact(b"2")
    assert lake.shown() == [1, 2]
    [status] = await look(lake.fleet.natty, [lake.config])
    assert status.catalogs == [state]
    assert "capture_archive_catalog_current{archive=" in metrics([status])
    assert json.loads(json.dumps(status.as_dict()))["nodes"][0]["catalogs"][0]["number"] == state.number
    _, out, _ = await lake.run("status")
    assert f"{name}: current, shows table {state.number}, since" in out


@pytest.mark.long
async def test_an_entry_that_somebody_else_changed_is_reported_until_it_is_taken_over(lake):
    await lake.compact(b"1")
    lake.change()
    [state], failing = await lake.compact(b"2")
    assert "which this archive did not write" in state.trouble
    assert failing["catalog"].startswith("the catalog does not show the table: lake.")
    assert lake.shown() == [1], "the compaction went on, and the entry is as it was left"
    status, out, _ = await lake.run("status")
    assert status == 3
    assert f"lake.{lake.fleet.stream}: shows no table that this node has set; not current, see below" in out
    assert out.count("which this archive did not write") == 1
    assert "• node-1: the catalog does not show the table: lake." in out
    status, out, err = await lake.run("catalog", "show")
    assert (status, out) == (3, "")
    assert err.startswith(f"capture: lake.{lake.fleet.stream} in the catalog names ")
    status, _, err = await lake.run("catalog", "register")
    assert status == 3
    assert err.strip().endswith("set another namespace or table in [table.catalog]")
    assert lake.shown() == [1]
    status, out, err = await lake.run("catalog", "register", "--take-over", "--offline")
    assert (status, err) == (0, "")
    assert out.startswith(f"lake.{lake.fleet.stream} in the catalog is current: it shows table ")
    assert lake.shown() == [1, 2]
    _, failing = await lake.compact(b"3")
    assert failing == {}
    assert lake.shown() == [1, 2, 3]


@pytest.mark.long
async def test_a_catalog_that_is_away_stops_nothing_and_is_mended_by_the_next_leader(lake):
    database = lake.fleet.folder / "catalog.db"
    await lake.compact(b"1")
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    [state], failing = await lake.compact(b"2")
    assert "does not answer: unable to open database file" in state.trouble
    assert list(failing) == ["catalog"]
    status, _, err = await lake.run("catalog", "show")
    assert status == 3
    assert "does not answer" in err
    database.rmdir()
    database.with_suffix(".away").rename(database)
    assert lake.shown() == [1]
    _, failing = await lake.compact(b"3")
    assert failing == {}
    assert lake.shown() == [1, 2, 3]


@pytest.mark.long
async def test_the_commands_show_register_and_remove_the_entry(lake):
    status, _, err = await lake.run("catalog", "show")
    assert status == 1
    assert "there is no archive" in err.lower() or "holds no archive" in err.lower()
    await lake.compact(b"1")
    assert (await lake.run("catalog", "remove"))[0] == 0
    status, out, err = await lake.run("catalog", "show", "--json")
    assert (status, err) == (3, "")
    assert json.loads(out) == [
        {"stream": lake.fleet.stream, "text": f"lake.{lake.fleet.stream} is not registered in the catalog", "ok": False}
    ]
    status, out, _ = await lake.run("catalog", "register")
    assert status == 0
    assert lake.shown() == [1]
    assert (await lake.run("catalog", "show"))[:2] == (0, out)
    with contextlib.closing(sqlite3.connect(lake.fleet.folder / "catalog.db")) as rows, rows:
        rows.execute("update iceberg_tables set metadata_location = ?", ["s3://\x1b[31mRED\nforged"])
    status, _, err = await lake.run("catalog", "show")
    assert status == 3
    assert "names s3://\\x1b[31mRED" in err
    assert "\x1b" not in err
    assert (await lake.run("catalog", "register", "--take-over"))[0] == 0
    objects = sorted(one.path for one in await lake.store.list())
    status, out, _ = await lake.run("catalog", "remove")
    assert (status, out) == (0, f"lake.{lake.fleet.stream} was removed from the catalog\n")
    assert sorted(one.path for one in await lake.store.list()) == objects


async def test_a_command_without_a_catalog_says_what_to_write(lake):
    status, _, err = await lake.run("catalog", "show", path=lake.fleet.configure())
    assert status == 1
    assert "write [table.catalog] with its type and its uri into capture.toml" in err


@pytest.mark.long
async def test_the_doctor_asks_the_catalog(lake):
    async def checked(path):
        status, out, _ = await lake.run("doctor", "--json", path=path)
        return status, {one["check"]: one for one in json.loads(out)["checks"]}["catalog"]

    status, found = await checked(lake.path)
    assert (status, found["status"]) == (0, "ok")
    assert found["text"].endswith(f"answers; lake.{lake.fleet.stream} is not registered yet")
    await lake.compact(b"1")
    lake.change()
    status, found = await checked(lake.path)
    assert (status, found["status"]) == (1, "fail")
    assert "which this archive did not write" in found["text"]
    status, found = await checked(lake.configure(uri=f"sqlite:///{lake.fleet.folder}/not/there.db"))
    assert (status, found["status"]) == (1, "fail")
    assert "does not answer: unable to open database file" in found["text"]


@pytest.mark.long
async def test_a_node_keeps_the_entry_while_it_runs(lake):
    """A whole node with Spark, killed in between: its successor mends the entry."""
    path = lake.configure()
    await lake.fleet.publish([b"1"])
    node = lake.fleet.start("node-1", path)
    database = lake.fleet.folder / "catalog.db"

    def shows(sequences):
        try:
            return database.exists() and lake.shown() == sequences
        except Exception:  # not registered yet
            return False

    await until(lambda: shows([1]), 3 * PATIENCE)
    node.kill()
    node.wait()
    await lake.fleet.publish([b"2"])
    node = lake.fleet.start("node-2", path)
    await until(lambda: shows([1, 2]), 3 * PATIENCE)
    assert await lake.fleet.stop(node) == 0
