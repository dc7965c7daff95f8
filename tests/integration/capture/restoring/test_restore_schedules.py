"""A stream whose messages are published later: what its archive holds, and what a restore brings back."""

import pytest
from patient import PATIENT
from restoring import Capturing, restored
from scheduling import make_scheduling, published, waiting
from servers import old_server

import capture
from natty import Natty
from natty.testing import NatsServer

pytestmark = pytest.mark.long


async def captured_with_schedules(natty, name, folder):
    """Capture a stream with one message that was published later, one that is due soon, and a daily one."""
    await make_scheduling(natty, name)
    await natty.publish(f"{name}.a", b"published", after=0.1)
    await published(natty, name, 1)
    await natty.schedule("soon", f"{name}.a", b"due", after=15)
    await natty.schedule("daily", f"{name}.a", b"daily", cron="@daily")
    captured = Capturing(natty, name, folder)
    await captured.capture()
    await natty.delete_stream(name)
    held = [record.subject async for record in capture.read(captured.store, stream=name)]
    assert sorted(held) == [f"{name}.a", f"schedules.{name}.daily", f"schedules.{name}.soon"]
    return captured


async def test_an_exact_restore_brings_back_what_waits_and_it_is_published(natty, natty_name, tmp_path):
    name = natty_name("LATER")
    captured = await captured_with_schedules(natty, name, tmp_path)
    await restored(natty, captured)
    assert "daily" in await waiting(natty, name)
    assert [one.data for one in await published(natty, name, 2)] == [b"published", b"due"]
    assert await waiting(natty, name) == ["daily"]


async def test_a_restore_that_publishes_stores_what_waits_as_ordinary_messages(natty_tls, natty_name, tmp_path):
    name = natty_name("LATER")
    binary = old_server("2.14.6")
    with NatsServer(folder=tmp_path / "nats", tls_files=natty_tls, binary=binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            captured = await captured_with_schedules(natty, name, tmp_path)
            await restored(natty, captured)
            assert await waiting(natty, name) == []
            found = [message async for message in natty.read(name)]
            assert len(found) == 3
            assert {"Capture-Nats-Schedule", "Capture-Nats-Schedule-Target"} < set(found[-1].headers)
