import asyncio
import logging
import signal
from contextlib import AsyncExitStack

import pytest
from consuming import until
from go_groups import ELASTIC, Go
from group_members import LONG, QUICK, consumer, has_state, make, publish, start_instance
from patient import NEVER, PATIENCE, PATIENT

from natty import Natty, NattyError
from natty.groups import reading
from natty.groups.place import Place


async def test_a_consumer_that_is_deleted_by_hand_is_made_again_and_nothing_is_lost(natty, group, notes, caplog):
    caplog.set_level(logging.INFO, logger="natty.pull")
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m1", notes.handler(), **LONG) as standby:
        await notes.have(16)
        owner, other = (m1, standby) if m1.pinned else (standby, m1)
        before = (await consumer(natty, group, "m1"))["created"]
        await natty.jetstream.request(f"CONSUMER.DELETE.{group.consumed_stream}.m1")
        await publish(natty, group.stream, range(2, 4))
        await notes.have(32)
        assert owner.pinned  # the standby leaves it the ack wait
        assert owner.lost >= 1
        assert not other.pinned
        assert (await consumer(natty, group, "m1"))["created"] != before
    said = [one.message for one in caplog.records if one.name == "natty.pull" and one.levelno == logging.INFO]
    reason = f"consumer {group.consumed_stream}/m1: the server ended a request: 409 Consumer Deleted"
    assert 1 <= said.count(reason) <= 2  # once for each instance that did not find it out by itself
    assert notes.ordered
    assert notes.together == 0
    assert notes.count == 32


async def test_a_handler_that_runs_while_its_consumer_is_deleted_is_not_started_again(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2), keys=1)
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await until(lambda: notes.begun == 1)
        before = (await consumer(natty, group, "m1"))["created"]
        await natty.jetstream.request(f"CONSUMER.DELETE.{group.consumed_stream}.m1")

        async def delivered_again():
            try:
                state = await consumer(natty, group, "m1")
            except NattyError:
                return False
            return state["created"] != before and state["num_ack_pending"] == 2

        await until(delivered_again)
        assert notes.begun == 1
        notes.gate.set()
        await notes.have(2)
        await until(lambda: m1.counts["repeated"] == 1)
    assert notes.begun == 2


async def test_members_go_on_after_a_restart_of_the_server(own_server, natty_name, notes):
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        group = await make(natty, natty_name("GROUP"), members=["m1", "m2"])
        await publish(natty, group.stream, range(3))
        async with group.join("m1", notes.handler(), **QUICK), group.join("m2", notes.handler(), **QUICK):
            await notes.have(24)
            await asyncio.to_thread(own_server.restart)
            await publish(natty, group.stream, range(3, 6))
            await notes.have(48)
    assert notes.ordered
    assert notes.together == 0


