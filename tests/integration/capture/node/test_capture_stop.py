"""How a node starts, goes on, changes and stops: real processes, real signals, a real server."""

import asyncio
import json
import logging
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
from listening import listening
from patient import NEVER, PATIENCE, until
from probes import ask, until_ready

from capture.archive.manifest import ENTRIES, decode_entry
from capture.config.load import load
from capture.ingest.board import Board
from capture.node.node import Node
from capture.stores import open_store
from capture.verification.check import check
from natty.testing import free_ports

ROOT = Path(__file__).parents[4]

MINE = """
import json
from pathlib import Path

TOLD = Path(__file__).with_name("told")

def by_key(partition):
    return f"mine/{partition.folder}/{partition.dated}"

def told(completion):
    with TOLD.open("a") as file:
        fields = {name: getattr(completion, name) for name in completion.__dataclass_fields__}
        file.write(json.dumps(fields | {"error": completion.error and str(completion.error)}) + "\\n")
    raise RuntimeError("a fault of the hook")
"""

LOADS = """
import sys, time
from capture.cli import main

class Slow:
    def find_spec(self, *_):
        print("loading", flush=True)
        time.sleep(60)

sys.meta_path.insert(0, Slow())
sys.argv[1:] = ["run", "--config", sys.argv[1]]
main()
"""

RUNS = """
import sys, threading
from pathlib import Path
import capture.cli.node, capture.ingest.source, natty.wire.connection, natty.pulling.pull
from capture.cli import main
from capture.errors import StoreError
from capture.stores import FileStore

config, node, fault, *options = sys.argv[1:]
capture.ingest.source.END_TIMEOUT = natty.wire.connection.CLOSE_TIMEOUT = 60.0  # to hand back
natty.pulling.pull.DRAIN_TIMEOUT = 60.0
capture.cli.node.THREADS_END_WITHIN = 0.5
store = FileStore._put

def put(self, path, data, if_absent):
    if fault == "hangs" and path.startswith("blocks/"):
        print("the store hangs", flush=True)
        threading.Event().wait()
    if fault and path.startswith("blocks/") and Path(fault).exists():
        raise StoreError("the store is away")
    store(self, path, data, if_absent)

FileStore._put = put
sys.argv = ["capture", "run", "--config", config, "--node-name", node, *options]
main()
"""

FEW_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n" + RUNS


def start(fleet, node, config, fault="", *options, script=RUNS):
    return fleet.start(node, config, script=script, arguments=[node, fault, *options])


def order(number):
    return json.dumps({"n": number}).encode()


def orders(count):
    return [order(number) for number in range(count)]


def logged(fleet, action):
    """The whole JSON lines of this action that node-1 has logged."""
    lines = fleet.log("node-1").read_text().splitlines(keepends=True)
    return [one for one in map(json.loads, (line for line in lines if line[-1] == "\n")) if one.get("action") == action]


async def verified(fleet, config, count):
    verdict = await check(fleet.natty, load(config), open_store(str(fleet.store)), deep=True)
    assert verdict.ok
    assert verdict.as_dict()["stored"] == count


async def handed_over(fleet, count, **settings):
    """Another node gets everything."""
    config = fleet.configure("next.toml", **settings)
    node = Node(load(config))
    run = asyncio.create_task(node.run())
    await fleet.until_all_acked(count)
    node.stop()
    await run
    await verified(fleet, config, count)


@pytest.mark.long
async def test_a_node_lays_out_tells_and_sums_up_as_its_configuration_says(fleet, monkeypatch):
    (fleet.folder / "mine.py").write_text(MINE)
    monkeypatch.setenv("PYTHONPATH", f"{fleet.folder}{os.pathsep}{ROOT}")
    config = fleet.configure(
        layout="mine:by_key", on_store_complete="mine:told", limits__max_age=0.3,
        logging__format="json", logging__summary_every=0.2,
    )  # fmt: skip
    node = fleet.start("node-1", config)
    await fleet.publish(orders(60))
    await fleet.until_all_acked(60)
    await until(lambda: sum(one.get("messages", 0) for one in logged(fleet, "summary")) == 60)
    assert await fleet.stop(node) == 0

    told = [json.loads(line) for line in (fleet.folder / "told").read_text().splitlines()]
    assert sum(one["count"] for one in told) == 60
    for one in told:
        object_ = fleet.store / one["path"]
        assert (one["stream"], one["bytes"], one["error"]) == (fleet.stream, object_.stat().st_size, None)
        assert one["path"].startswith(f"blocks/mine/{one['key']}/20")
        assert object_.name.startswith(f"{fleet.stream}-{one['first']}-{one['last']}-{one['count']}-")
    assert len(logged(fleet, "hook_failed")) == len(told)
    store = open_store(str(fleet.store))
    entries = [decode_entry(await store.get(one.path), one.path) for one in await store.list(ENTRIES)]
    assert {one.path for one in entries} <= {one["path"] for one in told}
    await verified(fleet, config, 60)


