import json
import signal
import time

import pytest
from electing import vacated
from patient import PATIENCE

BUCKET = "cli_leaders"
LEASE = 30.0  # seconds: no stall ends it
WITHIN = PATIENCE + LEASE  # seconds: a leader that stalled when it left has given nothing back


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def name(served, natty_name):
    return served(lambda natty: vacated(natty, natty_name("job"), BUCKET))


def lead(shell, name, *command, node="one", **options):
    return shell.start(
        "natty",
        "leader",
        "run",
        name,
        "--bucket",
        BUCKET,
        "--lease",
        str(LEASE),
        "--node-name",
        node,
        "--",
        *command,
        **options,
    )


def until(condition, within=WITHIN):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_program_runs_while_leader_and_its_status_is_kept(shell, name):
    done = shell.finish(lead(shell, name, "sh", "-c", "echo token $NATTY_TOKEN term $NATTY_TERM; exit 7"), WITHIN)
    assert (done.status, done.err) == (7, "")
    words = done.out.split()
    assert words[0] == "token"
    assert int(words[1]) > 0
    assert int(words[3]) > 1_700_000_000_000
    missing = shell.finish(lead(shell, name, "no-such-program"), WITHIN)
    assert missing.status == 127
    assert missing.complaint == "there is no program no-such-program"


def test_a_second_program_waits_for_the_first_and_signals_are_passed_on(shell, name, tmp_path):
    began = tmp_path / "began"
    loop = f"trap 'exit 5' USR1; touch {began}; while :; do sleep 0.05; done"
    first = lead(shell, name, "sh", "-c", loop)
    until(began.exists)
    late = shell.natty("leader", "run", name, "--bucket", BUCKET, "--wait", "0.5", "--", "true")
    assert late.status == 1
    assert late.complaint == f"natty: one leads {name}; not elected within 0.5 s"
    second = lead(shell, name, "echo", "second", node="two")
    shown = shell.natty("leader", "show", name, "--bucket", BUCKET)
    assert shown.out == f"one leads {name}\n"
    first.send_signal(signal.SIGUSR1)
    assert shell.finish(first).status == 5
    done = shell.finish(second, WITHIN)
    assert (done.status, done.out) == (0, "second\n")
    began.unlink()
    third = lead(shell, name, "sh", "-c", f"touch {began}; exec sleep 600")
    until(began.exists)
    third.send_signal(signal.SIGTERM)
    assert shell.finish(third).status == 128 + signal.SIGTERM


def test_a_leader_is_asked_to_step_down_and_its_program_ends(shell, name, tmp_path):
    began = tmp_path / "began"
    first = lead(shell, name, "sh", "-c", f"touch {began}; exec sleep 600")
    until(began.exists)
    watching = shell.start("natty", "leader", "watch", name, "--bucket", BUCKET, "--json", PYTHONUNBUFFERED="1")
    seen = json.loads(watching.stdout.readline())
    assert (seen["node"], seen["election"]) == ("one", name)
    assert shell.natty("leader", "step-down", name, "--bucket", BUCKET).out == "asked one to step down\n"
    done = shell.finish(first)
    assert done.status == 75
    assert done.complaint == f"natty: sh was stopped: one does not lead '{name}' any more: step_down"
    assert json.loads(watching.stdout.readline())["node"] == ""
    watching.send_signal(signal.SIGINT)
    assert shell.finish(watching).status == 130
    nobody = f"no node leads {name}\n"
    until(lambda: shell.natty("leader", "step-down", name, "--bucket", BUCKET).out == nobody, within=4 * LEASE)
    told = shell.natty("leader", "show", name, "--bucket", BUCKET, "--terms", "5")
    assert told.out.startswith(f"no node leads {name}\n")
    assert f"one, token {seen['token']}: step_down after" in told.out
    listed = json.loads(shell.natty("leader", "ls", "--bucket", BUCKET, "--json").out)
    assert {"election": name, "node": "", "token": 0, "term": 0, "since": "", "lease": 0.0} in listed
    notes = json.loads(shell.natty("leader", "show", name, "--bucket", BUCKET, "--terms", "5", "--json").out)["terms"]
    assert [note["reason"] for note in notes] == ["step_down"]


def test_bad_options_are_told_in_a_sentence(shell, name):
    refused = shell.natty("leader", "run", name, "--lease", "0.1", "--", "true")
    assert (refused.status, "too short" in refused.complaint) == (1, True)
    assert shell.natty("leader", "ls", "--bucket", "none_here").out == "bucket none_here never had an election\n"


def test_an_election_that_never_was_is_told_with_the_nearest_name(shell, name, tmp_path):
    assert shell.finish(lead(shell, name, "true"), WITHIN).status == 0
    for command in ("show", "step-down"):
        told = shell.natty("leader", command, f"{name}x", "--bucket", BUCKET)
        assert (told.status, told.out) == (1, "")
        assert told.complaint.startswith(f"natty: bucket {BUCKET}: there is no election {name}x; did you mean ")
        assert name in told.complaint
    missing = shell.natty("leader", "show", "anything", "--bucket", "none_here")
    assert missing.complaint == "natty: bucket none_here: there is no election anything, nor any other"
