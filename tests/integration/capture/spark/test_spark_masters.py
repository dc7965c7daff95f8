"""Clusters that can't be had here: a properties file reaches Spark's own submission, and what that says is told."""

import pytest
from kube_refusing import refusing_api_server
from spark_blocks import QUICK

from capture.errors import SparkError
from capture.spark import SparkDriver, SparkOptions
from natty.testing import DevCA

YARNS_PATIENCE = (
    "yarn.resourcemanager.connect.max-wait.ms",
    "yarn.resourcemanager.connect.retry-interval.ms",
    "ipc.client.connect.max.retries",
)

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def cluster(tmp_path):
    """Return a function that starts Spark on Kubernetes by a properties file, and what it must raise then."""
    files = DevCA.create("cluster").write(tmp_path / "tls")
    (tmp_path / "token").write_text("a-token")

    async def start(url, ca=files.ca):
        settings = {
            "spark.master": f"k8s://{url}",
            "spark.kubernetes.namespace": "lake",
            "spark.kubernetes.container.image": "registry.example.com/capture:1",
            "spark.kubernetes.authenticate.caCertFile": ca,
            "spark.kubernetes.authenticate.oauthTokenFile": tmp_path / "token",
        }
        conf = tmp_path / "spark.conf"
        conf.touch(mode=0o600)
        conf.write_text("".join(f"{name}   {value}\n" for name, value in settings.items()))
        options = SparkOptions(properties_file=str(conf), properties=QUICK, class_data=False)
        async with SparkDriver(options, log=tmp_path / "log") as driver:
            with pytest.raises(SparkError) as raised:
                await driver.ping()
        return str(raised.value)

    start.files = files
    return start


async def test_kubernetes_is_asked_over_tls_as_the_properties_file_says_and_its_refusal_is_told(cluster):
    with refusing_api_server(cluster.files) as (url, asked):
        said = await cluster(url)
    paths = {path.partition("?")[0] for _, path, _, _ in asked}
    assert paths == {"/api/v1/namespaces/lake/pods"}
    assert "GET" in {method for method, _, _, _ in asked}  # we look for ended pods, and Spark makes its own meanwhile
    assert {authorization for _, _, authorization, _ in asked} == {"Bearer a-token"}
    assert said.startswith(f"Spark did not start with k8s://{url}: ")
    assert "/namespaces/lake/pods" in said
    assert "Forbidden" in said
    assert "\n" not in said


async def test_an_api_server_that_is_not_there_is_told_in_one_sentence(cluster):
    said = await cluster("https://127.0.0.1:9")
    assert said == "https://127.0.0.1:9 can't be reached: Connection refused"


async def test_a_yarn_that_is_not_there_is_looked_for_where_its_settings_say_and_told_in_one_sentence(
    tmp_path, monkeypatch
):
    (tmp_path / "yarn-site.xml").write_text(
        "<configuration><property><name>yarn.resourcemanager.address</name><value>127.0.0.1:9</value></property>"
        "</configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # a machine's name need not be known to it
    soon = {f"spark.hadoop.{name}": "1" for name in YARNS_PATIENCE}
    options = SparkOptions(master="yarn", properties=QUICK | soon, class_data=False)
    async with SparkDriver(options, log=tmp_path / "log") as driver:
        with pytest.raises(SparkError) as raised:
            await driver.ping()
    said = str(raised.value)
    assert said.startswith("Spark did not start with yarn: ")
    assert ":9 failed on connection exception" in said
    assert "Connection refused" in said
    assert "\n" not in said