@pytest.mark.long
async def test_a_node_whose_store_is_away_goes_on_and_stores_everything_when_it_is_back(fleet):
    away, (port,) = fleet.folder / "away", free_ports(1)
    away.touch()
    config = fleet.configure(limits__max_age=0.3, ack_wait=NEVER, store_attempts=1, redeliver_after=[0.1, 0.2])
    node = start(fleet, "node-1", config, str(away), "--metrics", f"127.0.0.1:{port}")
    await fleet.publish(orders(60))
    await fleet.said("node-1", "could not be stored in file:")  # once, and then counted
    figures, failures = {}, f'capture_failures_total{{stream="{fleet.stream}"}}'
    async with asyncio.timeout(PATIENCE):
        while float(figures.get(failures, 0)) < 6:  # every key's block twice, and more
            await asyncio.sleep(0.1)
            page = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).read())
            figures = dict(line.rsplit(" ", 1) for line in page.decode().splitlines() if line.startswith("capture_"))
    assert (await fleet.consumer())["ack_floor"]["stream_seq"] == 0
    assert float(figures[f'capture_handed_back_total{{stream="{fleet.stream}"}}']) >= 120
    assert node.poll() is None
    away.unlink()
    await fleet.until_all_acked(60)  # far below ack_wait
    assert await fleet.stop(node) == 0
    await verified(fleet, config, 60)


@pytest.mark.long
async def test_a_node_that_can_not_store_is_not_ready_has_a_trouble_and_ends_with_status_1(fleet):
    away, (port,) = fleet.folder / "away", free_ports(1)
    away.touch()
    often = {"limits__max_age": 0.3, "sweep__every": 0.3, "store_attempts": 1, "redeliver_after": [NEVER]}
    node = start(fleet, "node-1", fleet.configure(**often), str(away), "--metrics", f"127.0.0.1:{port}")
    await fleet.publish(orders(50), token=lambda number: "eu")
    await fleet.said("node-1", "could not be stored in file:")
    board = Board(fleet.natty, fleet.stream)
    async with asyncio.timeout(PATIENCE):
        while "the store is away" not in str([one.node.troubles for one in (await board.read()).nodes]):
            await asyncio.sleep(0.1)
    status, reasons = await ask(port)
    assert status == 503
    assert "the store is away" in " ".join(reasons)
    away.unlink()
    await fleet.publish(orders(10), token=lambda number: "eu")
    await fleet.until(lambda state: (state["delivered"]["stream_seq"], state["num_ack_pending"]) == (60, 50))
    await until_ready(port)
    assert await fleet.stop(node) == 1
    said = [line for line in fleet.log("node-1").read_text().splitlines() if line.startswith("capture: ")]
    assert said == [
        "capture: 50 of the messages that were read could not be stored: none of these was acknowledged, they were"
        " handed back and will be delivered again"
    ]


@pytest.mark.long
async def test_messages_that_another_node_has_stored_do_not_count_in_the_exit_status(fleet):
    (away := fleet.folder / "away").touch()
    config = fleet.configure(limits__max_age=0.2, store_attempts=1, redeliver_after=[0.1])
    failing = start(fleet, "node-1", config, str(away))
    await fleet.publish(orders(30), token=lambda number: "eu")
    await fleet.said("node-1", "could not be stored in file:")
    other = start(fleet, "node-2", config)
    await fleet.until_all_acked(30)
    assert await fleet.stop(failing) == 0
    assert await fleet.stop(other) == 0
    await verified(fleet, config, 30)


@pytest.mark.long
async def test_silent_clients_of_the_metrics_page_take_no_file_descriptor_that_capture_needs(fleet):
    (port,) = free_ports(1)
    config = fleet.configure(limits__max_age=0.3)
    node = start(fleet, "node-1", config, "", "--metrics", f"127.0.0.1:{port}", script=FEW_DESCRIPTORS)
    await fleet.publish(orders(30))
    await fleet.until_all_acked(30)
    with ExitStack() as silent:
        for _ in range(300):
            client = silent.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        await fleet.said("node-1", "connections to the pages: further clients wait")
        await fleet.publish(orders(30))
        await fleet.until_all_acked(60)
    answer = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/livez", timeout=PATIENCE).status)
    assert answer == 200
    assert await fleet.stop(node) == 0
    assert "Too many open files" not in fleet.log("node-1").read_text()
    await verified(fleet, config, 60)


