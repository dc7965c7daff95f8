"""Pipelines on a standalone cluster over TLS: workers of other folders, an object store, killed and repeated tasks."""

import asyncio
import io
import json
import os
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from derivations import messages, part
from followed import NAME, Followed
from patient import PATIENCE, PATIENT, until
from pipelines_on_cluster import digests, parent_of, stopping_url, write_modules
from spark_blocks import QUICK
from spark_cluster import EXECUTOR, command_line, spark_cluster  # noqa: F401
from stores import SECRET, seaweedfs  # noqa: F401

from capture.errors import PipelineError
from capture.pipelines.derivation import SMALL_BYTES, Derivation, Input
from capture.pipelines.sql import analyse
from capture.pipelines.upkeep import Upkeep
from capture.spark import SparkDriver, SparkOptions
from capture.stores import open_store
from natty import Natty
from natty.elections.guard import members

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

SCHEMA = "k STRING, v INT"
ABSENT = (
    "ModuleNotFoundError: No module named 'only_here': Spark's executors can't import it; put its folder into their"
    " PYTHONPATH, or the file into spark.submit.pyFiles"
)
HIDDEN = {
    "NATS_PASSWORD": "nats-do-not-show-me",
    "CAPTURE_SIGNING_KEYS": "signing-do-not-show-me",
    "CAPTURE_CATALOG_TOKEN": "catalog-do-not-show-me",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return write_modules(tmp_path_factory.mktemp("cluster-jobs"))


@pytest.fixture(scope="module")
def store_environment(seaweedfs):  # noqa: F811
    """The store's credentials, as drivers and executors find them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.environment.items():
            patch.setenv(name, value)
        yield seaweedfs


@pytest.fixture(scope="module")
def cluster(store_environment, spark_cluster, jobs):  # noqa: F811
    """The cluster; the node's own secrets and the user's modules are in the environment of the driver alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(jobs))
        for name, value in HIDDEN.items():
            patch.setenv(name, value)
        yield spark_cluster


