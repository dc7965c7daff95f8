"""What the server keeps of messages that wait: over its end, a new leader, a purge, and the stream's limits."""

import asyncio
import time
from contextlib import suppress

import pytest
from consuming import until
from patient import PATIENCE, PATIENT
from scheduling import make_scheduling, passed, published, waiting

from natty import JetStreamError, Natty, PublishError

pytestmark = pytest.mark.long
HIDDEN = "Nats-Scheduler"


async def test_what_waits_survives_sigkill_and_what_was_due_meanwhile_is_published_once_at_the_start(
    own_server, natty_name
):
    name = natty_name("KILLED")
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        await make_scheduling(natty, name)
        due = [await natty.publish(f"{name}.a", b"%d" % number, after=3) for number in range(50)]
        await natty.publish(f"{name}.a", b"later", after="1h")
        await natty.schedule("tick", f"{name}.tick", b"t", every="1s")
    own_server.kill()
    killed = time.time_ns()
    await asyncio.sleep(6)  # the fact is about runs that were missed: several of the tick
    own_server.start()
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        found = await published(natty, name, 50, f"{name}.a")
        assert {one.headers[HIDDEN][0] for one in found} == {ack.schedule for ack in due}
        await published(natty, name, 3, f"{name}.tick")  # it ticks again
        assert len(await waiting(natty, name)) == 2
        ticks = [one.time_ns async for one in natty.read(name, subjects=f"{name}.tick") if one.time_ns > killed]
        seconds = (ticks[-1] - ticks[0]) / 1e9
        assert len(ticks) <= seconds + 3, "runs that were missed are made up for once"


async def test_a_server_that_is_killed_while_it_publishes_loses_none(own_server, natty_name):
    name, count = natty_name("KILLED"), 2000
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        await make_scheduling(natty, name)
        await asyncio.gather(*(natty.publish(f"{name}.a", b"%d" % i, after=2 + i / 500) for i in range(count)))
        await published(natty, name, 100)
    own_server.kill()
    own_server.start()
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        await until(lambda: none_waits(natty, name))
        found = [message.data async for message in natty.read(name, subjects=f"{name}.>")]
        assert set(found) == {b"%d" % i for i in range(count)}
        assert len(found) - count < 100, "at most those that it published last are there twice"


async def none_waits(natty, name):
    return await waiting(natty, name) == []


async def test_a_new_leader_publishes_what_waits_once(nats_cluster, natty_name):
    name, count = natty_name("LED"), 200
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        await make_scheduling(natty, name, num_replicas=3)
        await asyncio.gather(*(natty.publish(f"{name}.a", b"%d" % i, after=2 + i / 50) for i in range(count)))
        await natty.schedule("tick", f"{name}.tick", b"t", every="1s")
        for published_so_far in (1, 60, 120):
            await published(natty, name, published_so_far, f"{name}.a")
            with suppress(Exception):  # the old leader may have no time to answer
                await natty.jetstream.request(f"STREAM.LEADER.STEPDOWN.{name}", timeout=5)
            await until(lambda: is_led(natty, name))
        found = [one.data for one in await published(natty, name, count, f"{name}.a")]
        assert sorted(found) == sorted(b"%d" % i for i in range(count))
        await published(natty, name, (await natty.stream_info(name))["state"]["last_seq"] and 3, f"{name}.tick")
        await natty.scheduler.cancel(name, "tick")
        await passed(natty, name)
        assert await waiting(natty, name) == []
        assert [one.data async for one in natty.read(name, subjects=f"{name}.a")] == found


async def is_led(natty, name):
    """Return whether the stream has a leader that answers: during an election the server refuses reads (10008)."""
    with suppress(JetStreamError):
        return bool((await natty.stream_info(name))["cluster"].get("leader"))
    return False


async def test_max_age_deletes_no_schedule_of_a_stream_that_allows_ttls_and_the_others_are_refused(natty, natty_name):
    name = await make_scheduling(natty, natty_name("AGE"), max_age=2, duplicate_window=1)
    with pytest.raises(PublishError, match=r"deletes messages after 2s \(max_age\).*stream edit .* --allow-msg-ttl`"):
        await natty.publish(f"{name}.a", b"1", after=4)
    with pytest.raises(PublishError, match="--allow-msg-ttl"):
        await natty.schedule("tick", f"{name}.a", b"1", cron="@daily")
    await natty.ensure_stream(name, allow_msg_ttl=True)
    await natty.publish(f"{name}.a", b"1", after=4)
    await natty.schedule("daily", f"{name}.a", b"1", cron="@daily")
    reading = asyncio.create_task(published(natty, name, 1))
    await until(lambda: only_daily_waits(natty, name))  # the other was published, or deleted by max_age
    [one] = await asyncio.wait_for(reading, 10)
    assert one.data == b"1"
    assert "Nats-TTL" not in one.headers
    await until(lambda: only_the_schedule_is_left(natty, name))


async def only_daily_waits(natty, name):
    return await waiting(natty, name) in (["daily"], [])


async def only_the_schedule_is_left(natty, name):
    return [message.subject async for message in natty.read(name)] == [f"schedules.{name}.daily"]


async def test_limits_of_number_delete_the_oldest_messages_and_schedules_are_among_them(natty, natty_name):
    name = await make_scheduling(natty, natty_name("MAX"), max_msgs=3)
    await natty.publish(f"{name}.a", b"", after="1h")
    for _ in range(3):
        await natty.publish(f"{name}.b", b"")
    assert await waiting(natty, name) == []


async def test_a_limit_for_each_subject_deletes_no_schedule(natty, natty_name):
    name = await make_scheduling(natty, natty_name("PER"), max_msgs_per_subject=1)
    for _ in range(3):
        await natty.publish(f"{name}.b", b"", after="1h")
    assert len(await waiting(natty, name)) == 3


async def test_a_purge_removes_what_waits(natty, natty_name):
    name = await make_scheduling(natty, natty_name("PURGED"))
    await natty.publish(f"{name}.a", b"purged", after=2)
    await natty.purge_stream(name, subject=f"schedules.{name}.>")
    await natty.publish(f"{name}.a", b"kept", after=3)
    assert [one.data for one in await published(natty, name, 1)] == [b"kept"]


async def test_a_consumer_of_a_work_queue_without_a_filter_removes_what_it_acknowledges(natty, natty_name):
    """docs/publish-later.md says so: give it the filter. With the filter, it gets the message at its time."""
    name = await make_scheduling(natty, natty_name("WORK"), retention="workqueue")
    seen, arrived = [], asyncio.Event()

    async def handler(message):
        seen.append(message.subject)
        arrived.set()

    consumption = natty.consume(name, "all", handler)
    running = asyncio.create_task(consumption.run())
    await natty.publish(f"{name}.a", b"1", after="1h")
    async with asyncio.timeout(PATIENCE):
        await arrived.wait()
    await until(lambda: none_waits(natty, name))
    consumption.stop()
    await running
    assert [subject.split(".")[0] for subject in seen] == ["schedules"]

    await natty.delete_consumer(name, "all")
    arrived.clear()
    consumption = natty.consume(name, "some", handler, consumer={"filter_subjects": [f"{name}.>"]})
    running = asyncio.create_task(consumption.run())
    await natty.publish(f"{name}.a", b"2", after=1)
    async with asyncio.timeout(PATIENCE):
        await arrived.wait()
    consumption.stop()
    await running
    assert seen[1:] == [f"{name}.a"]