async def test_what_is_not_stored_by_the_drain_deadline_is_handed_back_and_the_exit_status_says_so(fleet):
    config = fleet.configure(limits__max_messages=20, limits__max_age=NEVER, ack_wait=2 * NEVER, drain=0.5)
    node = start(fleet, "node-1", config, "hangs")
    await fleet.publish(orders(70), token=lambda number: "eu")
    await fleet.said("node-1", "the store hangs", 3)
    assert await fleet.stop(node) == 1  # though three threads hang for ever
    said = [line for line in fleet.log("node-1").read_text().splitlines() if line.startswith("capture: ")]
    assert said == [
        "capture: 70 of the messages that were read could not be stored within the 0.5 s that a stop may take: none of"
        " these was acknowledged, they were handed back and will be delivered again"
    ]
    await handed_over(fleet, 70, ack_wait=2 * NEVER)


async def test_a_second_signal_ends_a_node_at_once(fleet):
    config = fleet.configure(limits__max_age=0.2, drain=NEVER, logging__level="info")
    node = start(fleet, "node-1", config, "hangs")
    await fleet.publish(orders(30))
    await fleet.said("node-1", "the store hangs")
    node.send_signal(signal.SIGINT)
    await fleet.said("node-1", "node-1 stops within 3600 s")
    node.send_signal(signal.SIGTERM)
    assert await fleet.ended(node) == -signal.SIGTERM
    assert (await fleet.consumer())["ack_floor"]["stream_seq"] == 0


async def test_a_node_that_waits_for_the_server_when_it_is_told_to_stop_ends_well(fleet, natty):
    natty.connection.subscribe("NEVER.API.>", lambda messages: None)
    node = fleet.start("node-1", fleet.configure(nats__api_prefix="NEVER.API", nats__timeout=0.5))
    await fleet.said("node-1", "not ready to capture yet, waiting: no answer on NEVER.API.")
    assert await fleet.stop(node) == 0
    assert "node-1 stopped: 0 messages in 0 blocks" in fleet.log("node-1").read_text()


async def test_a_node_that_is_connecting_when_it_is_told_to_stop_ends_well(fleet, caplog):
    caplog.set_level(logging.INFO)
    connected = asyncio.Event()

    async def say_nothing(reader, writer):
        connected.set()
        await reader.read()

    async with listening(say_nothing) as port:
        node = Node(load(fleet.configure(nats__servers=[f"tls://127.0.0.1:{port}"], nats__connect_timeout=10 * NEVER)))
        run = asyncio.create_task(node.run())
        async with asyncio.timeout(PATIENCE):
            await connected.wait()
            node.stop()
            await run
    assert "stopped: 0 messages in 0 blocks" in caplog.text


async def test_a_node_that_is_loading_its_parts_when_it_is_told_to_stop_ends_well(fleet):
    process = fleet.start("node-1", fleet.configure(), script=LOADS)
    await fleet.said("node-1", "loading")
    assert await fleet.stop(process) == 0


async def test_a_node_that_is_told_to_stop_at_any_moment_of_its_start_ends_well(fleet):
    config = load(fleet.configure())
    await fleet.publish(orders(30))
    for moment in range(8):
        node = Node(config)
        run = asyncio.create_task(node.run())
        await asyncio.sleep(moment / 50)  # 0 to 0.14 s: it connects, claims, becomes a candidate, captures
        node.stop()
        async with asyncio.timeout(PATIENCE):
            await run
    await handed_over(fleet, 30)


async def test_a_hangup_changes_what_may_change_names_what_may_not_and_survives_a_bad_file(fleet):
    never = {"ack_wait": 2 * NEVER, "limits__max_age": NEVER, "logging__level": "info"}
    node = start(fleet, "node-1", config := fleet.configure(**never))
    await fleet.publish(orders(10), token=lambda number: "eu")
    await fleet.until(lambda state: state["num_ack_pending"] == 10)
    fleet.configure(**never, limits__max_messages=1, durable="other", logging__loggers__capture="debug")
    node.send_signal(signal.SIGHUP)
    await fleet.until_all_acked(10)  # what was open is sealed
    await fleet.said("node-1", "node-1 needs a restart to change durable")
    assert "node-1 reloaded: limits.max_messages = 1, " in fleet.log("node-1").read_text()
    await fleet.publish(orders(5), token=lambda number: "eu")
    await fleet.until_all_acked(15)
    await fleet.said("node-1", "DEBUG   capture.commit: stored blocks/")

    settings = config.read_text()
    assert "[nats]" in settings
    config.write_text(settings.replace("[nats]", "[nats]\ntls = 5"))
    node.send_signal(signal.SIGHUP)
    await fleet.said("node-1", "nothing was reloaded, the old configuration stays: the connection's settings: ")
    assert "needs a restart to change nats" not in fleet.log("node-1").read_text()

    config.write_text('stream = "S\n')
    node.send_signal(signal.SIGHUP)
    await fleet.said("node-1", f"nothing was reloaded, the old configuration stays: {config} is not valid TOML")
    await fleet.publish(orders(5), token=lambda number: "eu")
    await fleet.until_all_acked(20)
    assert await fleet.stop(node) == 0
    await verified(fleet, fleet.configure(), 20)
