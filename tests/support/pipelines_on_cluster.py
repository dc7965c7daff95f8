"""Pipelines on a cluster: a user's code, tables in an object store, and what each cluster's tests check of them."""

import asyncio
import hashlib
import io
import json
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest
from derivations import Table, messages, part
from followed import NAME, Followed
from patient import PATIENCE, PATIENT
from spark_cluster import EXECUTOR, command_line

from capture.errors import PipelineError
from capture.pipelines.upkeep import Upkeep
from capture.stores import open_store
from natty import Natty

SCHEMA = "k STRING, v INT"
GATE = "gate"
HIDDEN = {
    "NATS_PASSWORD": "nats-do-not-show-me",
    "CAPTURE_SIGNING_KEYS": "signing-do-not-show-me",
    "CAPTURE_CATALOG_TOKEN": "catalog-do-not-show-me",
}
"""A node's own secrets, which Spark's processes do not get."""
ABSENT = (
    "ModuleNotFoundError: No module named 'only_here': Spark's executors can't import it; put its folder into their"
    " PYTHONPATH, or the file into spark.submit.pyFiles"
)

JOBS = '''
import os

from pyspark.sql import functions as F


def double(value):
    return value * 2


def plain(spark, inputs, run):
    return inputs["S"].select("k", "v")


def features(spark, inputs, run):
    """Uses what this module has in the executors: by its name, not by value."""
    twice = F.udf(double, "int")
    return inputs["S"].select("k", twice("v").alias("v"))


def places(spark, inputs, run):
    """Return what each row's Python worker is: its folder, its parent, and the names of its variables."""
    @F.udf("array<string>")
    def look(value):
        return [os.getcwd(), str(os.getpid()), " ".join(sorted(os.environ))]

    java = "java_method('java.lang.System', 'getenv', concat('NATS_PASSWORD', substr(k, 1, 0)))"
    return inputs["S"].select("k", look("v").alias("seen"), F.expr(java).alias("java"))
'''

ELSEWHERE = """
from pyspark.sql import functions as F


def double(value):
    return value * 2


def plain(spark, inputs, run):
    return inputs["S"].select("k", "v")


def features(spark, inputs, run):
    return inputs["S"].select("k", F.udf(double, "int")("v").alias("v"))
"""

STORE = f'''
import asyncio
import os

from capture.errors import AlreadyStoredError
from capture.stores import open_store


class Stopping:
    """Keeps the first task that has stored a file of a table from reporting it. An object says where, and the file."""

    def __init__(self, store):
        self.store, self.url = store, store.url

    def __getattr__(self, name):
        return getattr(self.store, name)

    async def put(self, path, data, *, if_absent=True):
        await self.store.put(path, data, if_absent=if_absent)
        where = os.environ.get("SPARK_EXECUTOR_POD_NAME") or os.getpid()
        try:
            await self.store.put("{GATE}", f"{{where}} {{path}}".encode())
        except AlreadyStoredError:
            return
        await asyncio.sleep(3600)


def make(url):
    return Stopping(open_store(url))
'''

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


