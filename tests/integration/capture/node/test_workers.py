"""`capture run --workers`: processes that share the work, under one supervisor."""

import asyncio
import json
import os
import re
import signal

import pytest
from group_members import partitioned
from patient import FILLING, NEVER, PATIENCE
from workers import Workers, alive

from capture.config.load import load
from capture.config.streams import each
from capture.ingest.board import Board
from capture.node.supervisor import LEAVE_WITHIN
from capture.stores import open_store
from capture.verification.check import check

QUICK = {"limits__max_age": 0.3, "ack_wait": 3.0}
KEPT = {"limits__max_age": NEVER, "ack_wait": 2 * NEVER}
"""Settings with which a block stays open until the stop."""

RUN = """
import sys
from pathlib import Path
from capture.cli import main

config = Path(sys.argv.pop(1))
main()
"""
"""Runs the command. Its workers run this script, too."""

HASTY = "import capture.node.worker_process\ncapture.node.worker_process.HANGS_AFTER = 3.0\n" + RUN

UNABLE = (
    """
from capture.errors import StoreError
from capture.stores import FileStore

put = FileStore._put

def refuse(self, path, data, if_absent):
    if path.startswith("blocks/") and config.with_name("away").exists():
        raise StoreError("the store is away")
    put(self, path, data, if_absent)

FileStore._put = refuse
"""
    + RUN
)
"""The same, with a store that can't store blocks while there is a file `away`."""


def numbers(count):
    return [json.dumps({"n": number}).encode() for number in range(count)]


async def verify(fleet, config, count):
    verdict = await check(fleet.natty, load(config), open_store(str(fleet.store)), deep=True)
    assert verdict.ok, verdict.sentence()
    assert verdict.as_dict()["stored"] == count


async def publish_until_both_store(fleet, workers):
    """Publish in small parts until both workers have stored messages; return how many were published."""
    published = 0
    while True:
        await fleet.publish(numbers(500))
        published += 500
        stored = await asyncio.to_thread(workers.stored)
        if len(stored) == 2 and min(stored.values()) > 0:
            return published


async def publish_and_hold(fleet, count):
    """Publish messages, and wait until all of them are in open blocks: those read ahead are handed back at a stop."""
    await fleet.publish(numbers(count))
    board = Board(fleet.natty, fleet.stream)
    async with asyncio.timeout(PATIENCE):
        while sum(one.node.pending for one in (await board.read()).nodes) != count:
            await asyncio.sleep(0.05)


async def stop(workers):
    """Stop all with SIGTERM: the exit status is 0, and no process is left."""
    pids = workers.pids()
    assert await workers.fleet.stop(workers.process) == 0, workers.log
    assert alive(pids) == []


@pytest.mark.long
async def test_workers_share_a_durable_and_nothing_is_lost_when_one_is_killed(fleet):
    config = fleet.configure(**QUICK)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    published = await publish_until_both_store(fleet, workers)
    before = workers.pids()
    assert len(before) == 2
    for victim in before:  # each in turn, while messages come
        publishing = asyncio.create_task(fleet.publish(numbers(2000)))
        await fleet.until(lambda state: state["num_ack_pending"] > 0)
        os.kill(victim, signal.SIGKILL)
        await publishing
        published += 2000
        await workers.until(lambda victim=victim: victim not in workers.pids() and len(workers.pids()) == 2)
        await workers.until_ready()
    assert set(before).isdisjoint(workers.pids())
    published += await publish_until_both_store(fleet, workers)
    assert await asyncio.to_thread(workers.figures, "capture_worker_restarts_total") == {("1",): 1, ("2",): 1}
    await fleet.until_all_acked(published)
    for number in (1, 2):
        assert workers.log.count(f"worker node-{number} was ended by SIGKILL; it starts again in 0.5 s") == 1
        assert workers.log.count(f"node-{number} | ") >= 2
    await stop(workers)
    await verify(fleet, config, published)


