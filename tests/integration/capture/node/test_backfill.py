"""`capture backfill`: a range of an old stream, by several processes, which can be interrupted."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from patient import PATIENCE
from workers import parents

from capture.config.load import load
from capture.maintenance.sweep import read_entries
from capture.reading.remaining import ArchivePosition
from capture.stores import open_store
from capture.verification.check import archive_picture, check

FEW = 10  # messages
SMALL = 100_000  # messages: more than one chunk
SETTINGS = {"limits__max_age": 0.5, "limits__max_messages": 5000}


@pytest.fixture
async def few(fleet):
    """A fleet whose stream allows direct gets and has a few messages that nobody has captured."""
    await fleet.natty.ensure_stream(fleet.stream, subjects=[f"{fleet.stream}.*"], allow_direct=True)
    await fleet.publish(numbers(FEW))
    return fleet


@pytest.fixture
async def old(few):
    """The same fleet, with so many messages that a run takes a while."""
    await few.publish(numbers(SMALL)[FEW:])
    return few


def numbers(count):
    return [json.dumps({"n": number}).encode() for number in range(count)]


class Backfill:
    """A run of the command."""

    def __init__(self, fleet, config, *options):
        command = [sys.executable, "-m", "capture", "--log-level", "info", "backfill", fleet.stream, "--config", config]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("CAPTURE_", "NATS_"))}
        self.process = subprocess.Popen(
            [*map(str, command), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )
        fleet.started.append(self.process)

    async def end(self):
        """Return the exit status, what it printed, and what it logged."""
        out, err = await asyncio.to_thread(self.process.communicate, timeout=2 * PATIENCE)
        return self.process.returncode, out, err


def children(process):
    return [pid for pid, parent in sorted(parents().items()) if parent == process]


async def count_remaining(fleet, config):
    store = open_store(str(fleet.store))
    return len((await ArchivePosition(fleet.natty, load(config), store).read()).unread)


async def list_blocks(fleet, config):
    """Return all blocks, adopted or not."""
    store = open_store(str(fleet.store))
    entries, _ = await read_entries(store)
    picture = await archive_picture(fleet.natty, load(config), store)
    return [*picture.blocks, *picture.list_unadopted(entries)]


async def verify(fleet, config, count):
    verdict = await check(fleet.natty, load(config), open_store(str(fleet.store)), deep=True)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == count
    assert verdict.as_dict()["remaining"] == 0


@pytest.mark.long
async def test_two_workers_read_an_old_stream_in_disjoint_parts_and_following_takes_over(old):
    config = old.configure(**SETTINGS, source="direct")
    status, out, err = await Backfill(old, config, "--workers", "2").end()
    assert status == 0, err
    assert out.startswith(f"stored {SMALL:,} messages of stream {old.stream} (1–{SMALL:,}) in ")
    blocks = await list_blocks(old, config)
    assert len({block.node for block in blocks}) == 2
    assert sum(block.count for block in blocks) == SMALL  # none twice
    node = old.start("node", config)
    await old.publish([b"{}"] * 10)
    async with asyncio.timeout(PATIENCE):
        while await count_remaining(old, config):
            await asyncio.sleep(0.1)
    assert await old.stop(node) == 0
    assert "10 messages in" in old.log("node").read_text()
    await verify(old, config, SMALL + 10)


@pytest.mark.long
async def test_a_killed_backfill_continues_with_what_is_missing(old):
    config = old.configure(**SETTINGS, source="direct")
    run = Backfill(old, config, "--workers", "2")
    async with asyncio.timeout(PATIENCE):
        while not 0 < await count_remaining(old, config) < SMALL:
            await asyncio.sleep(0.02)
    for pid in [run.process.pid, *children(run.process.pid)]:
        os.kill(pid, signal.SIGKILL)
    await run.end()
    left = await count_remaining(old, config)
    assert 0 < left < SMALL
    status, out, err = await Backfill(old, config).end()
    assert status == 0, err
    assert out.startswith(f"stored {left:,} messages of stream {old.stream} ")
    assert f"; {SMALL - left:,} were stored before" in out
    await verify(old, config, SMALL)
    status, out, err = await Backfill(old, config).end()
    assert (status, out.split(" ")[1]) == (0, "0"), err


@pytest.mark.long
async def test_a_worker_that_is_killed_starts_again(old):
    config = old.configure(**SETTINGS, source="direct")
    run = Backfill(old, config, "--workers", "2")
    async with asyncio.timeout(PATIENCE):
        while not 0 < await count_remaining(old, config) < SMALL:
            await asyncio.sleep(0.02)
    os.kill(children(run.process.pid)[0], signal.SIGKILL)
    status, _, err = await run.end()
    assert status == 0, err
    assert "was ended by SIGKILL; it starts again" in err
    await verify(old, config, SMALL)


@pytest.mark.long
async def test_a_stopped_backfill_says_what_is_left(old):
    config = old.configure(**SETTINGS, source="direct")
    run = Backfill(old, config, "--workers", "2")
    async with asyncio.timeout(PATIENCE):
        while not 0 < await count_remaining(old, config) < SMALL:
            await asyncio.sleep(0.02)
    run.process.send_signal(signal.SIGTERM)
    status, out, err = await run.end()
    left = await count_remaining(old, config)
    assert left > 0
    assert (status, out) == (1, "")
    assert f"{left:,} messages of stream {old.stream} (1–{SMALL:,}) are not stored yet" in err
    assert "run the command again, it reads only these" in err


@pytest.mark.long
async def test_a_range_is_read_beside_a_consumer_and_only_that(old):
    config = old.configure(**SETTINGS, start="new")  # source = "consumer"
    node = old.start("node", config)
    await old.said("node", "through consumer capture")
    await old.publish([b"{}"] * 10)
    await old.until_all_acked(SMALL + 10)
    message = await old.natty.jetstream.request(f"STREAM.MSG.GET.{old.stream}", {"seq": 2001})
    status, out, err = await Backfill(old, config, "--from", "1001", "--to", message["message"]["time"]).end()
    assert status == 0, err
    last = int(out.partition("–")[2].partition(")")[0].replace(",", ""))
    assert 1001 <= last <= 2001
    assert out.startswith(f"stored {last - 1000:,} messages of stream {old.stream} (1,001–{last:,})")
    assert await old.stop(node) == 0
    verdict = await check(old.natty, load(config), open_store(str(old.store)), deep=True)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == last - 1000 + 10


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        ({}, ["--from", "200000"], f"has no message from 200000 to its end: it ends at {FEW}"),
        pytest.param(
            {},
            ["--from", "yesterday"],
            "--from must be a sequence from 1 on, or a time with its zone",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {},
            ["--to", "2020-01-01"],
            "--to must be a sequence from 1 on, or a time with its zone",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {},
            ["--from", "9" * 5000],
            "--from must be a sequence from 1 on, or a time with its zone",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {}, ["--from", "-5"], "--from must be a sequence from 1 on, or a time with its zone", marks=pytest.mark.long
        ),
        ({}, ["--from", "2026-11-24T00:00:00+99:00"], "--from must be a sequence from 1 on, or a time with its zone"),
        pytest.param({}, ["--from", "10", "--to", "5"], f"it ends at {FEW}", marks=pytest.mark.long),
        pytest.param(
            {},
            ["--to", "2020-01-01T00:00:00Z"],
            "has no message from 1 to 2020-01-01T00:00:00Z",
            marks=pytest.mark.long,
        ),
        ({"filter_subjects": ["a.b"]}, [], "can't be used with filter_subjects"),
    ],
)
async def test_a_wrong_range_is_an_error_in_a_sentence(few, settings, options, sentence):
    status, out, err = await Backfill(few, few.configure(**settings), *options).end()
    assert (status, out) == (1, "")
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.long
async def test_backfills_of_different_ranges_do_not_wait_for_each_other(old):
    config = old.configure(**SETTINGS)
    half = SMALL // 2
    runs = [Backfill(old, config, "--to", str(half)), Backfill(old, config, "--from", str(half + 1))]
    assert [(await run.end())[0] for run in runs] == [0, 0]
    assert await count_remaining(old, config) == 0
