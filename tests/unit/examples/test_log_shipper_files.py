"""The log shipper's files, their ledger, and its settings."""

import errno
import io
import os
from pathlib import Path

import pytest
from log_shipper import ledger as ledgers
from log_shipper.ledger import Ledger
from log_shipper.settings import DAY, ConsumeSettings, ProduceSettings, SettingError, ShipperError, partition_of

NANOSECONDS = 1_000_000_000


def test_a_host_has_a_file_for_each_day_of_its_lines_and_files_are_kept_a_week(tmp_path):
    with Ledger(tmp_path, "app-%Y%m%d%H%M", "p0") as ledger:
        for day in range(10):
            noon = (day * DAY + DAY // 2) * NANOSECONDS
            ledger.write([("web1", noon, b"one"), ("web2", noon, b"two"), ("web1", noon + 1, b"three")], day + 1)
        days = sorted((tmp_path / "web1").iterdir())
        assert days[0].name == "app-197001010000"
        assert days[0].read_bytes() == b"one\nthree\n"
        assert ledger.expire(8 * DAY - 1) == []
        gone = ledger.expire(9 * DAY)
        assert sorted(path.parent.name for path in gone) == ["web1", "web1", "web2", "web2"]
        assert sorted((tmp_path / "web1").iterdir()) == days[2:]
    with Ledger(tmp_path, "app-%Y%m%d%H%M", "p0") as again:
        assert again.sequence == 10
        assert again.expire(9 * DAY) == []


def test_lines_are_synced_before_the_ledger_says_that_they_are_there(tmp_path, monkeypatch):
    synced, sync = [], os.fdatasync

    def observed(descriptor):
        sync(descriptor)
        synced.append((os.fstat(descriptor).st_size, ledger.sequence))

    monkeypatch.setattr(os, "fdatasync", observed)
    with Ledger(tmp_path, "app", "p0") as ledger:
        ledger.write([("web1", 0, b"one"), ("web2", 0, b"three")], 2)
        assert (synced, ledger.sequence) == ([(4, 0), (6, 0)], 2)


def test_what_was_written_before_a_ledger_knew_a_file_is_kept(tmp_path):
    (tmp_path / "web1").mkdir()
    (tmp_path / "web1" / "app-1970").write_bytes(b"before\n")
    with Ledger(tmp_path, "app-%Y", "p0") as ledger:
        ledger.write([("web1", 0, b"after")], 1)
    with Ledger(tmp_path, "app-%Y", "p0"):
        assert (tmp_path / "web1" / "app-1970").read_bytes() == b"before\nafter\n"


def test_the_files_of_a_partition_have_one_writer(tmp_path, monkeypatch):
    monkeypatch.setattr(ledgers, "BUSY_TIMEOUT", 0)
    with Ledger(tmp_path, "app", "p0"), pytest.raises(ShipperError, match="another process"):
        Ledger(tmp_path, "app", "p0").__enter__()


def test_no_partitions_mean_partition_0_and_the_hash_is_fnv_1a():
    assert partition_of("anything", 0) == 0
    assert partition_of("foo.bar", 1 << 32) == 3415486196


def test_the_commands_of_the_series_mean_here_what_they_mean_there():
    shared = {"SHIPPER_SUBJECT": "shipper", "HOSTNAME": "web1.example.net"}
    producer = ProduceSettings.read(shared | {"SHIPPER_FILE": "/var/log/system.log", "SHIPPER_PARTITIONS": "10"})
    assert producer.route.publish_on(producer.host) == "shipper.p5.web1.example.net"
    whole = ProduceSettings.read(shared | {"SHIPPER_FILE": "/var/log/system.log"})
    assert whole.route.publish_on(whole.host) == "shipper.p0.web1.example.net"
    shared |= {"SHIPPER_OUTPUT": "logfile", "SHIPPER_DIRECTORY": "out"}
    consumer = ConsumeSettings.read(shared | {"SHIPPER_READ_PARTITIONS": "0,1,2,3,4"})
    assert (consumer.read_partitions, consumer.output) == ((0, 1, 2, 3, 4), "logfile-%Y%m%d%H%M")
    assert ConsumeSettings.read(shared).read_partitions == (0,)
    assert ConsumeSettings.read(shared | {"SHIPPER_PARTITIONS": "3"}).read_partitions == (0, 1, 2)
    assert ConsumeSettings.read(shared | {"SHIPPER_OUTPUT": "app.%Y%m%d"}).output == "app.%Y%m%d"


def test_retention_and_days_are_as_set():
    shared = {"SHIPPER_SUBJECT": "logs", "SHIPPER_OUTPUT": "app", "SHIPPER_DIRECTORY": "out"}
    usual = ConsumeSettings.read(shared)
    assert (usual.route.retention, usual.keep_days) == (None, 7)
    other = ConsumeSettings.read(shared | {"SHIPPER_RETENTION": "1d", "SHIPPER_KEEP_DAYS": "30"})
    assert (other.route.retention, other.keep_days) == (DAY, 30)


def test_files_are_kept_as_many_days_as_are_set(tmp_path):
    with Ledger(tmp_path, "app-%Y%m%d", "p0", keep_days=1) as ledger:
        ledger.write([("web1", 0, b"one")], 1)
        assert ledger.expire(2 * DAY - 1) == []
        assert ledger.expire(2 * DAY) == [tmp_path / "web1" / "app-19700101"]


def test_a_target_of_the_series_names_the_consumers():
    shared = {"SHIPPER_SUBJECT": "logs", "SHIPPER_OUTPUT": "app", "SHIPPER_DIRECTORY": "out"}
    assert ConsumeSettings.read(shared).durable == "shipper"
    assert ConsumeSettings.read(shared | {"SHIPPER_DURABLE": "audit"}).durable == "audit"
    assert ConsumeSettings.read(shared | {"SHIPPER_STREAM_TARGET": "out.logs"}).durable == "out_logs"


@pytest.mark.parametrize("written", [0, 3], ids=["nothing of it was written", "a part of it was written"])
def test_what_a_full_disk_cut_short_is_written_once_when_there_is_room_again(tmp_path, monkeypatch, written):
    class FullDisk(io.FileIO):
        def write(self, data):
            super().write(data[:written])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Ledger(tmp_path, "app-%Y", "p0") as ledger:
        ledger.write([("web1", 0, b"one")], 1)
        with monkeypatch.context() as full:
            full.setattr(Path, "open", lambda path, mode: FullDisk(path, mode.replace("b", "")))
            with pytest.raises(ShipperError, match="No space left on device; what is not on disk stays in the stream"):
                ledger.write([("web1", 0, b"two")], 2)
        assert ledger.sequence == 1
    with Ledger(tmp_path, "app-%Y", "p0") as ledger:
        assert ledger.sequence == 1
        ledger.write([("web1", 0, b"two")], 2)
    assert (tmp_path / "web1" / "app-1970").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("settings", "read", "complaint"),
    [
        ({"SHIPPER_FILE": ""}, ProduceSettings, "SHIPPER_FILE is not set"),
        ({"SHIPPER_SUBJECT": ""}, ProduceSettings, "SHIPPER_SUBJECT is not set"),
        ({"SHIPPER_SUBJECT": "logs.>"}, ConsumeSettings, "SHIPPER_SUBJECT is 'logs.>'"),
        ({"HOSTNAME": "web 1"}, ProduceSettings, "host name 'web 1' can't be part of a subject"),
        ({"HOSTNAME": "../web1"}, ProduceSettings, r"host name '\.\./web1'"),
        ({"HOSTNAME": "web1."}, ProduceSettings, r"host name 'web1\.'"),
        ({"SHIPPER_PARTITIONS": "-1"}, ProduceSettings, "SHIPPER_PARTITIONS is '-1'"),
        ({"SHIPPER_PARTITIONED_BY": "me"}, ConsumeSettings, "SHIPPER_PARTITIONED_BY is 'me'"),
        ({"SHIPPER_PATIENCE": "long"}, ProduceSettings, "SHIPPER_PATIENCE is 'long'"),
        ({"SHIPPER_READ_PARTITIONS": "0,2"}, ConsumeSettings, "numbers from 0 to 1"),
        ({"SHIPPER_READ_PARTITIONS": "a", "SHIPPER_PARTITIONS": ""}, ConsumeSettings, "write whole numbers"),
        ({"SHIPPER_RETENTION": "long"}, ProduceSettings, "SHIPPER_RETENTION is 'long': write how long a line is kept"),
        ({"SHIPPER_RETENTION": "0"}, ConsumeSettings, "SHIPPER_RETENTION is '0'"),
        ({"SHIPPER_KEEP_DAYS": "0"}, ConsumeSettings, "SHIPPER_KEEP_DAYS is '0': write a whole number of days"),
        ({"SHIPPER_DURABLE": "a b"}, ConsumeSettings, r"SHIPPER_DURABLE is 'a b': .*' ' at character 2 is not allowed"),
        ({"SHIPPER_DURABLE": "*"}, ConsumeSettings, r"SHIPPER_DURABLE is '\*'"),
        ({"SHIPPER_STREAM_TARGET": "out.>"}, ConsumeSettings, "SHIPPER_STREAM_TARGET is 'out.>'"),
        ({"SHIPPER_STREAM_TARGET": "out", "SHIPPER_DURABLE": "d"}, ConsumeSettings, "set only SHIPPER_DURABLE"),
        ({"SHIPPER_OUTPUT": "app-%H"}, ConsumeSettings, "gives two days one name"),
        ({"SHIPPER_OUTPUT": "../app"}, ConsumeSettings, "inside of SHIPPER_DIRECTORY"),
    ],
    ids=str,
)
def test_a_setting_that_is_wrong_is_named(settings, read, complaint):
    environment = {
        "SHIPPER_SUBJECT": "logs",
        "SHIPPER_PARTITIONS": "2",
        "SHIPPER_FILE": "app.log",
        "HOSTNAME": "web1.example.net",
        "SHIPPER_DIRECTORY": "out",
        "SHIPPER_OUTPUT": "app",
    }
    read.read(environment)
    with pytest.raises(SettingError, match=complaint):
        read.read(environment | settings)