@pytest.mark.long
async def test_a_stop_drains_every_worker(fleet):
    config = fleet.configure(**KEPT)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    await publish_and_hold(fleet, 100)
    await stop(workers)
    await fleet.until_all_acked(100)
    await verify(fleet, config, 100)
    assert "node-1 stopped: " in workers.log
    assert "node-2 stopped: " in workers.log
    parts = re.findall(r"node-\d stopped: \d+ messages? in (\d+) blocks? stored", workers.log)
    blocks = sum(map(int, parts))
    assert f"2 workers stopped: 100 messages in {blocks} block" in workers.log


@pytest.mark.long
async def test_a_signal_to_every_process_at_once_drains_them_too(fleet):
    """As systemd sends it to all processes of a unit."""
    config = fleet.configure(**KEPT)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    await publish_and_hold(fleet, 100)
    pids = workers.pids()
    for pid in (*pids, workers.process.pid):
        os.kill(pid, signal.SIGTERM)
    assert await fleet.ended(workers.process) == 0, workers.log
    assert alive(pids) == []
    await fleet.until_all_acked(100)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0, 1.5, 2.0])
@pytest.mark.long
async def test_a_stop_at_any_moment_of_the_start_ends_all_well(fleet, after):
    workers = Workers(fleet, fleet.configure(**QUICK), 2)
    if after:
        await workers.until(workers.pids)
        await asyncio.sleep(after - 0.3)
    pids = workers.pids()
    status = await fleet.stop(workers.process)
    assert status in ((0,) if after else (0, -signal.SIGTERM)), workers.log  # Python itself may not have begun
    assert alive(pids) == []
    assert "starts again" not in workers.log


@pytest.mark.long
async def test_a_second_signal_ends_all_at_once(fleet):
    workers = Workers(fleet, fleet.configure(**KEPT), 2)
    await workers.until_ready()
    pids = workers.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    workers.process.send_signal(signal.SIGINT)
    await asyncio.sleep(0.2)
    assert workers.process.poll() is None
    workers.process.send_signal(signal.SIGINT)
    assert await fleet.ended(workers.process, within=LEAVE_WITHIN) == -signal.SIGINT
    await workers.until(lambda: not alive(pids))


@pytest.mark.long
async def test_workers_drain_and_end_when_their_supervisor_is_killed(fleet):
    config = fleet.configure(**KEPT)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    await publish_and_hold(fleet, 100)
    pids = workers.pids()
    workers.process.kill()
    await fleet.ended(workers.process)
    await fleet.until_all_acked(100)
    await workers.until(lambda: not alive(pids))
    await verify(fleet, config, 100)


@pytest.mark.long
async def test_a_hangup_is_checked_once_and_then_reaches_every_worker(fleet):
    config = fleet.configure(**KEPT)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    pids = workers.pids()
    await publish_and_hold(fleet, 10)
    fleet.configure(**KEPT, limits__max_messages=1, durable="other")
    workers.process.send_signal(signal.SIGHUP)
    await fleet.until_all_acked(10)  # what was open is sealed
    for name in ("node-1", "node-2"):
        await fleet.said("node", f"{name} reloaded: limits.max_messages = 1")
        await fleet.said("node", f"{name} needs a restart to change durable")
    text = config.read_text()
    config.write_text(text.replace("[nats]", "[nats]\ntls = 5"))
    workers.process.send_signal(signal.SIGHUP)
    await fleet.said("node", "nothing was reloaded, the old configuration stays: the connection's settings: ")
    config.write_text(text)
    workers.process.send_signal(signal.SIGHUP)
    await fleet.said("node", "reloaded: nothing to change", times=2)
    assert workers.log.count("nothing was reloaded") == 1
    assert workers.pids() == pids
    await stop(workers)