def options_of(cluster, **more):
    properties = {**QUICK, "spark.master": cluster.master, "spark.python.worker.reuse": "true", **more}
    return SparkOptions(properties_file=str(cluster.properties_file), properties=properties, queries=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(cluster, jobs, tmp_path_factory):
    modules = {"spark.executorEnv.PYTHONPATH": str(jobs)}
    log = tmp_path_factory.mktemp("driver") / "driver.log"
    async with SparkDriver(options_of(cluster, **modules), log=log) as driver:
        yield driver


class Lake:
    """A pipeline's table in a store that this process and the executors open by its URL."""

    def __init__(self, driver, url, folder, sql="", **settings):
        self.driver, self.url, self.folder = driver, url, folder
        self.store = open_store(url)
        self.settings = {"sql": sql, "buckets": 3, **settings}
        self.blocks = url if url.startswith("s3:") else folder.as_uri()
        if sql:
            found = analyse(sql)
            facts = {"upkeep": found.upkeep, "merging": found.merging, "groups": found.groups}
            self.settings = {**facts, **self.settings}
        self.parts, self.files, self.columns, self.number = [], [], "", 0

    async def run(self, payloads):
        self.number += 1
        block = messages(self.folder, f"{self.number}", payloads)
        if self.blocks == self.url:
            await self.store.put(block.path, (self.folder / block.path).read_bytes())
        new = [part(block)]
        self.parts += new
        every = self.parts if self.settings["upkeep"] in (Upkeep.GROUPS, Upkeep.WHOLE) else []
        asked = Derivation(
            pipeline="p", store=self.url, folder=f"table/p/{self.number}/", number=self.number, files=self.files,
            inputs={"S": Input(store=self.blocks, new=new, all=every, payload_schema=SCHEMA)}, columns=self.columns,
            small_bytes=0, **self.settings,
        )  # fmt: skip
        done = await self.driver.derive(asked)
        self.files = [one for one in self.files if one.path not in done.gone] + done.came
        self.columns = done.columns
        return done

    async def read(self, files=None):
        rows = []
        for one in self.files if files is None else files:
            if not one.tombstones:
                rows += pq.read_table(io.BytesIO(await self.store.get(one.path))).to_pylist()
        return sorted((tuple(v for k, v in row.items() if not k.startswith("__")) for row in rows), key=repr)

    async def objects(self):
        return {one.path for one in await self.store.list("table/p/")}


STEPS = [
    {10 * step + at: {"k": key, "v": value} for at, (key, value) in enumerate(rows)}
    for step, rows in enumerate([[("a", 1), ("b", 2)], [("a", 3), ("c", -1)], [("b", 5), ("a", 3)]], 1)
]
UPKEEPS = {
    "append": ({"sql": "SELECT sequence, k FROM S"},
               [(10, "a"), (11, "b"), (20, "a"), (21, "c"), (30, "b"), (31, "a")]),
    "upsert": ({"sql": "SELECT k, v FROM S", "key": ["k"]}, [("a", 3), ("b", 5), ("c", -1)]),
    "merge": (
        {"sql": "SELECT k, sum(v) AS v, avg(v) AS a FROM S GROUP BY k", "key": ["k"]},
        [("a", 7, 7 / 3), ("b", 7, 3.5), ("c", -1, -1.0)],
    ),
    "groups": ({"sql": "SELECT k, count(DISTINCT v) AS n FROM S GROUP BY k", "key": ["k"]},
               [("a", 2), ("b", 2), ("c", 1)]),
    "whole": (
        {"sql": "SELECT k, rank() OVER (ORDER BY sequence) AS n FROM S", "key": ["k", "n"]},
        [("a", 1), ("a", 3), ("a", 6), ("b", 2), ("b", 5), ("c", 4)],
    ),
    "latest": ({"upkeep": Upkeep.ROWS, "latest": "k", "key": ["key"]}, [("a", 31), ("b", 30), ("c", 21)]),
    "python": ({"upkeep": Upkeep.ROWS, "python": "cluster_jobs:features"},
               [("a", 2), ("a", 6), ("a", 6), ("b", 10), ("b", 4), ("c", -2)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", UPKEEPS)
async def test_each_upkeep_keeps_its_table_in_an_object_store(driver, store_environment, tmp_path, kind):
    settings, expected = UPKEEPS[kind]
    table = Lake(driver, store_environment.url(), tmp_path, **settings)
    for payloads in STEPS:
        assert (await table.run(payloads)).rows_in == len(payloads)
    rows = await table.read()
    if kind == "latest":
        rows = [(row[0], next(one for one in row if type(one) is int)) for row in rows]
    assert rows == expected


@pytest.mark.parametrize("small_bytes", [0, SMALL_BYTES], ids=["by executors", "by the driver"])
async def test_a_pipeline_follows_its_stream(driver, nats_server, natty_name, tmp_path, monkeypatch, small_bytes):
    """Executors read the stream over mutual TLS, and hold each batch until it is computed."""
    monkeypatch.delenv("NATS_PASSWORD")  # Spark connects by a certificate
    name = natty_name("ORDERS")
    query = "SELECT k, sum(v) AS v, last(sequence) AS l FROM S GROUP BY k"
    table = Followed(driver, tmp_path, name, query, schema=SCHEMA, key=["k"])
    table.small_bytes = small_bytes
    async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
        await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)
        for number in range(1, 61):
            await natty.publish(f"{name}.{number % 3}", json.dumps({"k": "abc"[number % 3], "v": number}).encode())
    await table.follow(nats_server)
    await table.until(60)
    await driver.unfollow(NAME)
    assert [len(one) for one in table.batches] == [40, 20]
    assert [(row["k"], row["v"], row["l"]) for row in table.read()] == [("a", 630, 60), ("b", 590, 58), ("c", 610, 59)]


async def test_rows_are_quarantined_by_executors(driver, store_environment, tmp_path):
    condition = {"expect": ["v >= 0"], "on_violation": "quarantine"}
    table = Lake(driver, store_environment.url(), tmp_path, "SELECT k, v FROM S", **condition)
    done = await table.run(STEPS[1])
    assert await table.read() == [("a", 3)]
    assert await table.read(done.quarantined) == [("c", -1, "v >= 0")]
    assert done.violations == {"v >= 0": 1}


async def test_no_command_line_and_no_python_worker_has_a_secret_that_it_does_not_need(
    cluster, driver, store_environment, tmp_path
):
    table = Lake(driver, store_environment.url(), tmp_path, upkeep=Upkeep.ROWS, python="cluster_jobs:places")
    await table.run(STEPS[0])
    running = [*members(driver.session), *cluster.all_processes()]
    lines = b"\n".join(map(command_line, running))
    assert (lines.count(b"SparkSubmit"), lines.count(EXECUTOR)) == (1, 2)
    assert b"pyspark.daemon" in lines
    for secret in (cluster.secret, SECRET, *HIDDEN.values()):
        assert secret.encode() not in lines
    for _, (place, process, names), java in await table.read():
        assert Path(place).is_relative_to(cluster.folder)  # an executor's own folder
        assert int(process) not in members(driver.session)
        assert "AWS_SECRET_ACCESS_KEY" in names.split()
        assert not HIDDEN.keys() & set(names.split())
        assert java == "null"
    environments = [Path(f"/proc/{one}/environ").read_bytes() for one in members(driver.session)]
    assert environments
    assert not [one for one in environments for secret in HIDDEN.values() if secret.encode() in one]


@pytest.fixture
def gate(jobs, tmp_path, monkeypatch):
    """The file that names the task that the user's store has stopped, and the file that it had stored."""
    monkeypatch.syspath_prepend(jobs)
    return tmp_path / "gate"


async def stopped_task(gate):
    """Wait until a task has stored a file; return its Python worker and the file."""
    await until(lambda: gate.exists() and " " in gate.read_text(), within=3 * PATIENCE)
    worker, _, path = gate.read_text().partition(" ")
    return int(worker), path


async def check_one_of_each(table, done, stored):
    """The attempt that was stopped has left a file; the table has another one of the same unit, and each row once."""
    committed = {one.path: one.sha256 for one in done.came}
    objects = digests(table.folder / "lake")
    assert stored not in committed
    assert committed.items() < objects.items()
    assert objects[stored] in committed.values()  # the same rows once more
    assert len({one.unit.to_text() for one in done.came}) == len(done.came)
    assert await table.read() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("struck", ["executor", "worker"])
async def test_the_files_of_a_killed_task_are_not_in_the_table(cluster, driver, gate, tmp_path, struck):
    """The task is killed after it has stored a file, and before it reports: it runs once more, and writes another."""
    url = stopping_url(tmp_path / "lake", gate)
    table = Lake(driver, url, tmp_path, "SELECT k, v FROM S", key=["k"])
    running = asyncio.create_task(table.run(STEPS[0]))
    worker, stored = await stopped_task(gate)
    process = worker
    while struck == "executor" and EXECUTOR not in command_line(process):
        process = parent_of(process)
    assert process in cluster.all_processes()
    os.kill(process, signal.SIGKILL)
    await check_one_of_each(table, await running, stored)


async def test_of_a_task_that_runs_twice_at_once_one_counts_and_modules_come_with_the_driver(
    cluster, driver, jobs, gate, tmp_path
):
    await driver.kill()  # it has all cores
    cluster.worker("another-host", host="localhost")  # speculation wants another one
    await asyncio.to_thread(cluster.wait, lambda: "Successfully registered" in cluster.said("another-host"), "it is up")
    quick = {"enabled": "true", "interval": "100ms", "task.duration.threshold": "2s"}
    speculation = {f"spark.speculation{'.' + name if name != 'enabled' else ''}": one for name, one in quick.items()}
    files = {"spark.submit.pyFiles": f"{jobs / 'cluster_jobs.py'},{jobs / 'stopping_store.py'}"}
    async with SparkDriver(options_of(cluster, **speculation, **files), log=tmp_path / "log") as twice:
        table = Lake(twice, stopping_url(tmp_path / "lake", gate), tmp_path, "SELECT k, v FROM S", key=["k"])
        running = asyncio.create_task(table.run(STEPS[0]))
        _, stored = await stopped_task(gate)
        await check_one_of_each(table, await running, stored)
        table = Lake(twice, (tmp_path / "twice").as_uri(), tmp_path, upkeep=Upkeep.ROWS, python="cluster_jobs:features")
        await table.run(STEPS[0])
        assert await table.read() == [("a", 2), ("b", 4)]
        table.settings["python"] = "only_here:features"
        with pytest.raises(PipelineError, match=rf"^pipeline p: {ABSENT}$"):
            await table.run(STEPS[1])
