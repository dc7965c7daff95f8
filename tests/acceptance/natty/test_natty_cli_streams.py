import json
import os
import pty
import subprocess
import sys

import pytest

FILE = """
[streams.{stream}]
subjects = ["{stream}.>"]
max_msgs = {max_msgs}
{more}

[streams.{stream}.consumers.billing]
ack_wait = 60.0
filter_subjects = ["{stream}.eu"]
"""


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def stream(natty_name):
    return natty_name("CODE")


@pytest.fixture
def declare(shell, stream):
    def write(*, max_msgs=1000, more=""):
        (shell.folder / "streams.toml").write_text(FILE.format(stream=stream, max_msgs=max_msgs, more=more))

    return write


@pytest.fixture
def told_of(served, stream):
    """Return a function that tells the stream's configuration as the server has it."""

    async def ask(natty):
        return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]

    return lambda: served(ask)


def on_a_terminal(shell, answer, *arguments):
    """Run `natty …` with a terminal as standard input on which `answer` is typed."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "natty", *map(str, arguments)],
            cwd=shell.folder,
            env=shell.environment,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        shell.started.append(process)
        os.write(ours, answer)
        return shell.finish(process)
    finally:
        os.close(ours)
        os.close(theirs)


def test_streams_are_planned_made_and_then_there_is_nothing_to_do(shell, stream, declare, told_of):
    declare()
    planned = shell.natty("stream", "plan", "-f", "streams.toml")
    made = f"+ stream {stream}: to be made\n+ consumer billing of stream {stream}: to be made\n"
    assert (planned.status, planned.out, planned.err) == (3, made, "")
    applied = shell.natty("stream", "apply", "-f", "streams.toml")
    assert (applied.status, applied.out, applied.err) == (0, made.replace("to be made", "made"), "")
    again = shell.natty("stream", "plan", "-f", "streams.toml", "--json")
    assert again.status == 0
    assert json.loads(again.out) == [
        {"name": f"stream {stream}", "changes": [], "missing": False},
        {"name": f"consumer billing of stream {stream}", "changes": [], "missing": False},
    ]
    assert told_of()["max_msgs"] == 1000


def test_safe_changes_are_made_and_shown(shell, stream, declare, told_of):
    declare()
    shell.natty("stream", "apply", "-f", "streams.toml")
    declare(max_msgs=2000, more='description = "new"')
    planned = shell.natty("stream", "plan", "-f", "streams.toml")
    assert planned.status == 3
    assert planned.out.splitlines() == [
        f"~ stream {stream}: description is None, wanted 'new'",
        f"~ stream {stream}: max_msgs is 1000, wanted 2000",
        f"= consumer billing of stream {stream}",
    ]
    assert told_of()["max_msgs"] == 1000
    assert shell.natty("stream", "apply", "-f", "streams.toml").status == 0
    assert (told_of()["max_msgs"], told_of()["description"]) == (2000, "new")


def test_destructive_changes_need_a_flag_and_a_yes(shell, stream, declare, told_of):
    declare()
    shell.natty("stream", "apply", "-f", "streams.toml")
    declare(max_msgs=10, more='description = "new"')
    apply = ("stream", "apply", "-f", "streams.toml")
    difference = f"stream {stream}: max_msgs is 1000, wanted 10 (destructive: messages beyond it are deleted)"

    refused = shell.natty(*apply)
    assert refused.status == 1
    assert refused.complaint == (
        f"natty: nothing was changed. {difference}: give --allow-destructive to change it anyway"
    )
    no = on_a_terminal(shell, b"n\n", *apply, "--allow-destructive")
    assert no.status == 1
    assert f"{difference}. Change this? [y/N]" in no.out
    assert no.complaint == "natty: aborted"
    assert (told_of()["max_msgs"], told_of().get("description")) == (1000, None)

    assert on_a_terminal(shell, b"y\n", *apply, "--allow-destructive").status == 0
    assert told_of()["max_msgs"] == 10
    declare(max_msgs=5)
    assert shell.natty(*apply, "--allow-destructive", "--force").status == 0
    assert told_of()["max_msgs"] == 5


def test_what_the_server_never_changes_is_refused_and_nothing_is_changed(shell, stream, declare, told_of):
    declare()
    shell.natty("stream", "apply", "-f", "streams.toml")
    declare(max_msgs=2000, more='storage = "memory"')
    refused = shell.natty("stream", "apply", "-f", "streams.toml", "--allow-destructive", "--force")
    assert refused.status == 1
    assert "storage is 'file', wanted 'memory' (fixed: the server never changes it)" in refused.complaint
    assert told_of()["max_msgs"] == 1000


def test_what_is_wrong_in_the_file_is_told_with_its_path(shell, stream, declare):
    declare(more="max_mgs = 5")
    refused = shell.natty("stream", "apply", "-f", "streams.toml")
    assert refused.status == 1
    said = f"natty: streams.toml: streams.{stream}: there is no setting max_mgs; did you mean max_msgs"
    assert refused.complaint.startswith(said)


def test_streams_are_listed_shown_and_deleted(shell, make_stream, natty_name):
    stream = make_stream(natty_name("LISTED"), 7)
    listed = json.loads(shell.natty("stream", "ls", "--json").out)
    assert [one["state"]["messages"] for one in listed if one["config"]["name"] == stream] == [7]
    (line,) = [line for line in shell.natty("stream", "ls").out.splitlines() if f" {stream} " in line]
    assert line.split()[1:3] == [f"{stream}.*", "7"]
    assert json.loads(shell.natty("stream", "info", stream, "--json").out)["config"]["name"] == stream

    nobody = shell.natty("stream", "rm", stream)
    assert nobody.status == 1
    assert nobody.complaint == (
        f"natty: Delete stream {stream} with 7 messages? There is no terminal to ask on: give --force"
    )
    assert on_a_terminal(shell, b"n\n", "stream", "rm", stream).complaint == "natty: aborted"
    assert shell.natty("stream", "rm", stream, "--force").out == f"deleted {stream}\n"
    gone = shell.natty("stream", "rm", stream, "--force")
    assert gone.status == 1
    assert f"there is no stream {stream}" in gone.complaint
