"""An archive of decoded values: a node is killed, nothing is missing, and what it can't do is said in a sentence."""

import csv
import gzip
import json
import sys
from pathlib import Path

import pytest
from dying import DIES
from patient import PATIENCE

MESSAGES = 120
MODULE = """
import json

def upper(message):
    found = json.loads(message.data)
    if found["n"] % 10 == 3:
        raise ValueError("not this one")
    return {"NAME": f"BOB{found['n']}"}
"""
UNDECODABLE = MESSAGES // 10


def lines(folder):
    for path in sorted(folder.rglob("*.gz")):
        with gzip.open(path, "rt", newline="") as file:
            yield from csv.DictReader(file) if ".csv" in path.name else map(json.loads, file)


@pytest.mark.parametrize(("block_format", "envelope"), [("ndjson", "none"), ("csv", "none"), ("ndjson", "nested")])
def test_values_survive_a_kill_and_verify_counts_them(
    quick_shell, make_stream, captured, natty_name, block_format, envelope
):
    shell, stream = quick_shell, make_stream(natty_name("values"), MESSAGES)
    (shell.folder / "transforms.py").write_text(MODULE)
    where = {"PYTHONPATH": f"{shell.folder}:{Path(__file__).parents[3]}"}
    config = shell.folder / "capture.toml"
    config.write_text(
        f'stream = "{stream}"\nstore = "lake"\ndecoder = "transforms:upper"\npartition = "subject:1"\n'
        f'format = "{block_format}"\nenvelope = "{envelope}"\ncompression = "gzip"\nack_wait = 2\n'
        f"[limits]\nmax_age = 0.5\nmax_messages = 20\n"
    )
    checked = shell.execute([sys.executable, "-m", "capture", "config", "check", "--config", config], **where)
    told = shell.finish(checked)
    assert (told.status, told.err) == (0, "")
    assert "note: blocks are" in told.out

    killed = shell.execute([sys.executable, "-c", DIES, config, "blocks/", "2"], **where)
    assert shell.finish(killed).status == -9
    captured(stream, MESSAGES, "--config", config, **where)
    assert shell.capture("sweep", "--stream", stream, "--store", "lake", "--wait", PATIENCE).status == 0
    seen = shell.capture("verify", "--stream", stream, "--store", "lake", "--json")
    counts = json.loads(seen.out)
    assert (seen.status, counts["stored"], counts["missing"], counts["undecodable"]) == (
        0,
        MESSAGES - UNDECODABLE,
        0,
        UNDECODABLE,
    )

    blocks = shell.folder / "lake" / "blocks"
    values = [row.get("value", row) for row in lines(blocks) if not row.get("error")]
    expected = {f"BOB{number}" for number in range(MESSAGES) if number % 10 != 3}
    assert {value["NAME"] for value in values} == expected
    kept = {json.loads(row["payload"])["n"] for row in lines(blocks) if row.get("error") == "ValueError: not this one"}
    assert kept == {number for number in range(MESSAGES) if number % 10 == 3}

    printed = shell.capture("cat", "lake", NATS_URL="")
    queried = shell.capture("sql", "SELECT count(*) AS n FROM messages", "--store", "lake", "--json", NATS_URL="")
    purged = shell.capture("purge", "--captured", "--stream", stream, "--store", "lake", "--dry-run", "--json")
    restored = shell.capture("restore", "lake", "--as", natty_name("back"), "--detached")
    if envelope == "nested":
        assert {json.loads(line)["sequence"] for line in printed.out.splitlines()} == set(range(1, MESSAGES + 1))
        assert json.loads(queried.out) == [{"n": MESSAGES}]
        assert restored.status == 0, restored
        return
    assert set(values[0]) == {"NAME"}
    assert json.loads(purged.out)["messages"] == 0, purged.out
    name = f"{block_format}-value"
    reason = f"sequence 1 is only in a block that does not keep messages whole ({name})"
    assert json.loads(purged.out)["reason"] == reason, purged.out
    for done in (printed, queried):
        assert done.status == 1, done
        assert f"{block_format}-value.gz does not keep messages whole" in done.complaint
    if block_format == "csv":  # its undecodable messages are not whole, either
        assert (restored.status, restored.out) == (1, ""), restored
        assert restored.complaint.startswith(f"capture: nothing can be restored: {MESSAGES} messages"), restored
    else:
        assert (restored.status, "not keep messages whole" in restored.out) == (0, True), restored

    adopted = json.loads(shell.capture("ls", "--store", "lake", "--json", NATS_URL="").out)["blocks"]
    last = max((one for one in adopted if one["key"] != "_undecodable"), key=lambda one: one["last"])
    lost = shell.folder / "lake" / last["path"]
    lost.chmod(0o644)
    lost.unlink()
    assert shell.capture("verify", "--stream", stream, "--store", "lake").status == 3