@pytest.mark.long
async def test_one_worker_stands_for_election_unless_the_configuration_says_otherwise(fleet):
    workers = Workers(fleet, fleet.configure(**QUICK), 2)
    await workers.until_ready()
    led = await workers.until(lambda: workers.figures("natty_leader"))
    assert {number for _, number in led} == {"1"}
    await fleet.publish(numbers(10))
    await fleet.until_all_acked(10)

    async def heard():
        return {one.node.node for one in (await Board(fleet.natty, fleet.stream).read()).nodes}

    async with asyncio.timeout(PATIENCE):
        while await heard() != {"node-1", "node-2"}:  # each publishes its own state, as nodes do
            await asyncio.sleep(0.1)
    await stop(workers)
    everyone = Workers(fleet, fleet.configure(**QUICK, candidates="all"), 2, node="all")
    await everyone.until(lambda: {number for _, number in everyone.figures("natty_leader")} == {"1", "2"})
    await stop(everyone)
    nobody = Workers(fleet, fleet.configure(**QUICK, candidates="none"), 2, node="none")
    await nobody.until_ready()
    assert await asyncio.to_thread(nobody.figures, "natty_leader") == {}
    assert nobody.log.count("is not a candidate for leadership") == 2
    await stop(nobody)
    alone = Workers(fleet, fleet.configure(**QUICK, candidates="none"), 1, node="alone")
    await alone.until_ready()
    assert await asyncio.to_thread(alone.figures, "natty_leader") == {}
    await stop(alone)


@pytest.mark.long
async def test_the_pages_are_of_all_workers(fleet):
    workers = Workers(fleet, fleet.configure(**QUICK), 2)
    await workers.until_ready()
    assert await asyncio.to_thread(workers.fetch, "/livez") == (200, "alive\n")
    assert await asyncio.to_thread(workers.figures, "capture_worker_up") == {("1",): 1, ("2",): 1}
    _, text = await asyncio.to_thread(workers.fetch, "/metrics")
    assert text.count("# TYPE natty_connected gauge\n") == 1
    assert await asyncio.to_thread(workers.figures, "natty_connected") == {("1",): 1, ("2",): 1}
    first, second = workers.pids()
    os.kill(second, signal.SIGSTOP)
    try:
        await workers.until(lambda: any(one.startswith("node-2: it has not reported for") for one in workers.reasons()))
        assert await asyncio.to_thread(workers.figures, "capture_worker_up") == {("1",): 1, ("2",): 0}
        assert await asyncio.to_thread(workers.fetch, "/livez") == (200, "alive\n")
    finally:
        os.kill(second, signal.SIGCONT)
    await workers.until_ready()
    assert workers.pids() == [first, second]
    await stop(workers)


@pytest.mark.long
async def test_a_worker_that_hangs_is_killed_and_starts_again(fleet):
    workers = Workers(fleet, fleet.configure(**QUICK), 2, script=HASTY)
    await workers.until_ready()
    hung = workers.pids()[0]
    os.kill(hung, signal.SIGSTOP)
    await fleet.said("node", "did not report for 3 s and was killed; it starts again in 0.5 s")
    await workers.until(lambda: len(workers.pids()) == 2 and hung not in workers.pids())
    await workers.until_ready()
    pids = workers.pids()
    workers.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(5)
    workers.process.send_signal(signal.SIGCONT)  # it has not read their reports: that is not the workers' fault
    await asyncio.sleep(1)
    await workers.until_ready()
    assert workers.pids() == pids
    await stop(workers)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stream": "NO_SUCH"}, "there is no stream 'NO_SUCH' on this server"),
        ({"decoder": "no_such_module:decode"}, "the decoder 'no_such_module:decode' can't be loaded"),
        ({"nats__tls_ca": "no-such.pem"}, "no-such.pem"),
    ],
)
@pytest.mark.long
async def test_a_configuration_with_which_no_worker_can_begin_ends_all_with_one_message(fleet, settings, said):
    workers = Workers(fleet, fleet.configure(**settings), 3)
    assert await fleet.ended(workers.process) == 1
    complaints = [line for line in workers.log.splitlines() if said in line]
    assert len(complaints) == 1, workers.log
    assert complaints[0].startswith("capture: ")
    assert "it starts again" not in workers.log
    assert "Traceback" not in workers.log


