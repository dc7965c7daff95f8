"""`capture cat`, `sql`, `import` and `export` as processes, on one archive of a real stream."""

import json
import signal
import sys

import pytest
from patient import PATIENCE

MESSAGES = 300


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def archive(shell, make_stream, captured, natty_name):
    """Capture a stream; return its name. The archive is the folder lake."""
    stream = make_stream(natty_name("cat"), MESSAGES)
    captured(stream, MESSAGES, "--store", "lake", "--partition", "subject:1", CAPTURE_LIMITS__MAX_AGE="0.5")
    return stream


def publish(served, stream, count):
    async def work(natty):
        for number in range(count):
            await natty.publish(f"{stream}.late", b"late %d" % number)

    served(work)


def rows(done):
    assert done.err == ""
    assert done.status == 0
    return [json.loads(line) for line in done.out.splitlines()]


def test_an_archive_is_printed_asked_about_and_moved(shell, archive, served):
    everything = rows(shell.capture("cat", "lake", NATS_URL=""))
    assert [row["sequence"] for row in everything] == list(range(1, MESSAGES + 1))
    assert json.loads(everything[6]["payload"]) == {"n": 6, "odd": False}
    assert everything[6]["subject"] == f"{archive}.eu"
    chosen = rows(shell.capture("cat", "--store", "lake", "--subject", "*.us", "--from", "10", "--to", "15"))
    assert [row["sequence"] for row in chosen] == [10, 12, 14]
    lines = shell.capture("cat", "lake", "--format", "payload", "--to", "2").out
    assert lines == '{"n": 0, "odd": false}\n{"n": 1, "odd": true}\n'
    bare = shell.capture("cat", "lake", "--format", "raw", "--to", "2").out
    assert bare == lines.replace("\n", "")
    assert rows(shell.capture("cat", "lake", "--since", "1h")) == everything
    assert rows(shell.capture("cat", "lake", "--until", "2020-01-01T00:00:00Z")) == []
    assert rows(shell.capture("cat", "lake", "--subject", "nobody.>")) == []

    publish(served, archive, 3)
    live = rows(shell.capture("cat", "lake", "--live"))
    assert [row["sequence"] for row in live] == list(range(1, MESSAGES + 4))
    assert live[-1]["payload"] == "late 2"

    number = "SELECT count(*) AS n, max(sequence) AS last FROM messages"
    answer = shell.capture("sql", number, "--store", "lake", "--live", "--json")
    assert (answer.status, answer.err) == (0, "")
    assert json.loads(answer.out) == [{"n": MESSAGES + 3, "last": MESSAGES + 3}]
    without = shell.capture("sql", number, "--store", "lake", "--live", "--engine", "spark")
    assert (without.status, without.out) == (1, "")
    assert "with --live, use --engine duckdb" in without.complaint

    odd = "SUM(CASE WHEN odd THEN 1 ELSE 0 END) AS odd"
    counted = f"SELECT subject, COUNT(*) AS n, {odd} FROM messages GROUP BY 1 ORDER BY 1"
    asked = shell.capture("sql", counted, "--store", "lake", "--schema", "n INT, odd BOOLEAN", "--json", NATS_URL="")
    assert json.loads(asked.out) == [
        {"subject": f"{archive}.eu", "n": MESSAGES // 2, "odd": 0},
        {"subject": f"{archive}.us", "n": MESSAGES // 2, "odd": MESSAGES // 2},
    ]
    shown = shell.capture("sql", "SELECT 40 + 2 AS answer", "--store", "lake")
    assert "answer" in shown.out
    assert "42" in shown.out
    wrong = shell.capture("sql", "SELECT nonsense FROM messages", "--store", "lake")
    assert wrong.status == 1
    assert "nonsense" in wrong.complaint

    swept = shell.capture("sweep", "--stream", archive, "--store", "lake", "--wait", PATIENCE)
    assert swept.status == 0
    exported = shell.capture("export", "lake", "backup", "--json")
    assert (exported.status, exported.err) == (0, "")
    told = json.loads(exported.out)
    assert told["messages"] == MESSAGES
    assert any("continue after the messages that they had acknowledged" in one for one in told["not_kept"])
    imported = shell.capture("import", "backup", "other", NATS_URL="")
    assert imported.out.startswith(f"{archive}: {MESSAGES} messages (1–{MESSAGES + 3}) and ")  # three lack yet
    again = rows(shell.capture("cat", "other"))
    assert [(row["sequence"], row["time_ns"], row["payload"]) for row in again] == [
        (row["sequence"], row["time_ns"], row["payload"]) for row in everything
    ]

    (block,) = [path for path in shell.folder.glob("lake/blocks/**/*.parquet") if "key=us" in str(path)]
    block.write_bytes(block.read_bytes()[:-1])
    damaged = shell.capture("cat", "lake")
    assert damaged.status == 1
    assert damaged.complaint.endswith(": it was cut off or changed")
    assert str(block.relative_to(shell.folder / "lake")) in damaged.complaint


def test_a_live_query_without_the_key_or_the_server_or_the_stream_says_so(shell, archive, served):
    number = ("sql", "SELECT count(*) AS n FROM messages", "--store", "lake", "--live", "--json")
    alone = shell.capture(*number, NATS_URL="tls://127.0.0.1:1")
    assert (alone.status, alone.out) == (1, "")
    assert alone.complaint
    encrypted = shell.capture(*number, CAPTURE_ENCRYPT="true")
    assert (encrypted.status, encrypted.out) == (1, "")
    assert "there is no key" in encrypted.complaint

    async def delete(natty):
        await natty.jetstream.request(f"STREAM.DELETE.{archive}")

    served(delete)
    gone = shell.capture(*number)
    assert (gone.status, json.loads(gone.out)) == (0, [{"n": MESSAGES}])
    assert f"stream {archive} does not exist any more" in gone.err


def test_whoever_reads_may_have_had_enough(shell, archive):
    process = shell.execute(["sh", "-c", '"$0" -m capture cat lake; echo status $? >&2', sys.executable])
    process.stdout.read(10)
    process.stdout.close()
    said = process.stderr.read()
    assert said in ("status 0\n", "")
    assert process.wait(PATIENCE) == 0


def test_following_prints_what_is_published_and_ends_at_ctrl_c(shell, archive, served):
    process = shell.start("capture", "cat", "lake", "--follow", "--format", "payload", "--from", str(MESSAGES))
    assert process.stdout.readline() == '{"n": 299, "odd": true}\n'
    publish(served, archive, 2)
    assert [process.stdout.readline() for _ in range(2)] == ["late 0\n", "late 1\n"]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, err) == (130, "", "capture: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cat", "nowhere"), "nothing was ever captured into it"),
        (("cat", "lake", "--stream", "OTHER"), "nothing was ever captured into it"),
        (("cat",), "no store is named"),
        (("import", "nowhere", "lake"), "nowhere is not a backup of the nats tool"),
        (("export", "nowhere", "backup"), "nothing was ever captured into it"),
        (("sql", "SELECT 1", "--store", "lake"), "nothing was ever captured into it"),
    ],
)
def test_what_can_t_be_done_is_said_in_a_sentence(shell, arguments, said):
    done = shell.capture(*arguments, NATS_URL="")
    assert done.status == 1
    assert said in done.complaint
    assert done.out == ""


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ('{"config": {"name": "../../../evil"}}', "stream name '../../../evil': '.' at character 1 is not allowed"),
        ('{"config": {"name": 7}}', "Expected `str`, got `int`"),
        ('{"config":' * 50_000, "is damaged: maximum recursion depth exceeded"),
    ],
    ids=["name", "type", "depth"],
)
def test_a_backup_that_somebody_changed_is_refused_before_anything_is_written(shell, description, said):
    (shell.folder / "evil").mkdir()
    (shell.folder / "evil" / "backup.json").write_text(description)
    done = shell.capture("import", "evil", "new", NATS_URL="")
    assert (done.status, done.out) == (1, "")
    assert said in done.complaint
    assert not (shell.folder / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat", "lake", "--since", "yesterday"),
        ("cat", "lake", "--format", "xml"),
        ("cat", "lake", "--from", "10", "--to", "5"),
        ("cat", "lake", "--since", "1h", "--until", "2h"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(shell, arguments):
    assert shell.capture(*arguments).status == 2
