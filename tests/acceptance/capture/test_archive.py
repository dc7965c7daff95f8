"""The archive's commands, one after the other on one archive, as a user would."""

import json
import time

import pytest
from patient import PATIENCE

MESSAGES = 1000
DAY = 86_400  # seconds
BY_HAND = ("--wait", PATIENCE)  # for an office that the last one in it had no time to give back
COUNTED = (
    "SELECT subject, COUNT(*) AS messages, SUM(CASE WHEN odd THEN 1 ELSE 0 END) AS odd"
    " FROM messages GROUP BY subject ORDER BY subject"
)


@pytest.fixture
def archive(shell, make_stream, captured, natty_name):
    """Capture a stream into blocks; return its name and the options that name it and its archive."""
    if (left := DAY - time.time() % DAY) < PATIENCE:
        time.sleep(left)  # the messages are to be of one day
    stream = make_stream(natty_name("archive"), MESSAGES)
    (shell.folder / "capture.toml").write_text(
        f'stream = "{stream}"\nstore = "lake"\ndecoder = "json"\npartition = "subject:1"\nlease = 15.0\n'
        f"[limits]\nmax_age = 0.5\ninterval = {DAY}.0\n[sweep]\nevery = 0.2\n"
        "[compaction]\nmin_files = 1000000\nmax_wait = 1000000.0\n"
    )
    captured(stream, MESSAGES, "--config", "capture.toml")
    return stream