@pytest.mark.long
async def test_a_stop_names_each_worker_that_could_not_store_what_it_had_read(fleet):
    workers = Workers(fleet, fleet.configure(**KEPT, store_attempts=1), 2, script=UNABLE)
    await workers.until_ready()
    await publish_and_hold(fleet, 100)
    (fleet.folder / "away").touch()
    assert await fleet.stop(workers.process) == 1
    (said,) = [line for line in workers.log.splitlines() if line.startswith("capture: ")]
    read = [int(count) for count in re.findall(r"node-\d ended with exit status 1: (\d+) of the messages", said)]
    assert read
    assert sum(read) == 100


@pytest.mark.long
async def test_workers_stop_if_one_fails_to_store_and_the_configuration_says_so(fleet):
    settings = QUICK | {"store_attempts": 1, "on_store_failure": "stop"}
    workers = Workers(fleet, fleet.configure(**settings), 2, script=UNABLE)
    await workers.until_ready()
    (fleet.folder / "away").touch()
    await fleet.publish(numbers(100))
    assert await fleet.ended(workers.process) == 1
    (said,) = [line for line in workers.log.splitlines() if line.startswith("capture: ")]
    assert "the store is away" in said
    assert "starts again" not in workers.log


@pytest.mark.long
async def test_a_worker_that_can_not_begin_again_is_tried_while_the_others_capture(fleet):
    config = fleet.configure(**QUICK)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    right = config.read_text()
    config.write_text(right.replace('decoder = "json"', 'decoder = "no_such_module:decode"'))
    os.kill(workers.pids()[0], signal.SIGKILL)
    await fleet.said("node", "ended with exit status 1: the decoder 'no_such_module:decode' can't be loaded", times=2)
    assert "it starts again in 2 s" in workers.log  # 0.5 s after the kill, 1 s, 2 s
    await fleet.publish(numbers(50))
    await fleet.until_all_acked(50)
    config.write_text(right)
    await workers.until_ready()
    await stop(workers)


@pytest.mark.long
async def test_workers_end_when_their_stream_is_deleted_and_no_worker_can_begin_again(fleet):
    workers = Workers(fleet, fleet.configure(**QUICK), 2)
    await workers.until_ready()
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    assert await fleet.ended(workers.process) == 1
    assert workers.log.splitlines()[-1].startswith("capture: "), workers.log
    assert "Traceback" not in workers.log


@pytest.mark.long
async def test_workers_share_the_members_of_a_static_group_and_acknowledge_all_at_once(fleet, natty_name):
    fleet.stream = natty_name("parts")
    await fleet.natty.ensure_stream(fleet.stream, allow_batched=True, **partitioned(fleet.stream, 4))
    admin = fleet.natty.static_group(fleet.stream, "g")
    await admin.create(4, members=["p0", "p1", "p2", "p3"])
    config = fleet.configure(group="g", ack="all", partition="subject:2", **QUICK)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()

    async def publish(count):
        async with fleet.natty.publisher(fleet.stream, **FILLING) as publisher:
            for number in range(count):
                await publisher.publish(f"{fleet.stream}.k{number % 20}", b"%d" % number)
            await publisher.flush()

    async def until_acked():
        async with asyncio.timeout(2 * PATIENCE):
            while any(not one.exists or one.pending or one.unacked for one in await admin.members()):
                await asyncio.sleep(0.05)

    await publish(400)
    await until_acked()
    assert sum((await asyncio.to_thread(workers.stored)).values()) == 400
    async with asyncio.timeout(2 * PATIENCE):  # both read, once the division has settled
        published = 400
        while min((await asyncio.to_thread(workers.stored)).values()) == 0:
            await publish(100)
            published += 100
            await until_acked()
    os.kill(workers.pids()[0], signal.SIGKILL)
    await publish(400)
    await workers.until(lambda: len(workers.pids()) == 2)
    await workers.until_ready()
    await until_acked()
    info = await fleet.natty.jetstream.request(f"CONSUMER.INFO.{fleet.stream}.g-p0")
    assert info["config"]["ack_policy"] == "all"
    await stop(workers)
    await verify(fleet, config, published + 400)


