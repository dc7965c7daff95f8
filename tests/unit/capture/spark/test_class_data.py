"""The archive of Spark's classes: made once, by one process, and never a reason for Spark not to start."""

import contextlib
import fcntl
import os
import sys
import time
from pathlib import Path

import pytest

from capture.errors import SparkError
from capture.spark import class_data, session
from capture.spark.java import Java
from capture.spark.options import SparkOptions


@pytest.fixture
def java(tmp_path):
    """Makes a Java of a version."""

    def make(version):
        path = tmp_path / f"java-{version}"
        if not path.exists():
            path.touch()
        return Java(path, version, "a test")

    return make


def path_of(flags):
    return Path(flags[0].partition("=")[2])


class Recorded:
    """Stands for a recorded session: writes what Java was told to write, or nothing."""

    def __init__(self, archive=b"classes", error=None):
        self.flags = []
        self._archive = archive
        self._error = error

    def __call__(self, flags):
        self.flags.append(flags)
        if self._error:
            raise self._error
        if self._archive:
            path_of(flags).write_bytes(self._archive)


@pytest.mark.parametrize(
    ("version", "recorded", "used"),
    [(17, "-XX:ArchiveClassesAtExit", "-XX:SharedArchiveFile"), (25, "-XX:AOTCacheOutput", "-XX:AOTCache")],
)
def test_it_is_made_once_and_used_from_then_on(java, tmp_path, version, recorded, used):
    record, folder = Recorded(), tmp_path / "cache"
    first = class_data.flags(java(version), record, folder=folder)
    again = class_data.flags(java(version), record, folder=folder)
    assert first == again
    assert [flags[0].partition("=")[0] for flags in record.flags] == [recorded]
    assert first[0].startswith(used + "=")
    assert path_of(first).read_bytes() == b"classes"
    assert sorted(one.suffix for one in folder.iterdir()) == [".archive", ".lock"]


@pytest.mark.parametrize("record", [Recorded(archive=b""), Recorded(error=SparkError("no JVM"))], ids=["none", "error"])
def test_a_java_that_can_not_make_one_is_not_asked_again(java, tmp_path, record):
    for _ in range(2):
        assert class_data.flags(java(21), record, folder=tmp_path) == []
    assert len(record.flags) == 1


def test_an_interrupted_recording_leaves_nothing_and_is_done_again(java, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        class_data.flags(java(25), Recorded(error=KeyboardInterrupt()), folder=tmp_path / "cache")
    assert [one.suffix for one in (tmp_path / "cache").iterdir()] == [".lock"]
    assert class_data.flags(java(25), Recorded(), folder=tmp_path / "cache")


def test_what_a_killed_recording_left_is_removed_by_the_next_one(java, tmp_path):
    [archive] = map(path_of, [class_data.flags(java(25), Recorded(), folder=tmp_path)])
    archive.unlink()
    left = tmp_path / f"{archive.stem}-making-x"
    left.mkdir()
    (left / "archive.config").touch()
    assert class_data.flags(java(25), Recorded(), folder=tmp_path)
    assert not left.exists()


def test_nobody_waits_for_another_process_that_makes_it(java, tmp_path):
    assert class_data.flags(java(25), Recorded(), folder=tmp_path)
    [archive] = tmp_path.glob("*.archive")
    archive.unlink()
    record = Recorded()
    with archive.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert class_data.flags(java(25), record, folder=tmp_path) == []
    assert record.flags == []


def test_a_cache_that_is_no_folder_is_done_without(java, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    record = Recorded()
    assert class_data.flags(java(25), record, folder=tmp_path / "file" / "below") == []
    assert record.flags == []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(PermissionError, match="file can't be written"):
        class_data.archive_of(java(25))


def test_one_that_was_made_before_is_used_in_a_cache_that_is_only_read(java, tmp_path, monkeypatch):
    made = class_data.flags(java(25), Recorded(), folder=tmp_path)

    def refuse(path):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert class_data.flags(java(25), Recorded(), folder=tmp_path) == made


def test_a_setting_that_only_a_cluster_can_do_stops_neither_the_recording_nor_the_session(monkeypatch, tmp_path, java):
    settings = []

    @contextlib.contextmanager
    def begin(java, properties, flags, **_):
        settings.append(properties)
        [Path(flag.partition("=")[2]).touch() for flag in flags if "Output" in flag or "AtExit" in flag]
        yield None

    def exercise(spark):
        raise OSError("there is no such file here")

    monkeypatch.setattr(session, "_session", begin)
    monkeypatch.setattr(session, "exercise", exercise)
    monkeypatch.setattr(session, "choose", lambda setting: java(25))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    elsewhere = {"spark.master": "spark://a:7077", "spark.pyspark.python": "/of/the/executors"}
    with session.start(SparkOptions(properties=elsewhere)):
        recorded, real = settings
    assert (recorded["spark.master"], recorded["spark.pyspark.python"]) == ("local[1]", sys.executable)
    assert {name: real[name] for name in elsewhere} == elsewhere
    assert class_data.is_made(java(25))


def test_another_java_has_another_one_and_what_nobody_uses_goes(java, tmp_path):
    cache = tmp_path / "cache"
    old, young = (class_data.flags(java(version), Recorded(), folder=cache) for version in (17, 21))
    assert old != young
    long_ago = time.time() - class_data.UNUSED_FOR - 60
    for one in (old, young):
        os.utime(path_of(one), (long_ago, long_ago))
    class_data.flags(java(21), Recorded(), folder=cache)  # it is used
    class_data.flags(java(25), Recorded(), folder=cache)
    assert not path_of(old).exists()
    assert path_of(young).exists()
