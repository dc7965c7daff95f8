"""Nodes that sign what their leaders commit, as processes."""

import asyncio
import base64
import json
import subprocess
import sys

import pytest
from patient import PATIENCE
from secret import write_secret

from capture.archive import chain
from capture.archive.chain import Head, latest_offline
from capture.archive.heads import head_readers
from capture.archive.manifest import Manifest
from capture.archive.recording import Recording
from capture.archive.signing import SigningKeys
from capture.stores import open_store
from capture.verification.audit import audit

SEED = bytes(range(32))
KEYS = SigningKeys({"mine": SEED})


async def positions(store, heads, fleet):
    """How far the durable was, as recorded."""
    recording = await chain.read(store, await heads[Recording](), Recording)
    record = recording.streams.get(fleet.stream)
    consumer = record and record.consumers.get("capture")
    return consumer.ack_floor.stream_seq if consumer else 0


async def heads_of(fleet, config):
    """What `capture head` prints."""
    command = [sys.executable, "-m", "capture", "head", "--config", str(config)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=2 * PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    return [Head(**json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.long
async def test_a_fleet_signs_what_it_commits_and_a_node_without_the_key_does_not_start(fleet):
    secret = base64.b64encode(SEED).decode()
    write_secret(fleet.folder / "key", f"mine:{secret}\n")
    signed = {"signing_key_file": str(fleet.folder / "key"), "spark.java": "none"}  # no candidate for the compaction
    config = fleet.configure(limits__max_age=0.3, **signed)
    node = fleet.start("node-1", config)
    await fleet.publish([b'{"n": %d}' % number for number in range(30)])
    await fleet.until_all_acked(30)
    await fleet.said("node-1", "blocks adopted")
    store, heads = open_store(str(fleet.store)), head_readers(fleet.natty, fleet.stream)
    async with asyncio.timeout(PATIENCE):
        while await positions(store, heads, fleet) < 30:
            await asyncio.sleep(0.05)

    other = fleet.start("node-2", fleet.configure("unsigned.toml"))
    assert await fleet.ended(other) == 1
    assert "is signed, with the key mine, and this node has no key to sign with" in fleet.log("node-2").read_text()

    assert await fleet.stop(node) == 0
    found = await audit(store, heads, keys=KEYS.public, archive=fleet.stream, deep=True)
    assert (found.problems, found.notes) == ((), ())
    noted = await heads_of(fleet, config)
    assert {one.path.partition("/")[0] for one in noted} == {"_manifest", "_recorded"}
    assert (await audit(store, archive=fleet.stream, noted=noted, keys=KEYS.public)).ok
    assert secret not in "".join(path.read_text() for path in fleet.folder.glob("*.log"))

    head = await latest_offline(store, Manifest)
    assert head in noted
    data = await store.get(head.path)
    await store.put(head.path, data.replace(b'"count":', b'"count":1', 1), if_absent=False)
    told = "\n".join((await audit(store, archive=fleet.stream, keys=KEYS.public)).problems)
    assert f"{head.path} has a wrong signature" in told
    assert f"{head.path} was changed" in "\n".join((await audit(store, heads, archive=fleet.stream)).problems)
