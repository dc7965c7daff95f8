"""The store of docs/extending.md, a module of the user: under real nodes, and under every command."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from electing import vacated_archive
from own_code import find_block, write_module
from patient import PATIENCE

from capture.config.load import load
from capture.config.settings import Compacting, TableSettings
from capture.ingest.board import BUCKET, Board
from capture.node.node import Node
from capture.stores import MemoryStore, check_store, open_store
from capture.verification.check import check

MESSAGES = 3000


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The folder of `sqlite_store.py`: this process and those that it starts can import it."""
    folder = write_module(tmp_path / "modules", "sqlite_store")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    yield folder
    sys.modules.pop("sqlite_store", None)


def url_of(folder):
    return f"sqlite_store:SqliteStore/archive?file={folder}/objects.db"


async def capture(*arguments, status=0):
    """Run a command as a process; return its output, or its complaint if it shall fail. Status None: any."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CAPTURE_", "NATS_"))}
    command = [sys.executable, "-m", "capture", *map(str, arguments)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environment)
    assert status in (None, done.returncode), f"{arguments}: {done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stderr if status else done.stdout


async def test_the_store_of_the_page_keeps_the_contract(module, tmp_path):
    await check_store(open_store(url_of(tmp_path)))


def test_the_check_of_the_page_runs_and_names_what_a_changed_store_breaks(module, tmp_path):
    check = find_block("check_store(SqliteStore").replace("/tmp/", f"{tmp_path}/")
    subprocess.run([sys.executable, "-W", "error", "-c", check], check=True)
    broken = "\nasync def get(self, path):\n    raise KeyError(path)\n\n\nSqliteStore.get = get\n"
    with (module / "sqlite_store.py").open("a") as file:
        file.write(broken)
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert "\nAssertionError: each call that the contract allows succeeds; but get conformance" in ran.stderr


@pytest.mark.long
async def test_nodes_with_a_users_store_lose_nothing_when_one_is_killed_and_every_command_reads_it(
    fleet, module, tmp_path
):
    config = fleet.configure(store=url_of(tmp_path), ack_wait=3.0, limits__max_age=0.3, limits__max_messages=100)
    compacting = fleet.configure(
        "compact.toml", store=url_of(tmp_path), compaction__min_files=1, compaction__max_wait=0.0
    )
    nodes = [fleet.start(name, config) for name in ("a", "b")]
    publishing = asyncio.create_task(fleet.publish(b'{"n":%d}' % number for number in range(MESSAGES)))
    await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > MESSAGES // 10)
    nodes[0].kill()
    await publishing
    await fleet.until_all_acked(MESSAGES)
    assert await fleet.stop(nodes[1]) == 0
    verdict = json.loads(await capture("verify", "--config", config, "--deep", "--json"))
    assert (verdict["stored"], verdict["missing"]) == (MESSAGES, 0), verdict
    await capture("sweep", "--config", config)
    await capture("compact", "--config", compacting)
    verdict = json.loads(await capture("verify", "--config", config, "--deep", "--json"))
    assert (verdict["stored"], verdict["missing"]) == (MESSAGES, 0), verdict
    assert "table/" in await capture("ls", "--config", config)
    assert len((await capture("cat", "--config", config, "--format", "raw")).split("}")) == MESSAGES + 1
    for engine in ("duckdb", "spark"):
        said = await capture(
            "sql", "SELECT count(*) AS n FROM messages", "--config", config, "--json", "--engine", engine
        )
        assert json.loads(said) == [{"n": MESSAGES}]
    assert fleet.stream in await capture("status", "--config", config, status=None)
    assert "does not replace an object" in await capture("doctor", "--config", config, status=None)
    said = await capture("catalog", "serve", "--config", config, "--plain-http", status=1)
    assert "no other engine can open the objects of sqlite_store:SqliteStore/archive" in said
    await capture("restore", "--config", config, "--as", f"{fleet.stream}-copy", "--detached")
    info = await fleet.natty.jetstream.request(f"STREAM.INFO.{fleet.stream}-copy")
    assert info["state"]["messages"] == MESSAGES


async def test_each_key_can_have_a_node_with_a_store_of_its_own(fleet, start_beside, module, tmp_path):
    paths = {
        key: fleet.configure(
            f"{key}.toml",
            filter_subjects=[f"{fleet.stream}.{key}"],
            durable=f"capture-{key}",
            archive=await vacated_archive(fleet.natty, f"{fleet.stream}-{key}"),
            store=f"sqlite_store:SqliteStore?file={tmp_path}/{key}.db",
            limits__max_age=0.3,
        )
        for key in ("eu", "us", "asia")
    }
    nodes = [start_beside(path) for path in paths.values()]
    await fleet.publish([b"{}"] * 30)
    async with asyncio.timeout(PATIENCE):
        while sum(one.node.stored["messages"] for one in nodes) < 30:
            await asyncio.sleep(0.05)
    for one in nodes:
        await one.stop()
    for key, path in paths.items():
        store = open_store(load(path).store)
        assert (await check(fleet.natty, load(path), store)).verdict.ok
        blocks = [one.path for one in await store.list("blocks/")]
        assert blocks
        assert all(f"/key={key}/" in one for one in blocks), blocks


async def test_a_users_store_can_choose_by_the_folder_that_the_layout_makes_of_the_key(
    fleet, start_beside, monkeypatch
):
    places = {key: MemoryStore(key) for key in ("", "eu", "us", "asia")}

    class ByKey:
        url = "by_key:ByKey"

        def of(self, path):
            return places[key] if path.startswith("blocks/") and (key := path.split("/")[1]) in places else places[""]

        async def put(self, path, data, *, if_absent=True):
            await self.of(path).put(path, data, if_absent=if_absent)

        async def get(self, path):
            return await self.of(path).get(path)

        async def get_range(self, path, start, length):
            return await self.of(path).get_range(path, start, length)

        async def list(self, prefix=""):
            found = [one for store in places.values() for one in await store.list(prefix)]
            return sorted(found, key=lambda one: one.path)

        async def delete(self, path):
            await self.of(path).delete(path)

        async def remove_leftovers(self, older_than_seconds, now):
            return 0

    module = ModuleType("by_key")
    module.ByKey = ByKey
    monkeypatch.setitem(sys.modules, "by_key", module)
    await check_store(ByKey())
    path = fleet.configure(store=ByKey.url, layout="dated", limits__max_age=0.3)
    node = start_beside(path)
    await fleet.publish([b"{}"] * 30)
    await fleet.until_all_acked(30)
    await node.stop()
    assert (await check(fleet.natty, load(path), open_store(ByKey.url))).verdict.ok
    for key, store in places.items():
        blocks = [one.path for one in await store.list() if one.path.startswith("blocks/")]
        assert all(one.startswith(f"blocks/{key}/") for one in blocks)
        assert bool(blocks) == bool(key), "the other objects of the archive are in one place"


@pytest.mark.parametrize(
    ("page", "configured", "end"), [("extending.md", False, ".msgpack"), ("capture-node.md", True, ".parquet")]
)
async def test_the_program_of_a_page_is_a_node(fleet, module, tmp_path, page, configured, end):
    write_module(module, "msgpack_blocks")
    url = f"sqlite_store:SqliteStore?file={tmp_path}/orders.db"
    store = open_store(url)
    config = fleet.configure(limits__max_age=0.3, store=url if configured else "")
    program = find_block("from capture import Node, load", page)
    for file in ("capture.toml", "orders.db"):
        program = program.replace(f'"{file}"', f'"{tmp_path}/{file}"')
    node = fleet.start("program", config, script=program)
    await fleet.until(lambda state: True)
    await fleet.publish([b"{}"] * 10)
    await fleet.until_all_acked(10)
    assert await fleet.stop(node) == 0, fleet.log("program").read_text()
    blocks = [one.path for one in await store.list("blocks/")]
    assert blocks
    assert all(path.endswith(end) for path in blocks), blocks


async def test_a_node_stores_all_when_a_users_store_was_cancelled_inside(fleet, caplog):
    class Cancelled(MemoryStore):
        cancelled = 0

        async def put(self, path, data, *, if_absent=True):
            if path.startswith("blocks/") and self.cancelled < 3:  # more often than one block is tried
                self.cancelled += 1
                raise asyncio.CancelledError
            await super().put(path, data, if_absent=if_absent)

    store = Cancelled("cancelled")
    settings = {"partition": "time", "limits__max_age": 0.2, "redeliver_after": [0.1], "store_attempts": 2}
    node = Node(load(fleet.configure(**settings)), store=store)
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish([b"{}"] * 3)
        await fleet.until_all_acked(3)
    finally:
        node.stop()
        await running
    assert store.cancelled == 3
    assert "failed in the store memory://cancelled: CancelledError" in caplog.text


async def test_no_log_and_no_record_holds_the_values_of_a_users_stores_settings(fleet, caplog, monkeypatch):
    module = ModuleType("vault")
    module.Vault = lambda password: MemoryStore("vault")
    monkeypatch.setitem(sys.modules, "vault", module)
    config = fleet.configure(
        store="vault:Vault?password=hunter2", partition="time", limits__max_age=0.2, sweep__every=0.5
    )
    Path(config).chmod(0o600)
    caplog.set_level(logging.DEBUG)
    node = Node(load(config))
    running = asyncio.create_task(node.run())
    board = Board(fleet.natty, node.config.name)
    try:
        await fleet.until(lambda state: True)
        await fleet.publish([b"{}"] * 3)
        async with asyncio.timeout(PATIENCE):
            while not (state := (await board.read()).state):
                await asyncio.sleep(0.05)
        said = await capture("status", "--config", config, "--json", status=None)
        kept = {key: (await fleet.natty.get(BUCKET, key)).value for key in await fleet.natty.keys(BUCKET)}
    finally:
        node.stop()
        await running
    assert state.store == "vault:Vault?password=***"
    assert "vault:Vault?password=***" in said
    assert kept
    assert b"hunter2" not in b"".join(kept.values())
    assert "hunter2" not in said
    assert "captures" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("url", ["no-such-module:Mine", "lake"])
async def test_a_store_given_to_a_node_as_an_object_is_used_and_says_that_it_can_not_be_compacted(fleet, caplog, url):
    store = MemoryStore()
    store.url = url
    node = Node(load(fleet.configure()), store=store)
    running = asyncio.create_task(node.run())
    try:
        await fleet.until(lambda state: True)
        await fleet.publish([b"{}"] * 10)
        await fleet.until_all_acked(10)
    finally:
        node.stop()
        await running
    assert sum(one.path.startswith("blocks/") for one in await store.list()) == 3, "a block for each key"
    assert "is not a candidate for the compaction: Spark's processes can't open its store" in caplog.text


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, "INFO"),
        ({"compaction": Compacting(every=60.0)}, "WARNING"),
        ({"table": TableSettings(fresh=2.0)}, "WARNING"),
    ],
    ids=["nothing configured", "a compaction", "a fresh table"],
)
async def test_a_node_without_spark_warns_only_if_a_compaction_is_configured(
    fleet, caplog, monkeypatch, settings, level
):
    monkeypatch.setattr("capture.node.node.unavailable", lambda options: "Spark is not installed here")
    caplog.set_level(logging.INFO)
    plain = {"compaction": Compacting(), "table": TableSettings()}
    node = Node(msgspec.structs.replace(load(fleet.configure()), **plain | settings))
    running = asyncio.create_task(node.run())
    try:
        async with asyncio.timeout(PATIENCE):
            while not (said := [one for one in caplog.records if getattr(one, "action", "") == "no_spark"]):
                await asyncio.sleep(0.02)
    finally:
        node.stop()
        await running
    assert [one.levelname for one in said] == [level]
