"""Spark on a YARN cluster: `make test-yarn`. Where there is none, nothing of this is collected.

HADOOP_CONF_DIR names a cluster of one node, this machine, and JAVA_HOME the Java of its containers.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import pytest_asyncio
from jetstream_on_cluster import filled, read_by_executors
from merging import KEY_LINE, KEYS, block, every_format, group
from patient import PATIENCE, PATIENT, until
from pipelines_on_cluster import (
    UPKEEPS,
    check_following,
    check_no_secret_shown,
    check_one_of_each,
    check_quarantine,
    check_sent_modules,
    check_upkeep,
    executor_of,
    import_in_driver,
    jobs,  # noqa: F401
    look_from_workers,
    sent_modules,
    start_stopping,
    write_modules,
)
from spark_blocks import QUICK
from spark_cluster import command_line
from spark_yarn import ROOT, spark_on_yarn  # noqa: F401
from stores import SECRET, seaweedfs  # noqa: F401

from capture.errors import SparkError
from capture.formats import read_object
from capture.spark import SparkDriver, SparkOptions
from capture.stores import open_store
from natty import Natty
from natty.elections.guard import kill, members

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SMALL_BLOCKS = 60


@pytest.fixture(scope="module")
def cluster(spark_on_yarn, seaweedfs):  # noqa: F811
    """The cluster; its executors have the store's credentials and the keys of encrypted blocks."""
    secrets = {**seaweedfs.environment, "CAPTURE_KEYS": KEY_LINE}
    spark_on_yarn.give(secrets)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in secrets.items():
            patch.setenv(name, value)
        yield spark_on_yarn


@pytest.fixture(scope="module")
def options(cluster):
    return SparkOptions(properties_file=cluster.settings("spark"), properties=QUICK)


@pytest.fixture
def store(seaweedfs):  # noqa: F811
    return open_store(seaweedfs.url())


async def rows_of(store, output):
    return read_object(await store.get(output.path), output, KEYS).to_pylist()


async def test_blocks_of_every_format_become_what_they_become_on_one_machine_and_no_secret_is_told(
    cluster, options, store, tmp_path
):
    inputs = await every_format(store)
    async with SparkDriver(SparkOptions(properties=QUICK)) as local:
        [wanted] = await local.merge(store.url, [group(inputs, ending=".enc")], small_bytes=0)
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        [found] = await driver.merge(store.url, [group(inputs, ending=".enc")], small_bytes=0)
        await until(lambda: len(cluster.executors()) == 2)
        told = b"".join(command_line(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline"))
        for secret in (SECRET, KEY_LINE, "PRIVATE KEY"):
            assert secret.encode() not in told
    assert (found.failed, found.rows_in, found.duplicates) == ("", wanted.rows_in, wanted.duplicates)
    [ours], [theirs] = found.outputs, wanted.outputs
    assert (ours.count, ours.sequences, ours.format) == (theirs.count, theirs.sequences, theirs.format)
    assert await rows_of(store, ours) == await rows_of(store, theirs)
    cluster.wait(lambda: not cluster.executors(), "the executors have ended")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stream(nats_server):
    return await filled(nats_server, "CONTAINERS")


async def test_executors_read_a_stream_over_mutual_tls_and_end_with_a_driver_that_was_killed(
    cluster, options, stream, tmp_path
):
    async with read_by_executors(options, stream, tmp_path) as (driver, where):
        assert where["master"] == "yarn"
        assert cluster.executors()
        kill(driver.pid)  # its JVM as well
        driver.kill()
        cluster.wait(lambda: not members(driver.pid) and not cluster.executors(), "JVM and executors have ended")


async def test_an_executor_that_is_killed_is_replaced_and_the_run_ends_right(cluster, options, store, tmp_path):
    groups = [group([await block(store, range(10 * n + 1, 10 * n + 11))]) for n in range(SMALL_BLOCKS)]
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        merging = asyncio.create_task(driver.merge(store.url, groups, small_bytes=0))
        while not await store.list("table/"):
            await asyncio.sleep(0.05)
        first = cluster.executors()
        os.kill(first[0], signal.SIGKILL)
        assert not merging.done()
        merged = await merging
        assert [one.failed for one in merged] == [""] * SMALL_BLOCKS
        assert [len(await rows_of(store, one.outputs[0])) for one in merged] == [10] * SMALL_BLOCKS
        cluster.wait(lambda: set(cluster.executors()) - set(first), "another has come")


@pytest.mark.asyncio(loop_scope="function")  # its proxy's
async def test_executors_end_when_leadership_is_lost(cluster, options, natty_proxy, natty_name, tmp_path):
    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.5}) as natty:
        elected = asyncio.Event()

        async def work(term):
            async with SparkDriver(options, log=tmp_path / "log", run=term.run_process) as driver:
                await driver.ping()
                await until(cluster.executors)
                elected.set()
                await asyncio.Event().wait()

        leading = asyncio.create_task(natty.election(natty_name("job"), lease=15.0).run(work))
        async with asyncio.timeout(3 * PATIENCE):
            await elected.wait()
        natty_proxy.half_open()
        cluster.wait(lambda: not cluster.executors(), "the executors have ended")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


