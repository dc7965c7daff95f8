import json
import subprocess
import sys

import pytest
from patient import PATIENCE


@pytest.fixture
def doctor(fleet):
    """Run `capture doctor` with this archive's configuration; its exit status and what it found."""

    def run(**settings):
        command = [sys.executable, "-m", "capture", "doctor", "--json", "--config", fleet.configure(**settings)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
        assert "Traceback" not in ran.stderr
        return ran.returncode, {one["check"]: one for one in json.loads(ran.stdout)["checks"]}

    return run


async def test_the_archives_store_and_stream_are_tried(fleet, doctor):
    status, found = doctor()
    assert status == 0
    assert {found[name]["status"] for name in ("store", "stream", "java", "pyspark")} == {"ok"}
    assert f"{fleet.stream} holds 0 messages; Spark reads it by a consumer" in found["stream"]["text"]
    assert found["java"]["text"].startswith(("taken", "not needed"))


@pytest.mark.long
async def test_a_store_in_which_the_archive_of_this_name_is_not_is_a_failure(fleet, doctor, tmp_path):
    await fleet.publish([b"{}"])
    node = fleet.start("node-1", fleet.configure())
    await fleet.until_all_acked(1)
    assert await fleet.stop(node) == 0
    status, found = doctor(store=str(tmp_path / "prod"))
    assert (status, found["archive"]["status"], found["store"]["status"]) == (1, "fail", "fail")
    assert found["store"]["text"].startswith("not tested: nothing is written into a store without the archive")
    assert not (tmp_path / "prod").exists()
    said = found["archive"]["text"]
    assert "they would be missing here" in said or "NATS records manifest" in said


async def test_while_the_stream_cant_be_read_nothing_is_written_into_the_store(doctor, tmp_path):
    status, found = doctor(stream="NOWHERE", store=str(tmp_path / "prod"))
    assert (status, found["stream"]["status"], found["store"]["status"]) == (1, "fail", "fail")
    assert found["store"]["text"].startswith("not tested: nothing is written until it is known whether the store holds")
    assert "NOWHERE" in found["store"]["text"]
    assert not (tmp_path / "prod").exists()


async def test_a_stream_and_a_store_that_are_not_there_are_failures(fleet, doctor, tmp_path):
    (tmp_path / "a file").touch()
    status, found = doctor(stream="NOWHERE", store=str(tmp_path / "a file" / "lake"))
    assert status == 1
    assert (found["store"]["status"], found["stream"]["status"]) == ("fail", "fail")
    assert "NOWHERE" in found["stream"]["text"]


async def test_a_stream_that_loses_messages_with_the_servers_process_is_a_warning(natty, natty_name, doctor):
    name = natty_name("hasty")
    await natty.create_stream(name, subjects=[f"{name}.>"], persist_mode="async")
    status, found = doctor(stream=name)
    assert status == 0
    assert found["durability"]["status"] == "warn"
    assert f"stream {name}: persist_mode is async" in found["durability"]["text"]
