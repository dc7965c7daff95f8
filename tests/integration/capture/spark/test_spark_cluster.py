"""A standalone cluster with TLS everywhere: NATS to the executors, the executors among themselves and to the store."""

import asyncio
import signal
import sys

import pytest
import pytest_asyncio
from jetstream_on_cluster import filled, read_by_executors
from spark_blocks import QUICK, group, parquet_block, row, rows_of
from spark_cluster import command_line, spark_cluster  # noqa: F401
from stores import SECRET, seaweedfs  # noqa: F401

from capture.spark import SparkDriver, SparkOptions
from capture.stores import FileStore, open_store
from natty.elections.guard import members
from natty.testing import DevCA

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]


@pytest.fixture(scope="module")
def store_environment(seaweedfs):  # noqa: F811
    """The store's credentials in the environment, as drivers and executors find them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweedfs.environment.items():
            patch.setenv(name, value)
        yield seaweedfs


@pytest.fixture(scope="module")
def cluster(store_environment, spark_cluster):  # noqa: F811
    return spark_cluster


@pytest.fixture(scope="module")
def options(cluster):
    return SparkOptions(
        properties_file=str(cluster.properties_file), properties={**QUICK, "spark.master": cluster.master}
    )


def processes_of(cluster, session):
    return [*members(session), *cluster.all_processes()]


async def test_a_compaction_runs_on_the_cluster_and_no_command_line_tells_a_secret(
    cluster, options, store_environment, tmp_path
):
    store = open_store(store_environment.url())
    one = parquet_block(tmp_path, "one", [row(number) for number in range(300, 0, -1)])
    two = parquet_block(tmp_path, "two", [row(number) for number in range(200, 501)])
    for block in (one, two):
        await store.put(block.path, (tmp_path / block.path).read_bytes())
    async with SparkDriver(options, log=tmp_path / "driver.log") as driver:
        [merged] = await driver.merge(store.url, [group(one, two)], small_bytes=0)
        running = processes_of(cluster, driver.session)
        assert len(cluster.executors()) == 2
        assert b"SparkSubmit" in b"".join(map(command_line, running))
        told = [
            line for line in map(command_line, running) if cluster.secret.encode() in line or SECRET.encode() in line
        ]
        assert told == []
    assert (merged.rows_in, merged.duplicates) == (601, 101)
    [output] = merged.outputs
    await FileStore(tmp_path / "back").put(output.path, await store.get(output.path))
    assert rows_of(tmp_path / "back", output.path) == [row(number) for number in range(1, 501)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stream(nats_server):
    return await filled(nats_server, "CLUSTERED")


async def test_executors_read_a_stream_over_mutual_tls_and_end_with_a_driver_that_was_killed(
    cluster, options, stream, tmp_path
):
    async with read_by_executors(options, stream, tmp_path) as (driver, where):
        assert (where["master"], where["python"]) == (cluster.master, [sys.executable])
        assert len(cluster.executors()) == 2
        written = [path.read_bytes() for path in cluster.scratch.rglob("rdd_*")]
        assert written, "nothing was kept on disk"
        assert not any(b"CLUSTERED" in data for data in written), "it lies there in clear text"
        driver.send_signal(signal.SIGKILL)
        cluster.wait(lambda: not members(driver.pid) and not cluster.executors(), "JVM and executors have ended")


async def test_a_wrong_secret_and_a_foreign_certificate_are_refused(cluster):
    wrong = cluster.settings("wrong-secret", cluster.ca, "not-the-secret")
    foreign = cluster.settings("foreign", DevCA.create("another CA"), cluster.secret)
    cluster.worker("wrong", wrong)
    cluster.worker("stranger", foreign)
    await asyncio.to_thread(cluster.wait, lambda: "SaslException" in cluster.said("wrong"), "a wrong secret is refused")
    refused = ("PKIX", "CERTIFICATE_VERIFY_FAILED", "SSLHandshakeException")
    await asyncio.to_thread(
        cluster.wait, lambda: any(word in cluster.said("stranger") for word in refused), "a stranger is refused"
    )
    for name in ("wrong", "stranger"):
        assert "Successfully registered" not in cluster.said(name)
    assert cluster.said("master").count("Registering worker") == 2
