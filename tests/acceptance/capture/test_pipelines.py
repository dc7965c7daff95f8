"""Pipelines end to end: real nodes over TLS, real Spark, leaders killed with SIGKILL."""

import asyncio
import re
import signal
import sys

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


def read_tables(store, names=("revenue", "large")):
    """Return the rows of each table as pyiceberg reads them, sorted, once the metadata name them."""
    return {name: sorted(tuple(row.values()) for row in read_rows(store, name)) for name in names}


async def prove(natty, folder, last):
    """Prove by `capture verify --pipeline` that the tables have the messages up to `last`, and that all is sound."""
    config = load(folder / "one.toml", {}, environment={}, pipelines=True)
    for name in ("revenue", "large"):
        found = await check_pipeline(natty, config, name)
        assert (found.status, found.problems) == (0, ()), found.sentences()
        assert found.inputs[0].held == Sequences.from_range(1, last)


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

    def start(name, pipelines=(REVENUE, LARGE), **more):
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
            one.kill()
            one.wait()


async def test_two_tables_are_kept_and_read_by_other_engines(natty, run_node, tmp_path):
    store = str(tmp_path / "archive")
    await natty.ensure_stream(STREAM, subjects=["orders.>"])
    await publish(natty, 1, 300)
    node = run_node("one")
    await until_progress(store, ["revenue", "large"], 300)
    assert read_tables(store) == expected(300)
    await publish(natty, 301, 500)
    document = await until_progress(store, ["revenue", "large"], 500)
    assert read_tables(store) == expected(500)
    await prove(natty, tmp_path, 500)
    assert [one.error for table in document.tables.values() for one in table.runs] == [""] * sum(
        len(table.runs) for table in document.tables.values()
    )
    node.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(node.wait, 60) == 0


async def ask(tmp_path, *arguments, status=0):
    """Run `capture pipeline` as a process in a pipe, and return what it prints."""
    command = [sys.executable, "-m", "capture", "pipeline", *arguments, "--config", str(tmp_path / "one.toml")]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environment({}), cwd=tmp_path
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == status, said
    assert "Traceback" not in said
    return said


async def test_operators_pause_run_resume_and_make_a_table_again(natty, run_node, tmp_path):
    store = str(tmp_path / "archive")
    await natty.ensure_stream(STREAM, subjects=["orders.>"])
    await publish(natty, 1, 100)
    run_node("one")
    await until_progress(store, ["revenue", "large"], 100)
    assert await ask(tmp_path, "pause", "revenue") == "revenue is paused\n"
    await publish(natty, 101, 200)
    await until_progress(store, ["large"], 200)
    assert read_tables(store) == {"revenue": expected(100)["revenue"], "large": expected(200)["large"]}
    said = await ask(tmp_path, "run", "revenue")
    assert re.fullmatch(r"revenue: run \d+ of \S+ took \S+, read 100 rows and wrote 12 rows\n", said), said
    assert read_tables(store) == expected(200)
    assert await ask(tmp_path, "run", "revenue") == "revenue: nothing is new, its table has all that there is\n"
    assert await ask(tmp_path, "resume", "revenue") == "revenue is resumed\n"
    await publish(natty, 201, 250)
    await until_progress(store, ["revenue", "large"], 250)
    assert "read 250 rows" in await ask(tmp_path, "rerun", "large")
    assert read_tables(store) == expected(250)
    assert "'revenu'" in await ask(tmp_path, "run", "revenu", status=1)


async def test_leaders_that_are_killed_leave_what_one_clean_run_would(natty, run_node, tmp_path):
    store = str(tmp_path / "archive")
    await natty.ensure_stream(STREAM, subjects=["orders.>"])
    nodes = {name: run_node(name) for name in ("one", "two")}
    await publish(natty, 1, 150)
    await until_progress(store, ["revenue", "large"], 150)
    last = 150
    for folder in ("table", "iceberg", "_pipeline"):  # written in this order, before the commit
        known = set(tmp_path.glob(f"archive/_pipelines/{folder}/**/*"))
        leader = await leader_of(natty)
        await publish(natty, last + 1, last + 150)
        last += 150
        async with asyncio.timeout(4 * PATIENCE):
            while not set(tmp_path.glob(f"archive/_pipelines/{folder}/**/*")) - known:
                await asyncio.sleep(0.005)
        nodes[leader].kill()
        nodes[leader].wait()
        nodes[leader] = run_node(leader)
    await until_progress(store, ["revenue", "large"], last)
    assert read_tables(store) == expected(last)
    document = await read_document(store)
    await prove(natty, tmp_path, last)
    assert len({one.token for table in document.tables.values() for one in table.runs}) > 1
