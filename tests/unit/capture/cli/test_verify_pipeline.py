"""`capture verify --pipeline`, without a server: text, JSON, Nagios, Prometheus, exit statuses, and wrong usage."""

import asyncio
import json

import pytest
from archived import ARCHIVE, CREATED, STREAM
from capture_command import CaptureCommand
from pipeline_world import SUMS, World

from capture.archive.iceberg_state import Expiry
from capture.archive.identity import claim
from capture.iceberg import Exposer

CONFIG = f"""
stream = "{STREAM}"
archive = "{ARCHIVE}"
[[pipeline]]
name = "sums"
sql = "{SUMS.sql}"
mode = "upsert"
key = "k"
buckets = 3
schedule = "every 1s"
[[pipeline]]
name = "later"
sql = "SELECT sequence FROM {STREAM}"
mode = "append"
"""


@pytest.fixture
def command(monkeypatch, tmp_path, capfd):
    (tmp_path / "capture.toml").write_text(CONFIG)
    called = CaptureCommand(monkeypatch, tmp_path, capfd)
    monkeypatch.setenv("CAPTURE_CONFIG", "capture.toml")

    def call(*words, columns=0):
        return called("verify", "--offline", *words, columns=columns)

    return call


@pytest.fixture
def world(tmp_path, command):
    world = World(tmp_path / "lake", [SUMS])

    async def make():
        await claim(world.archive.store, ARCHIVE, STREAM, CREATED, None)
        await world.store(range(1, 8))
        assert await world.lead(exposure=Exposer(world.home, Expiry()))() == {}
        await world.store([9])

    asyncio.run(make())
    return world


def test_it_prints_what_the_table_has_and_what_the_next_run_reads(world, command):
    status, out, err = command("--pipeline", "sums", columns=80)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["pipeline sums: nothing is missing or damaged", "- ORDERS: the table has 7 messages (1–7)"]
    assert lines[2].startswith("- ORDERS: 1 message for the next run (9), since 20")
    assert lines[3] == "- 3 files with 5 rows, of 1 run"
    assert max(map(len, lines[:4])) <= 80
    status, out, err = command("--pipeline", "later", "--quick")
    assert (status, err) == (0, "")
    assert "- ORDERS: 8 messages for the next run (1–7, 9), since " in out


def test_as_json_it_has_exact_runs(world, command):
    status, out, err = command("--pipeline", "sums", "--json")
    found = json.loads(out)
    assert (status, err, found["status"], found["ok"], found["checksums"]) == (0, "", 0, True, True)
    (read,) = found["inputs"]
    assert (read["held_runs"], read["waiting_runs"], read["strange"]) == ([[1, 7]], [[9, 9]], 0)
    assert (found["pipeline"], found["files"], found["rows"], found["run"]) == ("sums", 3, 5, 1)


def test_a_missing_file_is_exit_status_3_and_critical(world, command):
    path = next(world.folder.glob("_pipelines/table/sums/*/*.parquet"))
    path.unlink()
    status, out, err = command("--pipeline", "sums", "--quick")
    assert (status, err) == (3, "")
    assert out.startswith("pipeline sums: 1 WRONG\n")
    assert f"- table/sums/{path.parent.name}/{path.name} is missing\n" in out
    status, out, err = command("--pipeline", "sums", "--nagios")
    assert (status, err, len(out.splitlines())) == (2, "", 1)
    assert out.startswith("CAPTURE CRITICAL - pipeline sums: 1 WRONG")
    assert "problems=1;;0" in out
    status, out, err = command("--pipeline", "sums", "--prometheus", "-")
    assert (status, err) == (3, "")
    assert 'capture_verify_pipeline_status{pipeline="sums"} 3\n' in out
    assert 'capture_verify_pipeline_messages{pipeline="sums",input="ORDERS",state="waiting"} 1\n' in out


def test_a_failure_is_published_under_the_pipeline_s_name(command, tmp_path):
    status, _, err = command("--pipeline", "sums", "--prometheus", "figures")
    assert (status, err.count("\n")) == (1, 1)
    assert 'capture_verify_pipeline_ok{pipeline="sums"} 0\n' in (tmp_path / "figures").read_text()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--pipeline", "other"], 1, "there is no pipeline 'other'"),
        (
            ["--pipeline", "sums", "--stream", "ORDERS"],
            2,
            "--pipeline can't be combined with --stream, --noted and --accept",
        ),
    ],
)
def test_wrong_usage_is_a_sentence(world, command, words, status, said):
    found, out, err = command(*words)
    assert (found, out) == (status, "")
    assert said in err
