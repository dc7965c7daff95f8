"""What a JVM is started with: on this machine nothing is to leave it, on a cluster its executors must reach it."""

from pathlib import Path

import msgspec
import pytest

from capture.config.load import load
from capture.errors import SparkError
from capture.spark import gateway
from capture.spark.java import Java
from capture.spark.options import SparkOptions, check_master
from capture.spark.session import _properties

JAVA = Java(Path("/java"), 17, "a test")
LOCAL, CLUSTER = {"spark.master": "local[2]"}, {"spark.master": "spark://a:7077"}


def test_a_local_session_listens_on_loopback_and_keeps_its_files_in_its_folder(tmp_path):
    places = gateway._places(tmp_path, LOCAL)
    assert places["spark.driver.bindAddress"] == gateway.LOOPBACK
    assert places["spark.local.dir"] == str(tmp_path)
    assert gateway._environment(tmp_path, "python", LOCAL)["SPARK_LOCAL_IP"] == gateway.LOOPBACK


def test_the_executors_of_a_cluster_can_reach_the_driver(tmp_path, monkeypatch):
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    places = gateway._places(tmp_path, CLUSTER)
    assert "spark.driver.host" not in places
    assert "spark.local.dir" not in places
    assert "SPARK_LOCAL_IP" not in gateway._environment(tmp_path, "python", CLUSTER)
    assert not gateway._is_local(CLUSTER)


def test_on_yarn_spark_neither_waits_for_executors_itself_nor_long_for_a_manager_that_does_not_answer(tmp_path):
    places = gateway._places(tmp_path, {"spark.master": "yarn"})
    assert places["spark.scheduler.minRegisteredResourcesRatio"] == "0"
    assert int(places["spark.hadoop.yarn.resourcemanager.connect.max-wait.ms"]) <= 60_000
    assert "spark.driver.host" not in places


def test_what_the_jvm_starts_by_itself_runs_our_python(tmp_path):
    assert gateway._environment(tmp_path, "/our/python", LOCAL)["PYSPARK_PYTHON"] == "/our/python"


def test_no_setting_stands_on_the_command_line(tmp_path):
    line = gateway.command(JAVA, memory="1g", properties_file=tmp_path / "properties")
    assert line[-3:] == ["--properties-file", str(tmp_path / "properties"), "pyspark-shell"]
    assert not [word for word in line if "--conf" in word or "incubator" in word]


def test_classes_stand_before_sparks_own_and_hadoops_settings_behind_them():
    folders = {"HADOOP_CONF_DIR": "/etc/hadoop", "YARN_CONF_DIR": "/etc/yarn"}
    ours = {"spark.driver.extraClassPath": "/opt/a.jar:/opt/b/*"}
    assert gateway.class_path({}, {}) == [gateway.JARS]
    assert gateway.class_path(ours, folders) == ["/opt/a.jar:/opt/b/*", gateway.JARS, "/etc/hadoop", "/etc/yarn"]
    line = gateway.command(JAVA, memory="1g", properties_file=Path("p"), class_path=gateway.class_path({}, folders))
    assert line[line.index("-cp") + 1] == f"{gateway.JARS}:/etc/hadoop:/etc/yarn"


def test_native_libraries_are_looked_for_where_the_settings_say_first(tmp_path, monkeypatch):
    monkeypatch.setattr(gateway, "LIBRARIES", "LIBRARIES")
    monkeypatch.setenv("LIBRARIES", "/before")
    where = {"spark.driver.extraLibraryPath": "/opt/native"}
    assert gateway._environment(tmp_path, "python", LOCAL | where)["LIBRARIES"] == "/opt/native:/before"
    assert gateway._environment(tmp_path, "python", LOCAL)["LIBRARIES"] == "/before"
    monkeypatch.delenv("LIBRARIES")
    assert gateway._environment(tmp_path, "python", LOCAL | where)["LIBRARIES"] == "/opt/native"


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text("spark.master spark://a:7077\nspark.authenticate.secret s3cret\nspark.app.name theirs\n")
    file.chmod(0o600)
    return file


def test_settings_of_a_file_win_over_ours_and_those_of_the_configuration_over_both(file):
    options = SparkOptions(properties_file=str(file), properties={"spark.app.name": "mine"})
    properties = _properties(options)
    assert properties["spark.master"] == "spark://a:7077"
    assert properties["spark.authenticate.secret"] == "s3cret"
    assert properties["spark.app.name"] == "mine"
    file.write_text("spark.driver.memory 3g\n")
    assert _properties(options)["spark.driver.memory"] == "3g"
    assert _properties(SparkOptions())["spark.master"] == "local[2]"


def test_the_configuration_names_the_file_and_its_secrets_are_nowhere_shown(file, tmp_path):
    path = tmp_path / "capture.toml"
    path.write_text(f'stream = "A"\nstore = "{tmp_path}"\n[spark]\nproperties_file = "{file}"\n')
    options = load(path, environment={}).spark.options()
    assert options.properties_file == str(file)
    assert "s3cret" not in repr(options) + msgspec.json.encode(options).decode()


def test_yarn_without_its_settings_and_a_connect_server_are_told_of_before_a_jvm_starts():
    with pytest.raises(SparkError, match="neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set"):
        check_master("yarn", {})
    with pytest.raises(SparkError, match="needs a session of its own"):
        check_master("sc://spark.example.com:15002", {})
    for known in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        check_master("yarn", {known: "/etc/hadoop"})
    for master in ("local[2]", "spark://a:7077", "k8s://https://a:6443"):
        check_master(master, {})
    with pytest.raises(SparkError, match=r"spark\.master is 'lokal': write local"):
        check_master("lokal", {})