@pytest.mark.long
async def test_each_worker_captures_all_of_several_streams_and_the_first_one_leads_them(fleet, natty_name):
    first, second = fleet.stream, natty_name("payments")
    fleet.stream = second
    await fleet.create()
    config = fleet.configure(stream="", streams=[first, second], **QUICK)
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    for stream in (first, second):
        fleet.stream = stream
        await fleet.publish(numbers(200))
        await fleet.until_all_acked(200)
    stored = await asyncio.to_thread(workers.figures, "capture_messages_total")
    assert set(stored) == {(stream, number) for stream in (first, second) for number in ("1", "2")}
    led = await workers.until(lambda: workers.figures("natty_leader"))
    assert {number for _, number in led} == {"1"}
    assert {election.removesuffix(".compaction") for election, _ in led} == {f"capture.{first}", f"capture.{second}"}
    await stop(workers)
    for one in each(load(config)):
        verdict = await check(fleet.natty, one, open_store(one.store))
        assert verdict.ok, verdict.sentence()
        assert verdict.as_dict()["stored"] == 200


@pytest.mark.long
async def test_auto_is_a_worker_for_each_core_and_one_worker_has_no_supervisor(fleet):
    cores = sorted(os.sched_getaffinity(0))
    workers = Workers(fleet, fleet.configure(**QUICK), "auto")
    if len(cores) > 1:
        await workers.until_ready()
        assert len(workers.pids()) == len(cores)
        await stop(workers)
    try:
        os.sched_setaffinity(0, cores[:1])  # a child has that, too
        alone = Workers(fleet, fleet.configure(**QUICK), "auto", node="alone")
    finally:
        os.sched_setaffinity(0, cores)
    await alone.until_ready()
    assert alone.pids() == []
    assert "alone captures" in alone.log  # under its own name
    assert await fleet.stop(alone.process) == 0


@pytest.mark.long
async def test_json_lines_name_their_worker_and_stay_whole(fleet):
    config = fleet.configure(**QUICK, logging__format="json", logging__level="debug")
    workers = Workers(fleet, config, 2)
    await workers.until_ready()
    published = await publish_until_both_store(fleet, workers)
    await fleet.until_all_acked(published)
    await stop(workers)
    lines = [json.loads(line) for line in workers.log.splitlines()]
    assert {"node-1", "node-2"} <= {line.get("node") for line in lines}
    assert {line["logger"] for line in lines if "node" not in line} <= {"capture.run", "capture.workers", "asyncio"}


@pytest.mark.long
async def test_each_worker_says_what_it_captures_and_what_it_has_stored_at_every_log_level(fleet):
    config = fleet.configure(**QUICK, logging__format="json")
    workers = Workers(fleet, config, 2, options=["--log-level", "error"])
    await workers.until_ready()
    await stop(workers)
    said = [line["message"] for line in map(json.loads, workers.log.splitlines()) if line["logger"] == "capture.run"]
    assert f"2 workers capture {fleet.stream} into {fleet.store}: node-1, node-2" in said
    assert said[-1] == "2 workers stopped: 0 messages in 0 blocks stored"
    for name in ("node-1", "node-2"):
        assert any(one.startswith(f"{name} captures {fleet.stream} into file://") for one in said)
        assert f"{name} stopped: 0 messages in 0 blocks stored" in said
