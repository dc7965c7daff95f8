"""A pipeline's function: what it is given, what it may return, and what its faults are reported as."""

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio
from derivations import Table, messages
from patient import PATIENCE, until
from spark_blocks import quick_driver
from spark_processes import read_of_each

from capture.errors import PipelineError, SparkError
from capture.pipelines.upkeep import Upkeep
from capture.spark.driver import OOM_SCORE
from natty.elections.guard import members

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

JOBS = """
import os
import resource
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from capture import PipelineRun
from pyspark.sql import functions as F


def features(spark, inputs, run: PipelineRun):
    rows = inputs["S"].select("k", (F.col("v") * 2).alias("doubled"))
    every = 0 if run.everything else run.all("S").count()
    return rows.withColumn("run", F.lit(f"{run.pipeline} {run.number} {run.everything} {every}"))


def environment(spark, inputs, run):
    java = spark.sparkContext._jvm.java.lang.System.getenv().keySet().toArray()
    here = [(name, "driver") for name in os.environ] + [(str(name), "java") for name in java]
    return spark.createDataFrame(here, "name STRING, place STRING")


def with_order(spark, inputs, run):
    return inputs["S"].select("k", "v", "__sequence")


def nothing(spark, inputs, run):
    return [1]


def fails(spark, inputs, run):
    names = {"a": 1}
    return names["missing"]


def leaves(spark, inputs, run):
    sys.exit("no more")


def unresolved(spark, inputs, run):
    return inputs["S"].select("no_such_column")


def fails_later(spark, inputs, run):
    @F.udf("int")
    def divide(value):
        return 1 // (value - value)

    return inputs["S"].select("k", divide("v").alias("v"))


def unknown(spark, inputs, run):
    return run.all("T")


def reads(spark, inputs, run):
    import subprocess

    said = sys.stdin.read() + os.read(0, 1000).decode() + subprocess.check_output(["cat"]).decode()
    return spark.createDataFrame([(said,)], "said STRING")


def stops(spark, inputs, run):
    spark.stop()


def eats_memory(spark, inputs, run):
    with limited_memory():
        return bytearray(1 << 40)


def eats_memory_later(spark, inputs, run):
    @F.udf("int")
    def eat(value):
        with limited_memory():
            return len(bytearray(1 << 40))

    return inputs["S"].select("k", eat("v").alias("v"))


def is_killed_later(spark, inputs, run):
    @F.udf("int")
    def end(value):
        os.kill(os.getpid(), signal.SIGKILL)

    return inputs["S"].select("k", end("v").alias("v"))


def is_killed(spark, inputs, run):
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def limited_memory():
    # as if the machine had no more
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def hangs(spark, inputs, run):
    Path(run.pipeline).touch()
    time.sleep(3600)
"""


@pytest.fixture(scope="module", autouse=True)
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "pipeline_jobs.py").write_text(JOBS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.path.relpath(folder))  # a relative path is one of the parent's
        for name in ("NATS_PASSWORD", "NATS_CREDS", "CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN", "GITHUB_TOKEN"):
            patch.setenv(name, "do-not-show-me")
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(jobs, tmp_path_factory):
    async with quick_driver(tmp_path_factory.mktemp("spark")) as driver:
        yield driver


def table_of(driver, store, function, **settings):
    settings = {"upkeep": Upkeep.ROWS, "schema": "k STRING, v INT", **settings}
    return Table(driver, store, python=f"pipeline_jobs:{function}", **settings)


def bodies(first, **values):
    return {first + at: {"k": key, "v": value} for at, (key, value) in enumerate(values.items())}


async def test_a_function_is_given_new_rows_and_may_ask_for_all(driver, store):
    table, one, two = (
        table_of(driver, store, "features"),
        messages(store, "1", bodies(1, a=1, b=2)),
        messages(store, "2", bodies(3, c=3)),
    )
    await table.run([one], [one])
    await table.run([two], [one, two])
    assert [(row["k"], row["doubled"], row["run"]) for row in table.read()] == [
        ("a", 2, "p 1 False 2"),
        ("b", 4, "p 1 False 2"),
        ("c", 6, "p 2 False 3"),
    ]
    whole = table_of(driver, store, "features", upkeep=Upkeep.WHOLE, key=["k"])
    await whole.run([two], [one, two])
    assert [row["run"] for row in whole.read()] == ["p 1 True 0"] * 3


