"""The two offices of an archive among nodes: who is a candidate for which, and what a frozen leader leaves."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from patient import PATIENCE

from capture.archive.heads import COMPACTION, SWEEP
from capture.archive.picture import read_picture
from capture.stores import open_store
from natty.elections import BUCKET, elections
from natty.errors import how_to_install

WITHOUT_SPARK = """
import sys
import capture.spark.client

capture.spark.client.find_spec = lambda name: None
from capture.cli import main
sys.argv = ["capture", "run", "--config", sys.argv[1], "--node-name", "bare"]
main()
"""


async def until(found, within=2 * PATIENCE):
    async with asyncio.timeout(within):
        while not await found():
            await asyncio.sleep(0.05)


def led_by(fleet, office, node):
    async def found():
        return await fleet.natty.get_leader(office.election(fleet.stream)) == node

    return found


@pytest.mark.long
async def test_a_node_without_spark_sweeps_and_leaves_the_compaction_to_others(fleet):
    config = fleet.configure(lease=10.0, compaction__lease=10.0, table__fresh=2.0)
    fleet.start("bare", config, script=WITHOUT_SPARK)
    await until(led_by(fleet, SWEEP, "bare"))
    fleet.start("node-2", config)
    await until(led_by(fleet, COMPACTION, "node-2"))
    assert await fleet.natty.get_leader(SWEEP.election(fleet.stream)) == "bare"
    both = [f"capture.{fleet.stream}", f"capture.{fleet.stream}.compaction"]

    async def are_listed():  # as soon as the leader has noted its term
        return [name for name in await elections(fleet.natty.jetstream, BUCKET) if fleet.stream in name] == both

    await until(are_listed)
    said = fleet.log("bare").read_text()
    why = "a node with Spark has to run for it and for the fresh table: Spark is not installed here"
    assert said.count(f"bare is not a candidate for the compaction, {why}") == 1
    assert how_to_install("spark") in said
    assert "Traceback" not in said


def living():
    """Return {process: its parent} of all that live; who waits to be reaped by a frozen parent does not."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(folder.name)] = int(parent)
    return found


def descendants(pid):
    """Return the living descendants of a process."""
    parents, found, youngest = living(), set(), {pid}
    while youngest := {child for child, parent in parents.items() if parent in youngest}:
        found |= youngest
    return found


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_leader_that_is_frozen_keeps_no_spark_and_its_successor_goes_on(fleet):
    options = {"compaction.min_files": 1, "compaction.max_wait": 0.0, "compaction.every": 0.5, "compaction.lease": 8.0}
    config = fleet.configure(**{"ack_wait": 5.0, "limits.max_age": 0.5} | options)
    store = open_store(str(fleet.store))

    async def picture():
        return await read_picture(
            store, SWEEP.reader(fleet.natty, fleet.stream), COMPACTION.reader(fleet.natty, fleet.stream)
        )

    def compacted(count):
        async def found():
            return sum(one.count for one in (await picture()).files) >= count

        return found

    old = fleet.start("old", config)
    await fleet.publish([b"{}"] * 100)
    await until(compacted(100), 4 * PATIENCE)
    token = (await picture()).table.token
    spark = descendants(old.pid)
    assert len(spark) >= 3  # a guard, the driver, its JVM
    old.send_signal(signal.SIGSTOP)
    await until(lambda: asyncio.sleep(0, not spark & set(living())))
    fleet.start("new", config)
    await fleet.publish([b"{}"] * 100)
    await until(compacted(200), 4 * PATIENCE)
    old.send_signal(signal.SIGCONT)
    await fleet.publish([b"{}"] * 100)
    await until(compacted(300), 4 * PATIENCE)
    assert os.waitpid(old.pid, os.WNOHANG) == (0, 0)  # it lives, and captures
    found = await picture()
    assert found.table.token > token
    assert sum(one.count for one in found.files) == 300
    assert await led_by(fleet, COMPACTION, "new")()