def write_modules(folder):
    """Write the modules `cluster_jobs`, `only_here` and `stopping_store` into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster_jobs.py").write_text(JOBS)
    (folder / "stopping_store.py").write_text(STORE)
    (folder / "only_here.py").write_text(ELSEWHERE)
    return folder


class Lake(Table):
    """A pipeline's table in an object store, as its blocks; executors compute each run.

    With `stops`, the store of the table keeps one task from reporting what it has stored.
    """

    small_bytes = 0

    def __init__(self, driver, url, folder, sql="", *, stops=False, **settings):
        super().__init__(driver, folder, sql, schema=SCHEMA, **settings)
        self.blocks, self.tables = url, f"stopping_store:make?url={quote(url, safe='')}" if stops else url
        self.bucket, self.seen = open_store(url), []

    async def add(self, payloads):
        """Run it with a block of new messages."""
        block = messages(self.store, f"{self.number}", payloads)
        await self.bucket.put(block.path, (self.store / block.path).read_bytes(), if_absent=False)
        self.seen.append(part(block))
        return await self.run([block], self.seen if self.upkeep in (Upkeep.GROUPS, Upkeep.WHOLE) else [])

    async def rows(self, files=None):
        """Return the rows that readers see, sorted."""
        return await rows_in(self.bucket, self.files if files is None else files)


async def rows_in(store, files):
    """Return the rows of these files that readers see, sorted."""
    rows = []
    for one in files:
        if not one.tombstones:
            rows += pq.read_table(io.BytesIO(await store.get(one.path))).to_pylist()
    return sorted((tuple(v for k, v in row.items() if not k.startswith("__")) for row in rows), key=repr)


async def check_upkeep(driver, url, folder, kind):
    """Each of the runs adds its messages to the table, which has the rows of all at the end."""
    settings, expected = UPKEEPS[kind]
    table = Lake(driver, url, folder, **settings)
    for payloads in STEPS:
        assert (await table.add(payloads)).rows_in == len(payloads)
    rows = await table.rows()
    if kind == "latest":
        rows = [(row[0], next(one for one in row if type(one) is int)) for row in rows]
    assert rows == expected


async def check_following(driver, server, stream, url, folder, *, small_bytes=0):
    """Executors read a stream over mutual TLS, and hold each batch until it is computed."""
    query = "SELECT k, sum(v) AS v, last(sequence) AS l FROM S GROUP BY k"
    table = Followed(driver, folder, stream, query, schema=SCHEMA, key=["k"])
    table.blocks = table.tables = url
    table.small_bytes = small_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NATS_PASSWORD", raising=False)  # Spark connects by a certificate
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await natty.create_stream(stream, subjects=[f"{stream}.>"], allow_direct=True)
            for number in range(1, 61):
                body = json.dumps({"k": "abc"[number % 3], "v": number})
                await natty.publish(f"{stream}.{number % 3}", body.encode())
        await table.follow(server)
    await table.until(60)
    await driver.unfollow(NAME)
    assert [len(one) for one in table.batches] == [40, 20]
    assert await rows_in(open_store(url), table.files) == [("a", 630, 60), ("b", 590, 58), ("c", 610, 59)]


async def check_quarantine(driver, url, folder):
    """A row that does not meet a condition is in another table."""
    table = Lake(driver, url, folder, "SELECT k, v FROM S", expect=["v >= 0"], on_violation="quarantine")
    done = await table.add(STEPS[1])
    assert await table.rows() == [("a", 3)]
    assert await table.rows(done.quarantined) == [("c", -1, "v >= 0")]
    assert done.violations == {"v >= 0": 1}


async def look_from_workers(driver, url, folder):
    """Return, for each row, the folder and the id of its Python worker, and the names of the worker's variables.

    Neither the workers nor their JVM have a secret of the node.
    """
    table = Lake(driver, url, folder, upkeep=Upkeep.ROWS, python="cluster_jobs:places")
    await table.add(STEPS[0])
    found = []
    for _, (place, process, names), java in await table.rows():
        assert java == "null"
        assert "AWS_SECRET_ACCESS_KEY" in names.split()
        assert not HIDDEN.keys() & set(names.split())
        found.append((Path(place), int(process), set(names.split())))
    return found


async def start_stopping(driver, url, folder):
    """Start a run whose first task that has stored a file stops. Return table, run, the task's place, and the file.

    The place is a pod, or the id of a Python worker.
    """
    table = Lake(driver, url, folder, "SELECT k, v FROM S", stops=True, key=["k"])
    running = asyncio.create_task(table.add(STEPS[0]))
    async with asyncio.timeout(3 * PATIENCE):
        while not await table.bucket.list(GATE):
            assert not running.done(), running.exception()
            await asyncio.sleep(0.05)
    where, _, stored = (await table.bucket.get(GATE)).decode().partition(" ")
    return table, running, where, stored


async def check_one_of_each(table, running, stored):
    """The attempt that was stopped has left a file; the table has another one of the same unit, and each row once."""
    done = await running
    committed = {one.path: one.sha256 for one in done.came}
    names = [one.path for one in await table.bucket.list("table/")]
    objects = {name: hashlib.sha256(await table.bucket.get(name)).hexdigest() for name in names}
    assert stored not in committed
    assert committed.items() < objects.items()
    assert objects[stored] in committed.values()  # the same rows once more
    assert len({one.unit.to_text() for one in done.came}) == len(done.came)
    assert await table.rows() == [("a", 1), ("b", 2)]


async def import_in_driver(driver, url, folder):
    """Have the driver import the user's modules, without executors: it does not look for their files again."""
    for number, module in enumerate(("cluster_jobs", "only_here")):
        table = Lake(driver, url, folder, upkeep=Upkeep.ROWS, python=f"{module}:plain", name=f"plain{number}")
        await table.add(STEPS[0])
        assert await table.rows() == [("a", 1), ("b", 2)]


async def check_sent_modules(driver, url, folder):
    """Executors import the modules that the driver sends them, and no others: the error says what to do."""
    table = Lake(driver, url, folder, upkeep=Upkeep.ROWS, python="cluster_jobs:features")
    await table.add(STEPS[0])
    assert await table.rows() == [("a", 2), ("b", 4)]
    table.settings["python"] = "only_here:features"
    with pytest.raises(PipelineError, match=rf"^pipeline p: {ABSENT}$"):
        await table.add(STEPS[1])


def parent_of(process):
    """Return the id of a process's parent; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def executor_of(worker):
    """Return the id of the executor that started a Python worker."""
    while EXECUTOR not in command_line(worker):
        worker = parent_of(worker)
        assert worker
    return worker


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The folder of the user's modules, which the driver imports; a node's own secrets are in the environment."""
    folder = write_modules(tmp_path_factory.mktemp("cluster-jobs"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        for name, value in HIDDEN.items():
            patch.setenv(name, value)
        yield folder


def check_no_secret_shown(secrets, session, shown):
    """No command line has a secret, nor has the environment of the driver's processes one of the node's."""
    for secret in (*secrets, *HIDDEN.values()):
        assert secret.encode() not in shown
    environments = [Path(f"/proc/{one}/environ").read_bytes() for one in session]
    assert environments
    assert not [one for one in environments for secret in HIDDEN.values() if secret.encode() in one]


def sent_modules(jobs):
    """Return the setting that has Spark send modules to executors, but not `only_here`."""
    return {"spark.submit.pyFiles": f"{jobs / 'cluster_jobs.py'},{jobs / 'stopping_store.py'}"}
