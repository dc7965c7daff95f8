"""`capture restore` as a process: the plan, the deed, and one sentence for what goes wrong."""

import json
import signal
import sys
import time

import pytest
from patient import PATIENCE
from restoring import Capturing, dumped, send

from capture.restoring.uptake import MARK
from natty.config.units import parse_time, show_time

COUNT = 20


@pytest.fixture
def shell(quick_shell):
    return quick_shell


@pytest.fixture
def captured(served, natty_name, tmp_path):
    """A stream in an archive; it is deleted from the server."""
    name = natty_name("restorecli")

    async def work(natty):
        await natty.ensure_stream(name, subjects=[f"{name}.*"])
        captured = Capturing(natty, name, tmp_path)
        for number in range(COUNT):
            await send(natty, f"{name}.{number % 2}", b"%d" % number)
        await natty.jetstream.request(f"STREAM.MSG.DELETE.{name}", {"seq": 5})
        await captured.capture()
        captured.before = await dumped(natty, name)
        await natty.delete_stream(name)
        return captured

    return served(work)


def stream_of(served, name):
    return served(lambda natty: dumped(natty, name))


def names_of(served):
    return served(lambda natty: natty.jetstream.request("STREAM.NAMES"))["streams"] or []


def test_the_plan_is_told_then_the_stream_is_there_and_a_second_time_it_is_refused(shell, served, captured):
    name, archive = captured.stream, captured.config.store
    planned = shell.capture("restore", archive, "--dry-run")
    assert (planned.status, planned.err) == (0, "")
    assert f"19 messages of {name}, about " in planned.out
    assert "gaps: 1 sequence (5)" in planned.out
    assert "not restored: the stream's time of creation" in planned.out
    assert "estimated time: at least 1 s, with idle machines and a store in the same network" in planned.out
    assert name not in names_of(served)
    done = shell.capture("restore", archive, "--json")
    told = json.loads(done.out)
    assert (told["messages"], told["gap_runs"], told["exact"], told["restored"]["kept"]) == (19, [[5, 5]], True, 19)
    assert stream_of(served, name) == captured.before
    again = shell.capture("restore", archive)
    assert again.status == 1
    assert again.complaint.startswith(f"capture: there is a stream {name}, and an existing stream is never touched")
    copied = shell.capture("restore", archive, "--as", f"{name}_copy", "--detached", "--subject", f"{name}.1")
    assert copied.status == 0, copied.err
    assert len(stream_of(served, f"{name}_copy")[1]) == 10
    replayed = shell.capture("restore", archive, "--replay", f"{name}_copy", "--pace", "max")
    assert replayed.status == 1
    assert "no stream takes" in replayed.complaint


