"""Pipelines on a standalone cluster over TLS: workers of other folders, an object store, killed and repeated tasks."""

import asyncio
import os
import signal

import pytest
import pytest_asyncio
from pipelines_on_cluster import (
    UPKEEPS,
    check_following,
    check_no_secret_shown,
    check_one_of_each,
    check_quarantine,
    check_sent_modules,
    check_upkeep,
    executor_of,
    jobs,  # noqa: F401
    look_from_workers,
    sent_modules,
    start_stopping,
)
from spark_blocks import QUICK
from spark_cluster import EXECUTOR, command_line, spark_cluster  # noqa: F401
from stores import SECRET, seaweedfs  # noqa: F401

from capture.pipelines.derivation import SMALL_BYTES
from capture.spark import SparkDriver, SparkOptions
from natty.elections.guard import members

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]


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
    return spark_cluster


@pytest.fixture
def url(store_environment):
    return store_environment.url()


def options_of(cluster, **more):
    properties = {**QUICK, "spark.master": cluster.master, "spark.python.worker.reuse": "true", **more}
    return SparkOptions(properties_file=str(cluster.properties_file), properties=properties, queries=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver(cluster, jobs, tmp_path_factory):  # noqa: F811
    modules = {"spark.executorEnv.PYTHONPATH": str(jobs)}
    log = tmp_path_factory.mktemp("driver") / "driver.log"
    async with SparkDriver(options_of(cluster, **modules), log=log) as driver:
        yield driver


@pytest.mark.parametrize("kind", UPKEEPS)
async def test_each_upkeep_keeps_its_table_in_an_object_store(driver, url, tmp_path, kind):
    await check_upkeep(driver, url, tmp_path, kind)


@pytest.mark.parametrize("small_bytes", [0, SMALL_BYTES], ids=["by executors", "by the driver"])
async def test_a_pipeline_follows_its_stream(driver, nats_server, natty_name, url, tmp_path, small_bytes):
    await check_following(driver, nats_server, natty_name("ORDERS"), url, tmp_path, small_bytes=small_bytes)


async def test_rows_are_quarantined_by_executors(driver, url, tmp_path):
    await check_quarantine(driver, url, tmp_path)


async def test_no_command_line_and_no_python_worker_has_a_secret_that_it_does_not_need(cluster, driver, url, tmp_path):
    ours = members(driver.session)
    for place, process, _ in await look_from_workers(driver, url, tmp_path):
        assert place.is_relative_to(cluster.folder)  # an executor's own folder
        assert process not in ours
    lines = b"\n".join(map(command_line, [*members(driver.session), *cluster.all_processes()]))
    assert (lines.count(b"SparkSubmit"), lines.count(EXECUTOR)) == (1, 2)
    assert b"pyspark.daemon" in lines
    check_no_secret_shown([cluster.secret, SECRET], members(driver.session), lines)


@pytest.mark.parametrize("struck", ["executor", "worker"])
async def test_the_files_of_a_killed_task_are_not_in_the_table(cluster, driver, url, tmp_path, struck):
    """The task is killed after it has stored a file, and before it reports: it runs once more, and writes another."""
    table, running, worker, stored = await start_stopping(driver, url, tmp_path)
    process = executor_of(int(worker)) if struck == "executor" else int(worker)
    assert process in cluster.all_processes()
    os.kill(process, signal.SIGKILL)
    await check_one_of_each(table, running, stored)


async def test_of_a_task_that_runs_twice_at_once_one_counts_and_modules_come_with_the_driver(
    cluster,
    driver,
    jobs,  # noqa: F811
    url,
    tmp_path,
):
    await driver.kill()  # it has all cores
    cluster.worker("another-host", host="localhost")  # speculation wants another one
    await asyncio.to_thread(cluster.wait, lambda: "Successfully registered" in cluster.said("another-host"), "it is up")
    quick = {"enabled": "true", "interval": "100ms", "task.duration.threshold": "2s"}
    speculation = {f"spark.speculation{'.' + name if name != 'enabled' else ''}": one for name, one in quick.items()}
    options = options_of(cluster, **speculation, **sent_modules(jobs))
    async with SparkDriver(options, log=tmp_path / "log") as twice:
        table, running, _, stored = await start_stopping(twice, url, tmp_path)
        await check_one_of_each(table, running, stored)
        await check_sent_modules(twice, url, tmp_path)
