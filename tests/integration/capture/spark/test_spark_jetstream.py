"""The data source in Spark: found by itself, read and written over mutual TLS, killed and resumed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio
import spark_jetstream
from patient import FILLING, PATIENCE, until
from spark_blocks import QUICK
from two_tiers import TwoTiers

from natty import Natty
from natty.elections.guard import kill, members

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]

MESSAGES = 2000
SPARK = {
    "master": "local[2,3]",  # a task that fails is tried again, as on a cluster
    "properties": {**QUICK, "spark.sql.execution.arrow.maxRecordsPerBatch": "100"},
}


def run(folder, options, *jobs):
    """Start the program, in a session of its own; what it says on standard error goes to a file."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, spark_jetstream.__file__, str(folder), json.dumps(options | {"spark": SPARK}), *jobs],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[4])},
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(nats_server, tmp_path_factory):
    """What each job said; before them, the one that streams was killed in its middle."""
    folder = tmp_path_factory.mktemp("jetstream")
    connection = nats_server.connect_options()
    options = spark_jetstream.source_options(connection, "FLOWING")
    async with Natty(**connection) as natty:
        for name in ("FLOWING", "FLOWING_OUT", "FLOWING_FLOW"):
            await natty.create_stream(
                name, subjects=[f"{name}.>"], allow_direct=True, allow_batched=True, duplicate_window=3600.0
            )
        async with natty.publisher("FLOWING", **FILLING) as publisher:
            for number in range(1, MESSAGES + 1):
                await publisher.publish(f"FLOWING.{number % 2}", b"message %d" % number, headers={"N": str(number)})
        tiers = await TwoTiers(natty, "FLOWING", str(folder / "lake")).claim()
        await tiers.keep(range(1, 1001))
        await tiers.keep([700, 1500])
    killed = run(folder, options, "stream")
    try:
        commits = folder / "checkpoint" / "commits"
        await until(lambda: killed.poll() is not None or len(list(commits.glob("[0-9]*"))) >= 2, 4 * PATIENCE)
        assert killed.poll() is None, (folder / "log").read_text()[-3000:]
        killed.send_signal(signal.SIGKILL)
        await until(lambda: not members(killed.pid))  # the JVM and its workers too
        done = run(folder, options, "stream", "batch", "union", "refused", "write", "write_stream")
        try:
            said, _ = await asyncio.to_thread(done.communicate, timeout=6 * PATIENCE)
        finally:
            done.kill()
        assert done.returncode == 0, (folder / "log").read_text()[-5000:]
    finally:
        killed.stdout.close()
        killed.kill()
        killed.wait()
        kill(killed.pid)
    return {answer["job"]: answer for answer in map(json.loads, said.splitlines())}


async def test_a_query_whose_driver_was_killed_goes_on_and_brings_each_message_once(answers):
    streamed = answers["stream"]
    assert streamed["sequences"] == list(range(1, MESSAGES + 1))
    assert streamed["rows"] == MESSAGES
    assert max(streamed["micro_batches"]) <= spark_jetstream.MICRO_BATCH
    assert sum(streamed["micro_batches"]) < MESSAGES, "it began anew"


async def test_a_stream_is_a_table(answers):
    batch = answers["batch"]
    assert (batch["rows"], batch["distinct"], batch["tasks"]) == (MESSAGES, MESSAGES, 4)
    subject, payload, headers, message_id = batch["first"]
    assert (subject, payload, headers["N"], message_id) == ("FLOWING.1", "message 1", ["1"], None)
    assert batch["columns"] == ["payload", "sequence"]
    assert batch["sum"] == MESSAGES * (MESSAGES + 1) // 2


async def test_archive_and_stream_are_one_table(answers):
    union = answers["union"]
    assert union["counted"] == [MESSAGES, MESSAGES, MESSAGES * (MESSAGES + 1) // 2]
    assert union["tasks"] == 2  # one of each


async def test_plans_show_no_option_and_a_refusal_repeats_no_secret(answers):
    assert "jetstream" in answers["batch"]["plan"]
    assert ".pem" not in answers["batch"]["plan"]
    misspelt, secret = answers["refused"]["said"]
    assert "there is no option startsequense; did you mean startSequence?" in misspelt
    assert "password is not an option" in secret
    assert "hunter2" not in secret


async def test_what_is_written_again_or_by_a_task_that_was_tried_again_is_stored_once(answers):
    written = answers["write"]
    assert written["once"] == MESSAGES
    assert written["after"] == 2 * MESSAGES
    message_id, headers = written["first"]
    assert message_id.startswith("job-7-")
    assert set(headers) <= {"N", "Nats-Msg-Id", "Nats-Expected-Stream"}


async def test_a_micro_batch_that_is_written_again_is_stored_once(answers):
    written = answers["write_stream"]
    assert sum(written["again"]) == spark_jetstream.MICRO_BATCH, "nothing was replayed"
    assert (written["once"], written["after"]) == (MESSAGES, MESSAGES)
