"""Spark on a Kubernetes cluster: `make test-kubernetes`. Where there is none, nothing of this is collected.

KUBECONFIG names a cluster of one node, this machine; SPARK_KUBERNETES_IMAGE an image that it has, made as
examples/spark_kubernetes/Dockerfile says of what is tested.
"""

import asyncio
import json
import time
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
    jobs,  # noqa: F401
    look_from_workers,
    sent_modules,
    start_stopping,
)
from spark_blocks import QUICK
from spark_cluster import command_line
from spark_kubernetes import spark_on_kubernetes  # noqa: F401
from stores import SECRET, seaweedfs  # noqa: F401

from capture.errors import SparkError
from capture.formats import read_object
from capture.spark import SparkDriver, SparkOptions
from capture.stores import open_store
from natty import Natty
from natty.elections.guard import kill, members
from natty.testing import DevCA

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SMALL_BLOCKS = 60


@pytest.fixture(scope="module")
def cluster(spark_on_kubernetes, seaweedfs, natty_tls):  # noqa: F811
    """The namespace; its executors have the store's credentials, the certificates and the keys of encrypted blocks."""
    spark_on_kubernetes.mount("tls", Path(natty_tls.ca).parent)
    spark_on_kubernetes.give("store", seaweedfs.environment)
    spark_on_kubernetes.give("keys", {"CAPTURE_KEYS": KEY_LINE})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**seaweedfs.environment, "CAPTURE_KEYS": KEY_LINE}.items():
            patch.setenv(name, value)
        yield spark_on_kubernetes


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
        await until(lambda: len(cluster.running()) == 2)
        running = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline")]
        commands = [line for line in map(command_line, running) if b"org.apache.spark" in line]
        told = b"".join(commands).decode() + json.dumps(cluster.pods())
    assert sum(b"KubernetesExecutorBackend" in line for line in commands) == 2
    for secret in (cluster.secret, SECRET, KEY_LINE, "_SPARK_AUTH_SECRET", "PRIVATE KEY"):
        assert secret not in told
    assert (found.failed, found.rows_in, found.duplicates) == ("", wanted.rows_in, wanted.duplicates)
    [ours], [theirs] = found.outputs, wanted.outputs
    assert (ours.count, ours.sequences, ours.format) == (theirs.count, theirs.sequences, theirs.format)
    assert await rows_of(store, ours) == await rows_of(store, theirs)
    cluster.wait(lambda: not cluster.pods(), "no pod is left")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stream(nats_server):
    return await filled(nats_server, "PODS")


async def test_executors_read_a_stream_over_mutual_tls_and_end_with_a_driver_that_was_killed(
    cluster, options, stream, tmp_path
):
    async with read_by_executors(options, stream, tmp_path) as (driver, _):
        left = cluster.running()
        assert left
        kill(driver.pid)  # its JVM as well: that would delete its pods
        driver.kill()
        began = time.monotonic()
        cluster.wait(lambda: not members(driver.pid) and not cluster.running(), "JVM and executors have ended")
        print(f"executors ended {time.monotonic() - began:.1f} s after their driver was killed")
    assert cluster.kept() >= set(left)
    async with SparkDriver(options) as successor:
        await successor.ping()
        assert not cluster.kept() & set(left)


async def test_an_executor_that_is_deleted_is_replaced_and_the_run_ends_right(cluster, options, store, tmp_path):
    groups = [group([await block(store, range(10 * n + 1, 10 * n + 11))]) for n in range(SMALL_BLOCKS)]
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        await driver.ping()
        first = cluster.running()
        merging = asyncio.create_task(driver.merge(store.url, groups, small_bytes=0))
        while not await store.list("table/"):
            await asyncio.sleep(0.05)
        cluster.delete(first[0])
        assert not merging.done()
        merged = await merging
        assert [one.failed for one in merged] == [""] * SMALL_BLOCKS
        assert [len(await rows_of(store, one.outputs[0])) for one in merged] == [10] * SMALL_BLOCKS
        cluster.wait(lambda: set(cluster.running()) - set(first), "another has come")


