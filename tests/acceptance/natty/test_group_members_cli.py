import asyncio
import json
import signal
import subprocess
import sys

import pytest
from go_groups import ELASTIC, Go
from group_members import make, publish
from patient import PATIENCE


@pytest.fixture
async def group(natty, natty_name):
    group = await make(natty, natty_name("GROUP"), members=["m1"])
    await publish(natty, group.stream, range(2))
    return group


def lines(process, count):
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_a_member_reads_until_it_is_stopped(shell, group):
    process = shell.start(
        "natty", "group", "elastic", "consume", group.stream, "g", "m1", "--sleep", "1ms", "--ack-wait", "30s"
    )
    read = lines(process, 16)
    process.send_signal(signal.SIGTERM)
    done = shell.finish(process)
    assert done.status == 0, done.err
    assert {one["member"] for one in read} == {"m1"}
    assert {one["subject"] for one in read} == {f"{group.stream}.k{key}" for key in range(8)}


async def test_a_member_whose_group_was_changed_in_what_never_may_ends_with_status_1_and_says_why(shell, natty, group):
    process = shell.start("natty", "group", "elastic", "consume", group.stream, "g", "m1", "--ack-wait", "30s")
    await asyncio.to_thread(lines, process, 16)
    value, _, _ = await Go(natty).get(ELASTIC, group.key)
    await Go(natty).put(ELASTIC, group.key, value.replace(b'"max_members":4', b'"max_members":5'))
    done = await asyncio.to_thread(shell.finish, process)
    assert done.status == 1
    assert "fixed settings of group g of" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_lag_and_watch_show_what_waits_and_whose_it_is(shell, group):
    rows = json.loads(shell.natty("group", "elastic", "lag", group.stream, "g", "--json").out)
    assert sum(row["lag"] for row in rows) == 16
    assert {row["member"] for row in rows} == {"m1"}
    look = shell.natty("group", "elastic", "watch", group.stream, "g", "--json", "--count", "1")
    (member,) = json.loads(look.out)["members"]
    assert (member["member"], member["lag"], member["pinned"]) == ("m1", 16, "")
    assert "none" in shell.natty("group", "elastic", "watch", group.stream, "g", "--count", "1").out


def test_an_automatic_member_takes_its_share(shell, group):
    process = shell.start("natty", "group", "elastic", "auto", group.stream, "g", "--sleep", "1ms", "--ack-wait", "30s")
    (first,) = lines(process, 1)
    process.send_signal(signal.SIGTERM)
    done = shell.finish(process)
    assert done.status == 0, done.err
    assert first["member"].startswith("auto-")


def test_the_prompt_runs_commands_and_goes_on_after_an_error(shell, group):
    typed = f"help\nlag {group.stream} none\nls {group.stream}\nstatic\nnonsense\nexit\n"
    command = [sys.executable, "-m", "natty", "group", "elastic", "prompt", "--inbox-prefix", "_P"]
    done = subprocess.run(
        command, env=shell.environment, input=typed, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"there is no elastic group none of stream {group.stream}" in done.stderr
    assert "g" in done.stdout.splitlines()
    assert "[static]> " in done.stderr
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [["consume", "S", "none", "m1"], ["lag", "S", "none"], ["watch", "S", "none"]])
def test_a_group_that_is_not_there_is_told_in_one_sentence(shell, words):
    done = shell.natty("group", "elastic", *words)
    assert done.status == 1
    assert done.err.startswith("natty: there is no ")
    assert "Traceback" not in done.err