async def test_rows_of_a_later_run_replace_others_unless_they_have_an_order_of_their_own(driver, store):
    early, late = messages(store, "late", bodies(10, a=10)), messages(store, "early", bodies(1, a=1))
    for function, kept in (("features", 2), ("with_order", 10)):
        table = table_of(driver, store, function, key=["k"])
        await table.run([early], [early])
        await table.run([late], [early, late])
        assert [row.get("doubled", row.get("v")) for row in table.read()] == [kept]


async def test_a_function_that_reads_standard_input_finds_it_empty_and_takes_no_request(driver, store):
    table = table_of(driver, store, "reads")
    done = [table.run([messages(store, "1", bodies(1, a=1))]), driver.ping()]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*done)
    assert table.read() == [{"said": ""}]


async def test_a_function_has_no_credential_in_its_environment(driver, store):
    table = table_of(driver, store, "environment")
    await table.run([messages(store, "1", bodies(1, a=1))])
    seen = {place: {row["name"] for row in table.read() if row["place"] == place} for place in ("driver", "java")}
    secrets = {"NATS_PASSWORD", "NATS_CREDS", "CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN", "GITHUB_TOKEN"}
    for names in seen.values():
        assert "PYTHONPATH" in names
        assert not names & secrets


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", r"pipeline_jobs:nothing returned list, not a DataFrame"),
        ("fails", r"pipeline_jobs:fails failed: KeyError: 'missing' \(pipeline_jobs.py, line 36\)"),
        ("leaves", r"pipeline_jobs:leaves failed: SystemExit: no more \(pipeline_jobs.py, line 40\)"),
        ("unresolved", r"pipeline_jobs:unresolved failed: .*`no_such_column` cannot be resolved.* line 44\)"),
        ("fails_later", r"ZeroDivisionError: integer division or modulo by zero \(pipeline_jobs.py, line 50\)"),
        ("eats_memory", r"pipeline_jobs:eats_memory failed: MemoryError"),
        ("eats_memory_later", r"MemoryError"),
        ("is_killed_later", r"a Python worker of Spark has ended: it was killed, or had no memory left"),
        ("features", r"it asks for all rows of an input, and this run has only the new ones"),
        ("unknown", r"it has no input 'T': they are S"),
        ("absent", r"the function 'pipeline_jobs:absent' can't be loaded: AttributeError"),
    ],
)
async def test_a_fault_of_the_function_is_one_sentence(driver, store, function, said):
    with pytest.raises(PipelineError, match=rf"^pipeline p: [^\n]*{said}[^\n]*$"):
        await table_of(driver, store, function).run([messages(store, "1", bodies(1, a=1))])
    assert (await driver.ping()).spark


async def test_a_function_that_stops_the_session_ends_the_child_and_the_next_run_starts_anew(driver, store):
    with pytest.raises(SparkError, match="driver has ended"):
        await table_of(driver, store, "stops").run([messages(store, "1", bodies(1, a=1))])
    await table_of(driver, store, "with_order").run([messages(store, "2", bodies(1, a=1))])


async def test_the_kernel_kills_sparks_processes_before_the_node(driver, store):
    await table_of(driver, store, "with_order").run([messages(store, "1", bodies(1, a=1))], small_bytes=0)
    scores = list(map(int, read_of_each(driver.session, "oom_score_adj").values()))
    assert len(scores) >= 3  # driver, JVM, Python workers
    assert set(scores) == {OOM_SCORE}
    assert int(Path("/proc/self/oom_score_adj").read_text()) < OOM_SCORE


async def test_a_driver_that_the_kernel_kills_ends_the_run_and_the_next_one_starts_anew(driver, store):
    with pytest.raises(SparkError, match="driver has ended"):
        await table_of(driver, store, "is_killed").run([messages(store, "1", bodies(1, a=1))])
    await table_of(driver, store, "with_order").run([messages(store, "2", bodies(1, a=1))])


async def test_a_run_that_is_cancelled_leaves_no_process(driver, store, tmp_path):
    await driver.ping()
    session, begun = driver.session, tmp_path / "begun"
    table = table_of(driver, store, "hangs", name=str(begun))
    running = asyncio.create_task(table.run([messages(store, "1", bodies(1, a=1))]))
    await until(begun.exists, within=PATIENCE)
    assert members(session)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert members(session) == []
    assert driver.session is None
