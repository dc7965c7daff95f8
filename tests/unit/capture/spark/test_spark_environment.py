"""What of our environment Spark's processes get."""

import pytest

from capture.spark import gateway
from capture.spark.child import _environment
from capture.spark.environment import select_needed

NEEDED = ("PATH", "HOME", "LC_ALL", "JAVA_HOME", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY", "https_proxy")
NEEDED += ("GOOGLE_APPLICATION_CREDENTIALS", "CAPTURE_KEYS", "SSL_CERT_FILE", "HADOOP_CONF_DIR", "PYSPARK_PYTHON")
SECRET = ("CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN", "NATS_PASSWORD", "NATS_CREDS", "NATS_URL", "GITHUB_TOKEN")
SECRET += ("DATABASE_URL", "SPARK_CONNECT_AUTHENTICATE_TOKEN")


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    for name in (*NEEDED, *SECRET):
        monkeypatch.setenv(name, f"the {name}")


def test_the_driver_gets_what_it_needs_and_what_the_settings_name(tmp_path):
    found = _environment(tmp_path, ["DATABASE_URL"])
    assert [name for name in NEEDED if name not in found] == []
    assert [name for name in SECRET if name in found] == ["DATABASE_URL"]
    assert found["TMPDIR"] == str(tmp_path)


def test_what_a_program_s_own_session_gets_are_its_variables_but_those_that_are_never_spark_s(tmp_path):
    found = gateway._environment(tmp_path, "python", {"spark.master": "local[2]"})
    assert found["NATS_PASSWORD"] == "the NATS_PASSWORD"  # the data source connects with it
    assert {"CAPTURE_SIGNING_KEYS", "CAPTURE_CATALOG_TOKEN"}.isdisjoint(found)


def test_no_setting_lets_the_keys_to_sign_with_through():
    assert select_needed({"CAPTURE_SIGNING_KEYS": "x", "A": "1"}, ["CAPTURE_SIGNING_KEYS", "A"]) == {"A": "1"}