@pytest.mark.parametrize(
    ("arguments", "first", "last", "messages", "consumers"),
    [
        (["--to-sequence", "7"], 1, 7, 6, ["capture"]),
        (["--from", "8"], 8, 20, 13, ["capture"]),
        (["--from", "2020-01-01T00:00:00Z", "--all"], 1, 20, 19, ["capture"]),
        (["--at", "2100-01-01T00:00:00Z", "--subject", "*.0"], 1, 20, 9, ["capture"]),
        (["--no-consumers"], 1, 20, 19, []),
        (["--consumers", "--as", "copied"], 1, 20, 19, ["capture"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_option_reaches_the_plan(shell, captured, arguments, first, last, messages, consumers):
    planned = shell.capture("restore", captured.config.store, "--dry-run", "--json", *arguments)
    plan = json.loads(planned.out)
    assert (plan["first"], plan["last"], plan["messages"], plan["consumers"]) == (first, last, messages, consumers)
    assert plan["name"] == ("copied" if "--as" in arguments else captured.stream)
    assert (plan["restored"], plan["seconds_expected"] >= 0) == (None, True)


def test_the_message_of_exactly_that_nanosecond_is_restored_and_read(shell, captured):
    times = {sequence: one["time"] for sequence, one in captured.before[1].items()}
    archive = captured.config.store
    plan = json.loads(shell.capture("restore", archive, "--dry-run", "--json", "--at", times[9]).out)
    assert (plan["last"], plan["messages"]) == (9, 8)  # 5 is deleted
    plan = json.loads(shell.capture("restore", archive, "--dry-run", "--json", "--from", times[9]).out)
    assert (plan["first"], plan["messages"]) == (9, 12)
    nearly = show_time(parse_time(times[9]) + 1)
    read = shell.capture("cat", archive, "--since", times[9], "--until", nearly).out.splitlines()
    assert [json.loads(line)["sequence"] for line in read] == [9]
    assert shell.capture("cat", archive, "--since", nearly, "--until", times[10]).out == ""


def test_replicas_that_there_are_not_are_refused_and_a_replay_keeps_its_pace(shell, served, captured, natty_name):
    refused = shell.capture("restore", captured.config.store, "--replicas", "3")
    assert refused.status == 1
    assert "replicas" in refused.complaint
    assert captured.stream not in names_of(served)
    again = natty_name("again")
    served(lambda natty: natty.ensure_stream(again, subjects=[f"{again}.>"]))
    done = shell.capture("restore", captured.config.store, "--replay", again, "--pace", "0.5")
    assert done.status == 0, done.err
    found = [parse_time(one["time"]) for one in stream_of(served, again)[1].values()]
    were = [parse_time(one["time"]) for one in captured.before[1].values()]
    assert len(found) == len(were)
    assert found[-1] - found[0] >= 2 * (were[-1] - were[0]) - 50_000_000  # when the first was stored is not exact


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["nowhere"], 1, "there is no archive in"),
        (["{archive}", "--at", "yesterday"], 2, "'yesterday' is not a time"),
        (["{archive}", "--at", "2026-11-21T06:00:00.1234567891Z"], 2, "at most nine decimals of a second"),
        (["{archive}", "--subject", "other.>"], 1, "matches the request"),
        (["--from", "10", "--to-sequence", "5"], 2, "--from 10 is after --to-sequence 5"),
        (["--from", "2026-11-22T00:00:01Z", "--at", "2026-11-22T00:00:00Z"], 2, "--from is after --at"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_ends_in_a_sentence(shell, captured, arguments, status, sentence):
    done = shell.capture("restore", *(one.format(archive=captured.config.store) for one in arguments))
    assert done.status == status
    assert sentence in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


def test_a_restore_that_is_killed_leaves_a_stream_that_takes_nothing_and_the_next_one_begins_anew(
    shell, served, captured
):
    name = captured.stream
    slowly = (
        "import asyncio, sys\n"
        "from capture.restoring import pick, rebuild\n"
        "async def slow(*given, **options):\n"
        "    async for table in pick.rows_of(*given, **options):\n"
        "        yield table.slice(0, 1)\n"
        "        await asyncio.sleep(3600)\n"
        "rebuild.rows_of = slow\n"
        "from capture.cli import main\n"
        "main()\n"
    )
    process = shell.execute([sys.executable, "-c", slowly, "restore", captured.config.store])
    deadline = time.monotonic() + PATIENCE
    while name not in names_of(served):
        assert time.monotonic() < deadline, "the restore did not begin"
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    refused = shell.capture("restore", captured.config.store)
    assert refused.status == 1
    assert "--again" in refused.complaint

    async def publish(natty):
        config = (await natty.jetstream.request(f"STREAM.INFO.{name}"))["config"]
        assert MARK in config["metadata"]
        with pytest.raises(Exception, match="no subscriber on"):
            await natty.connection.request(f"{name}.1", b"x")

    served(publish)
    while (done := shell.capture("restore", captured.config.store, "--again")).status:  # the server still waits for it
        assert time.monotonic() < deadline, done.err
    assert stream_of(served, name) == captured.before