async def test_containers_that_cannot_start_are_told_in_one_sentence(cluster):
    settings = cluster.settings("no-java", **{"spark.yarn.appMasterEnv.JAVA_HOME": "/nowhere"})
    async with SparkDriver(SparkOptions(properties_file=settings, properties=QUICK)) as driver:
        with pytest.raises(SparkError) as raised:
            await driver.ping()
    said = str(raised.value)
    print(said)
    assert said.startswith("Spark did not start with yarn: ")
    assert "\n" not in said


async def test_executors_that_cannot_start_are_told_as_well(cluster):
    settings = cluster.settings("no-java-for-executors", **{"spark.executorEnv.JAVA_HOME": "/nowhere"})
    async with SparkDriver(SparkOptions(properties_file=settings, properties=QUICK)) as driver:
        with pytest.raises(SparkError, match=r"^Spark did not start with yarn: all executors have failed; "):
            await driver.ping()


# Pipelines are last: their driver keeps its executors until the end.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipelines(cluster, jobs, tmp_path_factory):  # noqa: F811
    """A driver of pipelines; executors find the user's modules in their PYTHONPATH."""
    modules = {"spark.executorEnv.PYTHONPATH": f"{ROOT}{os.pathsep}{jobs}"}
    options = pipeline_options(cluster.settings("pipelines", **modules))
    async with SparkDriver(options, log=tmp_path_factory.mktemp("pipelines") / "log") as driver:
        yield driver


def pipeline_options(settings):
    return SparkOptions(properties_file=settings, properties=QUICK, queries=True)


@pytest.fixture
def url(seaweedfs):  # noqa: F811
    return seaweedfs.url()


@pytest.mark.parametrize("kind", UPKEEPS)
async def test_each_upkeep_of_a_pipeline_keeps_its_table_in_an_object_store(pipelines, url, tmp_path, kind):
    await check_upkeep(pipelines, url, tmp_path, kind)


async def test_a_pipeline_follows_its_stream(pipelines, nats_server, natty_name, url, tmp_path):
    await check_following(pipelines, nats_server, natty_name("ORDERS"), url, tmp_path)


async def test_rows_are_quarantined_by_executors(pipelines, url, tmp_path):
    await check_quarantine(pipelines, url, tmp_path)


async def test_no_command_line_and_no_python_worker_has_a_secret_that_it_does_not_need(
    cluster, pipelines, url, tmp_path
):
    for place, process, _ in await look_from_workers(pipelines, url, tmp_path):
        assert place.name.startswith("container_")  # an executor's own folder
        assert executor_of(process) in cluster.executors()
    lines = b"\n".join(command_line(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert b"pyspark.daemon" in lines
    check_no_secret_shown([SECRET, KEY_LINE, "PRIVATE KEY"], members(pipelines.session), lines)


@pytest.mark.parametrize("struck", ["executor", "worker"])
async def test_the_files_of_a_killed_task_are_not_in_the_table(cluster, pipelines, url, tmp_path, struck):
    """The task is killed after it has stored a file, and before it reports: it runs once more, and writes another."""
    table, running, worker, stored = await start_stopping(pipelines, url, tmp_path)
    process = executor_of(int(worker)) if struck == "executor" else int(worker)
    assert executor_of(int(worker)) in cluster.executors()
    os.kill(process, signal.SIGKILL)
    await check_one_of_each(table, running, stored)


async def test_modules_come_with_the_driver(cluster, url, tmp_path, monkeypatch):
    """YARN gives executors the driver's PYTHONPATH; so its folder is moved, as if nodes did not have it."""
    modules = write_modules(tmp_path / "modules")
    monkeypatch.setenv("PYTHONPATH", str(modules))
    options = pipeline_options(cluster.settings("sent", **sent_modules(modules)))
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        await import_in_driver(driver, url, tmp_path)
        modules.rename(tmp_path / "away")
        await check_sent_modules(driver, url, tmp_path)
