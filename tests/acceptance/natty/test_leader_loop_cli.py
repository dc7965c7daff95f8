"""`natty leader run --every` and `--cron`: programs that run again and again, as processes that are killed."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from commands import the_line
from electing import vacated
from patient import PATIENCE

from natty.elections.work_loop import LAST_RUN

BUCKET = "cli_loops"
LEASE = 30.0  # seconds: no stall ends it
YEARLY = "0 0 1 1 *"


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def name(served, natty_name):
    return served(lambda natty: vacated(natty, natty_name("job"), BUCKET))


@pytest.fixture
def keep(served, name):
    """Return a function that keeps these bytes as the record of the last success."""

    def keep(record):
        async def commit(natty):
            async with natty.leader(name, bucket=BUCKET, lease=LEASE) as term:
                await term.commit(LAST_RUN, record)

        served(commit)

    return keep


@pytest.fixture
def missed(keep):
    """Keep that the work last succeeded in 1970: each time of an expression since then was missed."""
    keep(b'{"slot": 0, "node": "nobody"}')


def lead(shell, name, *options, script, node="one", lease=LEASE):
    given = ["--bucket", BUCKET, "--lease", str(lease), "--node-name", node, *options]
    return shell.start("natty", "leader", "run", name, *given, "--", "sh", "-c", script, PYTHONUNBUFFERED="1")


def until(condition, within=PATIENCE + LEASE):
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def kept(served, name):
    """Return the time of the last success that is kept, and the node that ran the work."""

    async def read(natty):
        last = await natty.election(name, bucket=BUCKET).last_commit(LAST_RUN)
        found = json.loads(last.data)
        return found["slot"], found["node"]

    return served(read)


def shown(shell, name, *options):
    return shell.natty("leader", "show", name, "--bucket", BUCKET, *options).out


def catches(process, number):
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


def leads(shell, name, node):
    return shown(shell, name).startswith(f"{node} leads {name}\n")


def heard(process, text):
    """Wait until a process has written this text to standard error; return what it has written."""
    os.set_blocking(process.stderr.fileno(), False)
    written = b""

    def look():
        nonlocal written
        try:
            written += os.read(process.stderr.fileno(), 65536)
        except BlockingIOError:
            return False
        assert process.poll() is None or text in written.decode(), written.decode()
        return text in written.decode()

    until(look)
    return written.decode()


def test_a_program_runs_again_and_again_and_a_failed_run_is_a_line_and_no_traceback(shell, name, tmp_path):
    runs = tmp_path / "runs"
    count = f"$(wc -l < {runs})"
    script = f"echo $NATTY_TOKEN >> {runs}; [ {count} -gt 2 ] || exit 3; [ {count} -lt 5 ] || exec sleep 600"
    leader = lead(shell, name, "--every", "50ms", script=script)
    until(lambda: len(lines(runs)) == 5)
    leader.send_signal(signal.SIGTERM)
    done = shell.finish(leader)
    assert done.status == 128 + signal.SIGTERM
    assert len(set(lines(runs))) == 1  # one term
    said = [line.partition("natty.leader: ")[2] for line in done.err.splitlines() if "ERROR" in line]
    assert said == [
        f"the work of {name!r} failed once, and runs again in 50ms: sh exited with status 3",
        f"the work of {name!r} failed 2 times in a row, and runs again in 100ms: sh exited with status 3",
    ]


def test_a_signal_between_two_runs_ends_it_and_the_next_node_leads_at_once(shell, served, name, missed, tmp_path):
    first = lead(shell, name, "--cron", "@yearly", script="true", node="one")
    until(lambda: kept(served, name)[0] > 0)  # its program has ended, and runs again next year
    began = tmp_path / "began"
    second = lead(
        shell, name, "--every", "1h", script=f"trap 'exit 0' TERM; touch {began}; while :; do sleep 0.05; done"
    )
    first.send_signal(signal.SIGTERM)
    assert shell.finish(first).status == 128 + signal.SIGTERM
    until(began.exists)
    second.send_signal(signal.SIGTERM)  # passed on: the last run's status is that of the command
    done = shell.finish(second)
    assert (done.status, "\nnatty" in done.err, "ERROR" in done.err) == (0, False, False), done.err


@pytest.mark.parametrize("options", [[], ["--every", "1h"]])
def test_a_signal_that_finds_no_program_does_not_kill_the_next_one(shell, name, options, tmp_path):
    runs = tmp_path / "runs"
    first = lead(shell, name, script=f"echo one >> {runs}; exec sleep 600", node="one")
    until(lambda: lines(runs) == ["one"])
    second = lead(shell, name, *options, script=f"echo two >> {runs}", node="two")
    until(lambda: catches(second, signal.SIGUSR1))
    second.send_signal(signal.SIGUSR1)
    first.send_signal(signal.SIGTERM)
    shell.finish(first)
    until(lambda: lines(runs) == ["one", "two"])
    if options:
        second.send_signal(signal.SIGTERM)
    done = shell.finish(second)
    assert done.status in ({0, 128 + signal.SIGTERM} if options else {0}), done.err
    assert "failed" not in done.err


def test_after_a_signal_to_end_there_is_no_other_run_though_the_term_ends_before_the_program(shell, name, tmp_path):
    runs = tmp_path / "runs"
    script = f"trap '' TERM; echo $NATTY_TOKEN >> {runs}; sleep 600"
    node = lead(shell, name, "--every", "1s", script=script, lease=8.0)
    until(lambda: lines(runs))
    node.send_signal(signal.SIGTERM)
    shell.natty("leader", "step-down", name, "--bucket", BUCKET)
    done = shell.finish(node)  # another run would never end
    assert done.status == 75
    assert the_line(done.err) == f"natty: sh was stopped: one does not lead {name!r} any more"


def test_a_node_that_is_killed_in_the_middle_of_a_run_is_made_up_for_once(shell, served, name, missed, tmp_path):
    runs, go_on = tmp_path / "runs", tmp_path / "go_on"
    script = f"echo begin >> {runs}; test -e {go_on} || exec sleep 600; echo end >> {runs}"
    first = lead(shell, name, "--cron", YEARLY, script=script, node="one", lease=3.0)
    until(lambda: lines(runs))
    second = lead(shell, name, "--cron", YEARLY, script=script, node="two", lease=3.0)
    first.kill()
    shell.finish(first)
    go_on.touch()
    until(lambda: lines(runs)[-1] == "end")
    until(lambda: kept(served, name)[0] > 0)
    assert kept(served, name)[1] == "two"
    assert lines(runs).count("end") == 1
    second.send_signal(signal.SIGTERM)
    shell.finish(second)
    third = lead(shell, name, "--cron", YEARLY, script=script, node="three", lease=3.0)
    until(lambda: leads(shell, name, "three"))
    time.sleep(1.0)  # it would begin at once
    third.send_signal(signal.SIGTERM)
    assert shell.finish(third).status == 128 + signal.SIGTERM
    assert lines(runs).count("end") == 1


def test_a_leader_that_is_asked_to_step_down_stops_its_program_and_stays_a_candidate(
    shell, served, name, missed, tmp_path
):
    runs = tmp_path / "runs"
    first = lead(shell, name, "--cron", YEARLY, script=f"echo one >> {runs}; exec sleep 600", node="one")
    until(lambda: lines(runs) == ["one"])
    second = lead(shell, name, "--cron", YEARLY, script=f"echo two >> {runs}", node="two")
    until(lambda: shell.natty("leader", "step-down", name, "--bucket", BUCKET, "--to", "two").status == 0)
    until(lambda: lines(runs) == ["one", "two"])
    until(lambda: kept(served, name)[1] == "two")
    assert first.poll() is None
    for process in (second, first):
        process.send_signal(signal.SIGTERM)
    done = shell.finish(first)
    assert done.status == 128 + signal.SIGTERM
    assert the_line(done.err) == f"natty: sh was stopped: one does not lead '{name}' any more; it stays a candidate"


@pytest.fixture
def frozen(shell, name, missed, tmp_path):
    """Return a leader that was frozen in the middle of a run until another node had taken over."""

    def freeze(*options):
        began, stopped, taken = (tmp_path / one for one in ("began", "stopped", "taken"))
        script = f"trap 'touch {stopped}; exit 0' TERM; touch {began}; while :; do sleep 0.05; done"
        first = lead(shell, name, *options, script=script, node="one", lease=3.0)
        until(began.exists)
        second = lead(shell, name, script=f"touch {taken}", node="two", lease=3.0)
        first.send_signal(signal.SIGSTOP)
        until(lambda: stopped.exists() and taken.exists())
        shell.finish(second)
        first.send_signal(signal.SIGCONT)
        return first

    return freeze


def test_a_leader_that_was_frozen_says_that_its_program_was_stopped(shell, name, frozen):
    leader = frozen("--cron", YEARLY)
    heard(leader, f"natty: sh was stopped: one does not lead '{name}' any more; it stays a candidate\n")
    leader.send_signal(signal.SIGTERM)
    shell.finish(leader)


def test_a_leader_that_was_frozen_ends_as_one_that_lost_its_office(shell, name, frozen):
    done = shell.finish(frozen())
    assert done.status == 75
    assert done.err.splitlines()[-1].startswith(f"natty: sh was stopped: one does not lead '{name}' any more")


@pytest.mark.parametrize(
    ("record", "level", "said"),
    [
        (None, "INFO", "no last success of {name!r} is known, so no run counts as missed: the next one is at "),
        (b"garbage", "WARNING", "the last success of {name!r} can't be read, so no run counts as missed: "),
        (3600.0, "WARNING", "which is ahead of this node's clock: it runs again at "),
        (10 * 3600.0, "WARNING", "which is hours ahead of this node's clock: continuing from now"),
    ],
)
def test_a_leader_says_from_when_on_runs_are_made_up_for(shell, name, keep, record, level, said):
    if isinstance(record, float):  # a node whose clock was so far ahead ran the work
        record = json.dumps({"slot": time.time() + record, "node": "ahead"}).encode()
    if record:
        keep(record)
    leader = lead(shell, name, "--cron", "* * * * *", script="exit 0")
    lines = heard(leader, said.format(name=name)).splitlines()
    leader.send_signal(signal.SIGTERM)
    shell.finish(leader)
    assert f" {level} " in next(line for line in lines if said.format(name=name) in line)


def test_the_level_of_the_log_may_be_given(shell, name, keep):
    keep(b"garbage")
    leader = lead(shell, name, "--cron", YEARLY, "--log-level", "error", script="exit 0")
    until(lambda: leads(shell, name, "one"))
    leader.send_signal(signal.SIGTERM)
    assert shell.finish(leader).err == ""


def test_the_last_success_is_shown(shell, served, name, missed):
    leader = lead(shell, name, "--cron", YEARLY, script="exit 0")
    until(lambda: kept(served, name)[1] == "one")
    leader.send_signal(signal.SIGTERM)
    shell.finish(leader)
    year = time.gmtime(kept(served, name)[0]).tm_year
    assert f"\n  last success: the run of {year}-01-01T00:00:00Z, by one\n" in shown(shell, name)
    success = json.loads(shown(shell, name, "--json"))["last_success"]
    assert success == {"time": f"{year}-01-01T00:00:00Z", "node": "one"}


def test_an_election_without_a_success_shows_none(shell, served, name):
    leader = lead(shell, name, "--cron", YEARLY, script="exit 0")
    heard(leader, "no last success")
    assert shown(shell, name) == f"one leads {name}\n"
    assert json.loads(shown(shell, name, "--json"))["last_success"] is None
    leader.send_signal(signal.SIGTERM)
    shell.finish(leader)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--every", "5m", "--cron", YEARLY], 1, "natty: --every and --cron exclude each other; give one"),
        (["--cron", "0 3 * * * *"], 1, "natty: '0 3 * * * *' is not a cron expression (minute hour day month weekday)"),
        (["--cron", YEARLY, "--timezone", "Mars"], 1, "natty: there is no time zone 'Mars' here; write one such as"),
        (["--timezone", "Europe/Berlin"], 1, "natty: --timezone has no effect without --cron"),
        (["--every", "soon"], 2, "'soon' is not a duration; write 30s, 1h30m or 7d"),
    ],
)
def test_bad_options_are_told_in_a_sentence(shell, name, options, status, said):
    refused = shell.natty("leader", "run", name, "--bucket", BUCKET, *options, "--", "true")
    assert (refused.status, said in refused.err, "Traceback" in refused.err) == (status, True, False), refused.err


def test_a_program_that_does_not_exist_makes_no_candidate_that_repeats_it(shell, name):
    refused = shell.natty("leader", "run", name, "--bucket", BUCKET, "--every", "5m", "--", "no-such-program")
    assert (refused.status, refused.complaint) == (1, "natty: there is no program no-such-program")


def test_a_run_during_which_the_bucket_is_deleted_is_not_made_up_for_and_the_log_says_so(shell, served, name, tmp_path):
    bucket, runs, stopped = f"deleted_{name}", tmp_path / "runs", tmp_path / "stopped"

    async def miss(natty):
        async with natty.leader(name, bucket=bucket, lease=3.0) as term:
            await term.commit(LAST_RUN, b'{"slot": 0, "node": "nobody"}')

    served(miss)
    script = f"trap 'touch {stopped}; exit 1' TERM; echo run >> {runs}; while :; do sleep 0.05; done"
    leader = lead(shell, name, "--cron", YEARLY, "--bucket", bucket, script=script, lease=3.0)
    until(lambda: lines(runs))
    assert shell.natty("kv", "del", bucket, "--force").status == 0
    until(stopped.exists)
    said = heard(leader, f"no last success of {name!r} is known, so no run counts as missed")
    assert f"natty: sh was stopped: one does not lead {name!r} any more; it stays a candidate" in said
    leader.send_signal(signal.SIGTERM)
    shell.finish(leader)
    assert lines(runs) == ["run"]