def as_json(done):
    assert (done.status, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_from_blocks_to_answers_and_back_to_a_file_that_was_lost(shell, archive):
    options = ("--config", "capture.toml")
    swept = as_json(shell.capture("sweep", *options, *BY_HAND, "--json"))
    assert swept["dangling"] == swept["unreadable"] == []
    verified = shell.capture("verify", *options)
    assert (verified.status, verified.err) == (0, "")
    assert verified.out == "1,000 stored, 1,000 of them not compacted yet; nothing is missing\n"

    asked = ("sql", COUNTED, *options, "--schema", "n INT, odd BOOLEAN", "--json")
    from_blocks = as_json(shell.capture(*asked))

    assert "nothing is due\nnot due yet: 2 blocks with " in shell.capture("compact", *options, "--dry-run").out
    planned = as_json(shell.capture("compact", *options, "--all", "--dry-run", "--json"))
    assert (len(planned["groups"]), planned["waiting_files"]) == (2, 0)
    assert sum(one["messages"] for one in planned["groups"]) == MESSAGES
    compacted = as_json(shell.capture("compact", *options, *BY_HAND, "--all", "--json", within=3 * PATIENCE))
    assert (compacted["groups"], compacted["rows_in"], compacted["duplicates"]) == (2, MESSAGES, 0)
    again = shell.capture("compact", *options, *BY_HAND)
    assert (again.status, "groups 0" in " ".join(again.out.replace(":", " ").split())) == (0, True)

    verdict = as_json(shell.capture("verify", *options, "--json"))
    assert {name: verdict[name] for name in ("ok", "stored", "missing", "waiting", "duplicates", "problems")} == {
        "ok": True,
        "stored": MESSAGES,
        "missing": 0,
        "waiting": 0,
        "duplicates": 0,
        "problems": [],
    }
    offline = shell.capture("verify", *options, "--offline", NATS_URL="tls://127.0.0.1:9")
    assert offline.out.startswith("1,000 stored; nothing is missing; compared with the recording of 20")

    manifest = as_json(shell.capture("ls", "--store", "lake", "--json", NATS_URL=""))
    paths = sorted(one["path"] for one in manifest["table"])
    assert sorted(one["key"] for one in manifest["table"]) == ["eu", "us"]
    assert manifest["blocks"] == []
    listed = shell.capture("ls", "--store", "lake")
    assert all(path in listed.out for path in paths)
    assert "0 blocks, 2 table files" in listed.out

    from_table = as_json(shell.capture(*asked))
    by_spark = as_json(shell.capture(*asked, "--engine", "spark", within=3 * PATIENCE))
    assert from_blocks == from_table == by_spark
    assert by_spark == [
        {"subject": f"{archive}.eu", "messages": 500, "odd": 0},
        {"subject": f"{archive}.us", "messages": 500, "odd": 500},
    ]
    nonsense = ("SELECT nonsense FROM messages", "--engine", "spark")
    wrong = shell.capture("sql", *nonsense, *options, within=3 * PATIENCE)
    assert wrong.status == 1
    assert "nonsense" in wrong.complaint

    changed, removed = (shell.folder / "lake" / path for path in paths)
    whole = changed.read_bytes()
    changed.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert shell.capture("verify", *options, "--quick").status == 0  # its size is right: that is all it looks at
    deep = shell.capture("verify", *options)
    assert deep.status == 3
    assert "500 MISSING (1, 3, 5" in deep.out
    assert f"{paths[0]} was changed: its SHA-256 is not the recorded one" in deep.out
    removed.unlink()
    lost = shell.capture("verify", *options, "--quick", "--json")
    assert lost.status == 3
    assert json.loads(lost.out)["problems"] == [f"{paths[1]} is missing"]
    assert json.loads(lost.out)["missing"] == 500


def test_an_empty_stream_is_captured_and_verified_without_a_word_of_trouble(shell, make_stream, captured, natty_name):
    stream = make_stream(natty_name("empty"))
    _, err = captured(stream, 0, "--store", "lake", CAPTURE_LEASE="60")
    assert [line for line in err.splitlines() if " capture.run: " not in line] == []
    options = ("--stream", stream, "--store", "lake")
    verified = shell.capture("verify", *options)
    assert (verified.status, verified.out, verified.err) == (0, "nothing stored; nothing is missing\n", "")
    assert as_json(shell.capture("verify", *options, "--json"))["ok"] is True
    assert as_json(shell.capture("sweep", *options, *BY_HAND, "--json"))["adopted"] == 0
    assert as_json(shell.capture("compact", *options, *BY_HAND, "--json"))["groups"] == 0
    assert shell.capture("ls", "--store", "lake").out.splitlines()[-1].endswith(": 0 blocks, 0 table files")
    counted = shell.capture("sql", "SELECT COUNT(*) AS n FROM messages", "--store", "lake", "--json")
    assert as_json(counted) == [{"n": 0}]


def test_undecodable_messages_are_reported_and_are_no_fault(shell, natty_name, served, captured):
    stream = natty_name("odd")

    async def publish(natty):
        await natty.ensure_stream(stream, subjects=[f"{stream}.*"])
        for payload in (b"{}", b"no json", b"\xff\xfe", b"[1]"):
            await natty.publish(f"{stream}.x", payload)

    served(publish)
    captured(stream, 4, "--store", "lake", "--decoder", "json", "--max-age", "0.5")
    verified = shell.capture("verify", "--stream", stream, "--store", "lake")
    assert verified.status == 0
    assert verified.out.startswith("2 stored, 2 undecodable and kept raw, ")


def test_a_second_leader_by_hand_says_who_leads(shell, archive):
    node = shell.start("capture", "run", "--config", "capture.toml", "--node-name", "node-1")
    leader, deadline = None, time.monotonic() + PATIENCE
    while leader != "node-1" and time.monotonic() < deadline:
        leader = as_json(shell.natty("leader", "show", f"capture.{archive}", "--json"))["leader"]
    assert leader == "node-1"
    done = shell.capture("sweep", "--config", "capture.toml", "--wait", "1")
    assert done.status == 1
    assert done.complaint.startswith(f"capture: node-1 leads capture.{archive} and does this automatically")
    assert "Stop the nodes first, or give a longer --wait" in done.complaint
    node.terminate()
    node.communicate(timeout=PATIENCE)
    assert node.returncode == 0


def test_a_node_says_what_it_captures_and_what_it_did(shell, make_stream, captured, natty_name):
    stream = make_stream(natty_name("said"), 5)
    options = ("--store", "lake", "--max-age", "0.3", "--node-name", "n1")
    _, err = captured(stream, 5, *options)
    said = [line.partition("capture.run: ")[2] for line in err.splitlines() if "capture.run: " in line]
    assert said[0] == f"n1 captures {stream} into {(shell.folder / 'lake').as_uri()}, through consumer capture"
    assert said[1].startswith("n1 stopped: 5 messages in ")
    assert len(said) == 2
    _, err = captured(stream, 5, *options, CAPTURE_LOGGING__LEVEL="error")  # at every level
    assert [line for line in err.splitlines() if "capture.run: " not in line] == []
    assert "n1 stopped: 0 messages in 0 blocks stored" in err