@pytest.mark.asyncio(loop_scope="function")  # its proxy's
async def test_executors_end_when_leadership_is_lost(cluster, options, natty_proxy, natty_name, tmp_path):
    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.5}) as natty:
        elected = asyncio.Event()

        async def work(term):
            async with SparkDriver(options, log=tmp_path / "log", run=term.run_process) as driver:
                await driver.ping()
                elected.set()
                await asyncio.Event().wait()

        leading = asyncio.create_task(natty.election(natty_name("job"), lease=15.0).run(work))
        async with asyncio.timeout(3 * PATIENCE):
            await elected.wait()
        assert cluster.running()
        natty_proxy.half_open()
        cluster.wait(lambda: not cluster.running(), "the executors have ended")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


@pytest.mark.parametrize(
    ("name", "unlike", "refusal"),
    [
        ("secret", {"executors_secret": "not-the-secret"}, "SaslException"),
        ("foreign", {"executors_ca": DevCA.create("another CA")}, "OpenSslHandshakeException"),
    ],
)
async def test_an_executor_with_another_secret_or_a_foreign_certificate_is_refused(
    cluster, name, unlike, refusal, tmp_path
):
    options = SparkOptions(properties_file=cluster.settings(name, **unlike), properties=QUICK)
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        with pytest.raises(SparkError, match="all executors have failed"):
            await driver.ping()
    assert refusal in (tmp_path / "log").read_text()


async def test_an_image_that_is_not_there_is_told_with_what_kubernetes_says_of_it(cluster):
    image = {"spark.kubernetes.container.image": "registry.invalid/none:1"}
    few = {"spark.kubernetes.allocation.executor.timeout": "10s"}
    options = SparkOptions(properties_file=cluster.settings("no-image", **image, **few), properties=QUICK)
    async with SparkDriver(options) as driver:
        with pytest.raises(SparkError, match=r"no executor registered within 10 s: .*(ErrImagePull|ImagePullBackOff)"):
            await driver.ping()
    cluster.wait(lambda: not cluster.pods(), "no pod is left")


# Pipelines are last: their driver keeps its executors until the end.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipelines(cluster, jobs, tmp_path_factory):  # noqa: F811
    """A driver of pipelines; executors find the user's modules in their PYTHONPATH, mounted from a secret."""
    modules = {"spark.kubernetes.executor.secrets.jobs": str(jobs), "spark.executorEnv.PYTHONPATH": str(jobs)}
    cluster.keep("jobs", jobs)
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


async def test_no_command_line_no_pod_and_no_python_worker_shows_a_secret_that_it_does_not_need(
    cluster, pipelines, url, tmp_path
):
    for _, _, names in await look_from_workers(pipelines, url, tmp_path):
        assert "SPARK_EXECUTOR_POD_NAME" in names  # it is in a pod
    running = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline")]
    lines = b"\n".join(map(command_line, running))
    assert b"KubernetesExecutorBackend" in lines
    assert b"pyspark.daemon" in lines
    shown = lines + json.dumps(cluster.pods()).encode()
    check_no_secret_shown([cluster.secret, SECRET, KEY_LINE, "PRIVATE KEY"], members(pipelines.session), shown)


async def test_the_files_of_a_task_whose_pod_is_deleted_are_not_in_the_table(cluster, pipelines, url, tmp_path):
    """The pod is deleted after its task has stored a file, and before it reports: another one runs the task."""
    table, running, pod, stored = await start_stopping(pipelines, url, tmp_path)
    assert pod in cluster.running()
    cluster.delete(pod)
    await check_one_of_each(table, running, stored)


async def test_modules_come_with_the_driver(cluster, jobs, url, tmp_path):  # noqa: F811
    options = pipeline_options(cluster.settings("sent", **sent_modules(jobs)))
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        await check_sent_modules(driver, url, tmp_path)
