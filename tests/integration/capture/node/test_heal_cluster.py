"""What three servers forget together is healed, whoever leads stream and consumer by then."""

import asyncio
import contextlib

import pytest
from healing import (
    COUNT,
    HELD,
    die_with,
    is_captured,
    publish,
    published_state,
    remove,
    rows,
    stored_by_the_dead,
    stream_copy,
    stream_state,
)
from patient import PATIENCE, PATIENT

from capture.config.load import load
from natty import Natty, NattyError

pytestmark = pytest.mark.long
FORGOTTEN, STORED = set(range(1, HELD)), {1, 2}


@pytest.fixture
def nats_server(nats_cluster):
    """Where the fleet runs."""
    nats_cluster.start()
    return nats_cluster


@pytest.fixture
async def natty(nats_server):
    async with Natty(**nats_server.connect_options(), **PATIENT) as natty:
        yield natty


async def led_by_another(fleet, what, name):
    """Let another server lead the stream or the consumer."""

    async def leader():
        with contextlib.suppress(NattyError):
            return (
                (await fleet.natty.jetstream.request(f"{what}.INFO.{name}", timeout=1.0))
                .get("cluster", {})
                .get("leader")
            )

    async with asyncio.timeout(PATIENCE):
        while not (before := await leader()):
            await asyncio.sleep(0.05)
        while (await leader() or before) == before:
            with contextlib.suppress(NattyError):
                await fleet.natty.jetstream.request(f"{what}.LEADER.STEPDOWN.{name}", timeout=1.0)
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("moved", [False, True], ids=["same leaders", "other leaders"])
@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
async def test_what_three_servers_forget_is_healed(fleet, configured, start_beside, caplog, retention, moved):
    await fleet.natty.jetstream.request(f"STREAM.DELETE.{fleet.stream}")
    await fleet.create(num_replicas=3, retention=retention)
    path = await configured()
    await publish(fleet, range(1, COUNT + 1))
    copy = await stream_copy(fleet)
    await die_with(fleet, HELD)
    await stored_by_the_dead(fleet, load(path, environment={}), STORED)
    await remove(fleet, "purge", HELD)
    start_beside(path)
    await fleet.until(lambda one: one["num_pending"] == 0 and one["num_ack_pending"] <= HELD)
    if moved:
        await led_by_another(fleet, "CONSUMER", f"{fleet.stream}.capture")
        await led_by_another(fleet, "STREAM", fleet.stream)
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(NattyError):
                await fleet.natty.ensure_consumer(fleet.stream, "capture", ack_wait=1.0, allow_destructive=True)
                break
    found = await is_captured(fleet, path, gone=() if retention == "limits" else FORGOTTEN | {HELD})
    stored = await rows(path)
    contents = {sequence: {content for _, content in some} for sequence, some in stored.items()}
    assert contents == {sequence: {content} for sequence, content in copy.items() if sequence in contents}
    lost = set(range(1, COUNT + 1)) - {*contents} - {HELD}
    if retention == "limits":
        assert not lost
    else:  # the servers delete what they have forgotten as soon as another one leads the consumer
        assert lost <= FORGOTTEN & {*found.verdict.unexplained}
        if retention == "interest":  # an ack that comes late counts for nothing there, until another one leads
            await led_by_another(fleet, "CONSUMER", f"{fleet.stream}.capture")
        async with asyncio.timeout(2 * PATIENCE):
            while (await stream_state(fleet))["messages"]:
                await asyncio.sleep(0.1)
    healed = {sequence for sequence, some in stored.items() if any(not times for times, _ in some)}
    assert healed <= FORGOTTEN - STORED
    assert (await published_state(fleet)).missing == 0
    assert "MISSING" not in caplog.text
