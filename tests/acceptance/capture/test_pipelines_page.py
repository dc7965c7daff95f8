"""The examples of docs/pipelines.md run as they are: on a real node with Spark, read as the page says."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from capture_chaos_nodes import environment
from patient import PATIENCE, PATIENT
from pipeline_nodes import write_config

from capture.config.load import load
from natty import Natty
from natty.testing import NatsServer
from natty.testing.spawner import spawn

pytestmark = [pytest.mark.spark]
PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def own_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


@pytest.fixture
def config(own_server, tmp_path):
    """The page's pipelines, every second, over two streams in one node."""
    store = str(tmp_path / "orders")
    path = write_config(
        tmp_path,
        "one",
        store,
        own_server.connect_options(),
        [],
        stream="",
        streams=["ORDERS", "KV_config"],
        partition="time",
    )
    with path.open("a") as file:
        for text in (one for one in blocks("toml") if "[[pipeline]]" in one):
            lines = [line for line in text.splitlines(keepends=True) if not line.startswith("schedule")]
            file.write("".join(lines).replace("[[pipeline]]\n", '[[pipeline]]\nschedule = "every 1s"\n'))
    return path


def capture(path, *words):
    command = [sys.executable, "-m", "capture", *words, "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment({})).stdout


async def test_the_examples_of_the_page_run_and_are_read_as_it_says(own_server, config, tmp_path):
    (tmp_path / "my_jobs.py").write_text(blocks("python")[0])
    surrounding = environment({}) | {"PYTHONPATH": str(tmp_path)}
    names = {one.name for one in load(config, pipelines=True).pipeline}
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        await natty.ensure_stream("ORDERS", subjects=["orders.>"])
        bucket = await natty.create_bucket("config")
        for number in range(40):
            order = {"country": ("DE", "FR")[number % 2], "total": number / 4}
            await natty.publish(f"orders.c{number % 3}", json.dumps(order).encode())
        await bucket.put("a", b"1")
        await bucket.put("b", b"2")
        await bucket.put("a", b"3")
        await bucket.delete("b")
    with (tmp_path / "one.log").open("ab") as output:
        node = spawn(
            [sys.executable, "-m", "capture", "--log-level", "info", "run", "--config", str(config)],
            output=output,
            folder=tmp_path,
            environ=surrounding,
        )
    try:
        async with asyncio.timeout(6 * PATIENCE):
            while True:
                await asyncio.sleep(1.0)
                try:
                    found = json.loads(await asyncio.to_thread(capture, config, "pipeline", "ls", "--json"))
                except subprocess.CalledProcessError:  # no archive yet
                    continue
                assert not [one["error"] for one in found if one["error"]]
                if {one["name"] for one in found if one["state"] == "current" and one["rows"]} == names:
                    break
        for line in "".join(blocks("sh")).splitlines():
            words = line.partition("#")[0].replace("--config capture.toml", "").split()[1:]
            assert await asyncio.to_thread(capture, config, *words)
    finally:
        node.terminate()
        assert await asyncio.to_thread(node.wait, 60) == 0
    rows = {one["name"]: one["rows"] for one in found}
    assert rows == {"daily_revenue": 2, "customers": 3, "revenue_now": 2, "config": 1, "features": 40}
    _, reading, polars_reading, _over_iceberg = (
        text.replace("file:///var/lib/orders", f"file://{tmp_path}/orders") for text in blocks("python")
    )
    scope = {}
    exec(reading, scope)
    revenue = scope["table"].scan().to_arrow()
    assert dict(zip(revenue["country"].to_pylist(), revenue["revenue"].to_pylist(), strict=True)) == {
        "DE": sum(number / 4 for number in range(0, 40, 2)),
        "FR": sum(number / 4 for number in range(1, 40, 2)),
    }
    exec(polars_reading, scope)
    shown = json.loads(capture(config, "pipeline", "show", "config", "--json"))
    assert shown["iceberg"]["location"] == f"file://{tmp_path}/orders/_pipelines/iceberg/config"
    assert shown["state"] == "current"