async def test_an_instance_that_is_cut_off_stops_its_handlers_and_its_standby_goes_on(natty, natty_proxy, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with Natty(**natty_proxy.options, **PATIENT) as cut, AsyncExitStack() as stack:
        ours = cut.group(group.stream, "g").join("m1", notes.handler(), **QUICK)
        m1 = await stack.enter_async_context(ours)
        await until(lambda: notes.begun >= 4)
        standby = await stack.enter_async_context(group.join("m1", notes.handler(), **QUICK))
        await has_state(standby, "standby")
        await natty_proxy.cut()
        await until(lambda: m1.counts["cut_short"] >= 4)
        notes.gate.set()
        await notes.have(16)
        assert standby.pinned
        assert notes.together == 0
        assert m1.counts["overran"] == 0 or m1.counts["handled"] == 0
        await natty_proxy.restore()
        await until(lambda: cut.connection.connected)
        await has_state(m1, "standby", "active")
    assert notes.ordered


async def test_acks_of_a_member_that_is_cut_off_for_less_than_its_lease_are_sent_afterwards(
    natty, natty_proxy, group, notes
):
    notes.gate.clear()
    await publish(natty, group.stream, range(1), keys=1)
    async with Natty(**natty_proxy.options, **PATIENT) as cut, AsyncExitStack() as stack:
        ours = cut.group(group.stream, "g").join("m1", notes.handler(), **LONG | {"ack_wait": NEVER})
        m1 = await stack.enter_async_context(ours)
        await until(lambda: notes.begun == 1)
        await natty_proxy.cut()
        await until(lambda: not cut.connection.connected)
        notes.gate.set()
        await until(lambda: m1.counts["handled"] == 1)
        await natty_proxy.restore()
        await publish(natty, group.stream, range(1, 2), keys=1)
        await notes.have(2)
        await until(lambda: m1.counts["handled"] == 2)
        assert m1.counts["repeated"] == 0
    assert notes.ordered
    assert notes.count == 2


async def test_handlers_begin_again_after_a_reconnect_without_waiting_for_the_next_look_at_the_pin(
    natty, natty_proxy, group, notes, monkeypatch
):
    await publish(natty, group.stream, range(1))
    async with Natty(**natty_proxy.options, **PATIENT) as cut, AsyncExitStack() as stack:
        ours = cut.group(group.stream, "g").join("m1", notes.handler(), **LONG | {"ack_wait": NEVER})
        m1 = await stack.enter_async_context(ours)
        await notes.have(8)
        monkeypatch.setattr(reading, "KEEP_EVERY", NEVER)
        lease = m1._reading.stint.until
        await until(lambda: m1._reading.stint.until > lease)  # it has looked once more
        await natty_proxy.cut()
        await until(lambda: not cut.connection.connected)
        await natty_proxy.restore()
        await publish(natty, group.stream, range(1, 2))
        await notes.have(16)
    assert notes.ordered


@pytest.mark.long
async def test_one_that_is_cut_off_until_the_server_has_removed_its_consumer_makes_it_again(
    natty, natty_proxy, group, notes
):
    await publish(natty, group.stream, range(2))
    async with Natty(**natty_proxy.options, **PATIENT) as cut, AsyncExitStack() as stack:
        ours = cut.group(group.stream, "g").join("m1", notes.handler(), **QUICK)
        m1 = await stack.enter_async_context(ours)
        await notes.have(16)
        await natty_proxy.cut()
        await publish(natty, group.stream, range(2, 4))

        async def removed():
            return not (await group.member("m1")).exists

        await until(removed)
        await natty_proxy.restore()
        await notes.have(32)
        assert m1.pinned
    assert notes.ordered
    assert notes.together == 0


async def test_members_wait_for_a_record_that_vanished_with_its_bucket(own_server, natty_name, notes):
    async with Natty(**own_server.connect_options(), **PATIENT) as natty:
        group = await make(natty, natty_name("GROUP"), members=["m1"])
        go = Go(natty)
        async with group.join("m1", notes.handler(), **LONG) as m1:
            await publish(natty, group.stream, range(1))
            await notes.have(8)
            value, _, _ = await go.get(ELASTIC, group.key)
            await natty.delete_bucket(ELASTIC)
            await has_state(m1, "outside")
            await go.make_bucket(ELASTIC)
            await go.put(ELASTIC, group.key, value)
            await publish(natty, group.stream, range(1, 2))
            await notes.have(16)
            assert m1.state == "active"


@pytest.fixture
def instance(nats_server, group, tmp_path):
    """Start an instance of m1 as a process; return it and its log."""
    started = []

    def start(work=0.0):
        log = tmp_path / f"{len(started)}.log"
        started.append(start_instance(nats_server, group.stream, "m1", log, QUICK, work=work))
        return started[-1], log

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_standby_takes_over_from_a_pinned_process_that_is_killed_or_stands_still(
    natty, group, notes, instance, how
):
    process, log = instance(work=3600.0)
    await until(lambda: "J" in log.read_text())
    await publish(natty, group.stream, range(2))
    await until(lambda: log.read_text().count("S ") == 4)  # the first of each partition
    async with group.join("m1", notes.handler(), **QUICK) as standby:
        await has_state(standby, "standby")
        assert notes.begun == 0
        process.send_signal(how)
        await notes.have(16)
        assert standby.pinned
        if how is signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
            await until(lambda: log.read_text().count("C ") == 4)  # it sees that its lease has ended
            process.terminate()
            assert await asyncio.to_thread(process.wait, PATIENCE) == 0
            assert log.read_text().splitlines()[-1].split()[::2] == ["O", "4"]
    assert notes.ordered
    assert log.read_text().count("E ") == 0


NARROW = [  # (max_ack_pending of the consumer, options of the successor, messages that its predecessor holds)
    (6, {"max_ack_pending": 6}, 1),  # the rest of its credit is too little for a request
    (100, {"max_ack_pending": 100, "max_bytes": 4096}, 4),
    (100, {"max_ack_pending": 6}, 12),
]


@pytest.mark.parametrize(("pending", "options", "count"), NARROW, ids=["messages", "bytes", "fewer than before"])
async def test_a_successor_with_too_little_credit_gets_the_messages_of_its_predecessor(
    natty, group, notes, go, pending, options, count
):
    place = Place(natty.jetstream, group, "m1", {"ack_wait": 2.0, "max_ack_pending": pending})
    await place.make([f"{partition}.{group.stream}.*" for partition in range(4)])
    theirs = go.pull(group.consumed_stream, "m1", batch=count)
    await fill(natty, group, range(count))
    await until(lambda: sum(bool(raw[1]) for raw in theirs) == count)
    async with group.join("m1", notes.handler(), ack_wait=2.0, dead_letters=False, **options) as m1:
        await has_state(m1, "standby")
        await fill(natty, group, range(count, count + 20))
        for raw in theirs:  # it is alive until now
            natty.connection.send(raw[1], b"+WPI")
        await m1.step_down()  # our open request gets as many new messages as it may, and then ends
        await notes.have(count + 20)
    assert notes.ordered


@pytest.mark.long
async def test_a_successor_requests_more_and_more_rarely_what_is_not_due(natty, group, notes, go):
    place = Place(natty.jetstream, group, "m1", {"ack_wait": 0.5, "max_ack_pending": 500})
    await place.make([f"{partition}.{group.stream}.*" for partition in range(4)])
    theirs = go.pull(group.consumed_stream, "m1", batch=1)
    await fill(natty, group, range(1))
    await until(lambda: len(theirs) == 1 and theirs[0][1])
    natty.connection.send(theirs[0][1], b'-NAK {"delay": 600000000000}')
    options = {"max_ack_pending": 500, "max_bytes": 4096}
    async with group.join("m1", notes.handler(), ack_wait=0.5, dead_letters=False, **options) as m1:
        await has_state(m1, "standby")
        await fill(natty, group, range(1, 301))
        await m1.step_down()
        await until(lambda: m1._reading.stint is not None and m1._reading.stint.pause > 2.0)
        assert len(m1._reading.stint.early) <= 4096 // 1000 + 5  # the fifth request beyond the credit doubled the pause
        assert notes.count == 0


async def fill(natty, group, numbers):
    """Publish numbers on one key, as messages of about 1 KiB."""
    for number in numbers:
        await natty.publish(f"{group.stream}.k", b"%1000d" % number)


@pytest.mark.long
async def test_members_follow_the_leader_of_their_stream(nats_cluster, natty_name, notes):
    nats_cluster.start()
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        group = await make(natty, natty_name("GROUP"), members=["m1", "m2"], num_replicas=3)
        await publish(natty, group.stream, range(2))
        async with group.join("m1", notes.handler(), **QUICK), group.join("m2", notes.handler(), **QUICK):
            await notes.have(16)
            for member in ("m1", "m2"):
                await natty.jetstream.request(f"CONSUMER.LEADER.STEPDOWN.{group.consumed_stream}.{member}")
            await natty.jetstream.request(f"STREAM.LEADER.STEPDOWN.{group.consumed_stream}")
            await publish(natty, group.stream, range(2, 4))
            await notes.have(32)
    assert notes.ordered
    assert notes.together == 0
