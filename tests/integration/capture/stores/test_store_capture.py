import asyncio
import json
import subprocess
import sys

import pytest
from stores import BUCKET, SECRET

from capture.stores import open_store

MESSAGES = 20_000


async def verified(config):
    """What `capture verify --deep` says of an archive."""
    command = [sys.executable, "-m", "capture", "verify", "--config", str(config), "--deep", "--json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
async def test_nodes_that_store_over_tls_in_s3_lose_nothing_when_one_is_killed(fleet, s3):
    config = fleet.configure(
        store=s3.url(), partition="time", ack_wait=3.0, limits__max_age=0.3, limits__max_messages=400
    )
    nodes = [fleet.start(name, config) for name in ("a", "b")]
    publishing = asyncio.create_task(fleet.publish(b'{"n":%d}' % number for number in range(MESSAGES)))
    await fleet.until(lambda state: state["ack_floor"]["stream_seq"] > MESSAGES // 10)
    nodes[0].kill()
    await publishing
    await fleet.until_all_acked(MESSAGES)
    verdict = await verified(config)
    assert (verdict["stored"], verdict["missing"], verdict["unacknowledged"]) == (MESSAGES, 0, 0), verdict
    assert await fleet.stop(nodes[1]) == 0
    assert SECRET not in "".join(fleet.log(name).read_text() for name in ("a", "b"))


async def test_a_node_refuses_a_store_that_ignores_conditional_puts(fleet, careless_s3):
    node = fleet.start("a", fleet.configure(store=careless_s3.url("refused")))
    assert await fleet.ended(node) == 1
    said = fleet.log("a").read_text()
    assert f"s3://{BUCKET}/refused ignores conditional puts" in said
    assert "Traceback" not in said
    assert await open_store(careless_s3.url("refused")).list() == []
