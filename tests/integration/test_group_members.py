import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from consuming import until
from go_groups import ELASTIC, Go, pinned_by
from group_members import LONG, QUICK, Notes, consumer, has_state, make, publish
from prometheus_client import CollectorRegistry, generate_latest

from natty import JetStreamError
from natty.errors import BadGroupError, GroupNotFoundError
from natty.groups.lag import lag
from natty.telemetry import collector

AS_CG = {"ack_wait": 2.0, "max_ack_pending": 1, "dead_letters": False}


@pytest.fixture
async def group(natty, natty_name):
    return await make(natty, natty_name("GROUP"), members=["m1"])


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def go(natty):
    return Go(natty)


def filters_of(group, *partitions):
    return [f"{partition}.{group.stream}.*" for partition in partitions]


async def test_two_members_share_the_keys_and_keep_each_in_order(natty, group, notes):
    await publish(natty, group.stream, range(5))
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await notes.have(40)
        assert (m1.partitions, m2.partitions, m2.state) == ((0, 1, 2, 3), (), "outside")
        await group.add("m2")
        await publish(natty, group.stream, range(5, 10))
        await notes.have(80)
        assert (m1.partitions, m2.partitions) == ((0, 1), (2, 3))
        assert m1.pinned
        assert m2.pinned
        assert m1.work.handled + m2.work.handled == notes.count == 80
        assert m2.work.handled > 0
        assert f"{m2!r}" == f"Membership({group.stream}/g, m2, active, partitions [2, 3])"
    assert notes.ordered
    assert notes.together == 0
    assert set(notes.done) == {f"{group.stream}.k{key}" for key in range(8)}
    await until(lambda: empty(natty, group))


async def empty(natty, group):
    state = await natty.jetstream.request(f"STREAM.INFO.{group.consumed_stream}")
    return not state["state"]["messages"]


async def test_events_tell_what_becomes_of_an_instance(natty, group, notes):
    seen = []
    async with group.join("m1", notes.handler(), on_event=seen.append, **LONG) as m1:
        heard = asyncio.create_task(collect(m1.events()))
        await publish(natty, group.stream, range(1))
        await notes.have(8)
        await has_state(m1, "active")
        await group.drop("m1")
        await has_state(m1, "outside")
    kinds = [event.kind for event in seen]
    for kind in ("standby", "active", "partitions", "handing over", "outside", "ended"):
        assert kind in kinds
    assert (await heard)[-1].kind == "ended"


async def collect(events):
    return [event async for event in events]


async def test_a_hand_over_drains_first_and_the_next_owner_waits_for_it(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await until(lambda: notes.begun == 4)  # one of each partition that has a key
        await group.add("m2")
        await has_state(m1, "handing over")
        await has_state(m2, "waiting")
        await asyncio.sleep(0.5)
        assert (m1.state, m2.state, notes.begun) == ("handing over", "waiting", 4)
        notes.gate.set()
        await notes.have(16)
        assert notes.count == 16  # what ran was acknowledged before the consumer was given up
        assert m1.handed_over == 1
        assert m1.hand_over_seconds > 0
    assert notes.together == 0
    assert notes.ordered


@pytest.mark.long
async def test_the_pin_is_kept_while_a_handler_takes_longer_than_the_ack_wait(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **QUICK) as m1, group.join("m1", notes.handler(), **QUICK) as standby:
        await until(lambda: m1.pinned or standby.pinned)
        owner = m1 if m1.pinned else standby
        await until(lambda: notes.begun == 4)
        pin = (await consumer(natty, group, "m1"))["priority_groups"][0]["pinned_client_id"]
        await asyncio.sleep(3 * QUICK["ack_wait"])
        if owner.work.cut_short == 0:  # else this machine stood still, and the lease ended
            assert (await consumer(natty, group, "m1"))["priority_groups"][0]["pinned_client_id"] == pin
            assert notes.begun == 4
        notes.gate.set()
        await notes.have(16)
    assert notes.together == 0


@pytest.mark.parametrize("refuse", [True, False])
async def test_a_message_that_fails_keeps_its_place(natty, group, refuse):
    got, fails = [], [2 if refuse else 10**6]

    async def handle(message):
        if message.data == b"3" and fails[0]:
            fails[0] -= 1
            raise RuntimeError("not now")
        got.append((message.subject, int(message.data)))

    await publish(natty, group.stream, range(6), keys=1)
    letters = {} if refuse else {"dead_letters": True}
    async with group.join("m1", handle, **{**LONG, **letters}, retries=(0.05, 0.05)) as m1:
        await until(lambda: len(got) == (6 if refuse else 5))
        assert (m1.counts["failed"], m1.counts["buried"]) == ((2, 0) if refuse else (3, 1))
    assert [number for _, number in got] == [0, 1, 2, *([3] if refuse else []), 4, 5]
    if not refuse:
        (letter,) = [one async for one in natty.dead_letters().ls() if one.stream == group.consumed_stream]
        assert letter.subject == f"{group.stream}.k0"  # where a retry publishes it


async def test_a_plain_function_runs_in_a_thread_and_settles_what_it_wants(natty, group):
    got = []

    def handle(message):
        got.append(message.data)
        message.ack()

    await publish(natty, group.stream, range(3), keys=1)
    async with group.join("m1", handle, **LONG):
        await until(lambda: got == [b"0", b"1", b"2"])
    await until(lambda: empty(natty, group))


async def test_joining_what_is_not_there_says_so(natty, natty_name, notes):
    await natty.create_stream(name := natty_name("S"), subjects=[f"{name}.>"])
    with pytest.raises(GroupNotFoundError):
        await natty.group(name, "g").join("m1", notes.handler()).__aenter__()
    with pytest.raises(ValueError, match="order"):
        natty.group(name, "g").join("m1", notes.handler(), ordered_by=None)
    with pytest.raises(TypeError, match="handler"):
        natty.group(name, "g").join("m1")


# Beside members written in Go: raw requests as the appendix of the protocol records them.


async def test_what_an_instance_sends_is_as_the_protocol_says(natty, group, notes):
    sent = {}
    for subject in ("CONSUMER.CREATE", "CONSUMER.MSG.NEXT"):
        sent[subject] = []
        natty.connection.subscribe(f"$JS.API.{subject}.{group.consumed_stream}.m1", sent[subject].extend)
    natty.connection.subscribe(f"$JS.ACK.{group.consumed_stream}.m1.>", sent.setdefault("ACK", []).extend)
    notes.gate.clear()
    await publish(natty, group.stream, range(1), keys=1)
    async with group.join("m1", notes.handler(), **QUICK) as m1:
        await until(lambda: any(raw[3] == b"+WPI" for raw in sent["ACK"]))  # while the handler runs
        notes.gate.set()
        await notes.have(1)
        assert m1.work.options.settings["ack_wait"] == 1.0
    made = [json.loads(raw[3]) for raw in sent["CONSUMER.CREATE"]]
    assert [(one["action"], one["config"]["filter_subjects"]) for one in made] == [
        ("create", filters_of(group, 0, 1, 2, 3))
    ]
    asked = [json.loads(raw[3]) for raw in sent["CONSUMER.MSG.NEXT"]]
    assert {one["group"] for one in asked} == {"PCG"}
    assert "id" not in asked[0]  # nobody is pinned before a message came
    assert all(one["id"] for one in asked if one.get("max_bytes") == 1)
    assert len({one["id"] for one in asked if one.get("max_bytes") == 1}) == 1


async def test_our_consumer_and_gos_are_the_same(natty, group, notes, go):
    async with group.join("m1", notes.handler(), **AS_CG) as m1:
        await has_state(m1, "standby")
        ours = await consumer(natty, group, "m1")
        again = await go.make_consumer(group.stream, "g", "m1", filters_of(group, 0, 1, 2, 3), ack_wait=2)
        assert again.get("created") == ours["created"], again
        assert again["config"] == ours["config"]


async def test_an_instance_in_go_and_ours_are_each_others_standby(natty, group, notes, go):
    await go.make_consumer(group.stream, "g", "m1", filters_of(group, 0, 1, 2, 3), ack_wait=2)
    theirs = go.pull(group.consumed_stream, "m1")
    async with group.join("m1", notes.handler(), **AS_CG) as m1:
        await has_state(m1, "standby")
        await publish(natty, group.stream, range(1))
        await until(lambda: any(raw[1] for raw in theirs))
        first = next(raw for raw in theirs if raw[1])
        assert notes.count == 0
        natty.connection.send(first[1], b"+ACK")  # and no pull after this: its pin runs out
        await notes.have(7)  # with all but what it had acknowledged
        assert m1.pinned
        theirs = go.pull(group.consumed_stream, "m1")
    await publish(natty, group.stream, range(1, 2))
    await until(lambda: any(raw[1] for raw in theirs))
    assert pinned_by(next(raw for raw in theirs if raw[1])) != pinned_by(first)


async def test_members_in_go_and_ours_share_a_group(natty, group, notes, go):
    await group.add("m2")
    await go.make_consumer(group.stream, "g", "m2", filters_of(group, 2, 3), ack_wait=60)
    theirs = go.pull(group.consumed_stream, "m2")
    async with group.join("m1", notes.handler(), **LONG), AsyncExitStack() as stack:
        await publish(natty, group.stream, range(2))
        got = set()
        while len(got) + notes.count < 16:  # Go's member: one at a time
            for raw in [raw for raw in theirs if raw[1] and raw[1] not in got]:
                got.add(raw[1])
                natty.connection.send(raw[1], b"+ACK")
            await asyncio.sleep(0.01)
        assert len(got) > 0
        await group.add("m3")  # m2 has 1 and 3 less: its instance in Go deletes its consumer and makes it again
        m3 = await stack.enter_async_context(group.join("m3", notes.handler(), **LONG))
        await go.ask(f"CONSUMER.DELETE.{group.consumed_stream}.m2")
        wanted = filters_of(group, *(await parts(group, "m2")))

        async def made():  # refused until ours has drained and given its partition up
            return "error" not in await go.make_consumer(group.stream, "g", "m2", wanted)

        await until(made)
        await has_state(m3, "standby")
        assert (await consumer(natty, group, "m3"))["config"]["filter_subjects"] == filters_of(
            group, *(await parts(group, "m3"))
        )


async def parts(group, member):
    return (await group.read()).partitions_of(member)


@pytest.mark.parametrize("operation", ["DEL", "PURGE"])
async def test_a_group_that_is_deleted_or_purged_by_others_ends_its_members(natty, group, notes, go, operation):
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await group.add("m2")
        await until(lambda: m1.partitions == (0, 1))  # it follows the record
        await go.delete(ELASTIC, group.key, operation)
        await m1.ended()
    assert m1.state == "ended"


async def test_members_end_with_the_reason_when_what_is_fixed_was_changed(natty, group, notes, go):
    async with group.join("m1", notes.handler(), **LONG) as m1:
        value, _, _ = await go.get(ELASTIC, group.key)
        await go.put(ELASTIC, group.key, value.replace(b'"max_members":4', b'"max_members":5'))
        with pytest.raises(BadGroupError, match="never may"):
            await m1.ended()


async def test_mappings_and_members_can_be_switched_while_members_run(natty, group, notes):
    async with group.join("m1", notes.handler(), **LONG) as m1, group.join("m2", notes.handler(), **LONG) as m2:
        await publish(natty, group.stream, range(2))
        await notes.have(16)
        await group.set_mappings({"m1": [3], "m2": [0, 1, 2]})
        await publish(natty, group.stream, range(2, 4))
        await notes.have(32)
        assert (m1.partitions, m2.partitions) == ((3,), (0, 1, 2))
        await group.delete_mappings()
        await has_state(m1, "outside")
        await has_state(m2, "outside")
        await group.add("m2")
        await publish(natty, group.stream, range(4, 6))
        await notes.have(48)
    assert notes.ordered
    assert notes.together == 0


async def test_stepping_down_gives_the_pin_to_a_standby_that_waits_for_what_runs(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1, AsyncExitStack() as stack:
        await until(lambda: notes.begun == 4)
        standby = await stack.enter_async_context(group.join("m1", notes.handler(), **LONG))
        await has_state(standby, "standby")
        await asyncio.sleep(0.1)  # until its request waits at the server
        await group.step_down("m1")
        await has_state(standby, "taking over")
        await has_state(m1, "standby")
        await asyncio.sleep(0.3)
        assert notes.begun == 4
        notes.gate.set()
        await notes.have(16)
        assert notes.count == 16
        assert standby.work.handled == 12
    assert notes.together == 0
    assert notes.ordered


async def test_an_instance_whose_settings_differ_uses_the_consumer_that_is_there(natty, group, notes, caplog):
    async with group.join("m1", notes.handler(), **LONG), AsyncExitStack() as stack:
        await until(lambda: exists(natty, group))
        created = (await consumer(natty, group, "m1"))["created"]
        other = await stack.enter_async_context(group.join("m1", notes.handler(), **AS_CG))
        await has_state(other, "standby")
        assert (await consumer(natty, group, "m1"))["created"] == created
    assert "was made with ack_wait 60 s" in caplog.text


async def exists(natty, group):
    try:
        return bool(await consumer(natty, group, "m1"))
    except JetStreamError:
        return False


# Static groups.


@pytest.fixture
async def static(natty, natty_name):
    """A static group of two partitions, on a stream that puts the partition into its subjects."""
    name = natty_name("STATIC")
    transform = {"src": f"{name}.*", "dest": f"{{{{partition(2,1)}}}}.{name}.{{{{wildcard(1)}}}}"}
    await natty.create_stream(name, subjects=[f"{name}.*"], subject_transform=transform)
    group = natty.static_group(name, "g")
    await group.create(2, [f"{name}.*"], members=["m1", "m2"])
    return group


async def test_static_members_read_their_partitions_and_keep_their_position(natty, static, notes):
    await publish(natty, static.stream, range(2))
    async with static.join("m1", notes.handler(), **LONG) as m1, static.join("m2", notes.handler(), **LONG) as m2:
        await notes.have(16)
        assert (m1.partitions, m2.partitions) == ((0,), (1,))
        assert m1.work.handled + m2.work.handled == 16
    await publish(natty, static.stream, range(2, 3))
    async with static.join("m1", notes.handler(), **LONG), static.join("m2", notes.handler(), **LONG):
        await notes.have(24)
    assert notes.count == 24
    assert notes.ordered


async def test_a_static_group_does_not_take_whom_it_does_not_list(static, notes):
    with pytest.raises(BadGroupError, match="does not list member m3"):
        await static.join("m3", notes.handler()).__aenter__()


async def test_a_static_record_that_is_changed_ends_the_members_and_keeps_their_position(natty, static, notes, go):
    bucket = "static-consumer-groups"
    async with static.join("m1", notes.handler(), **LONG) as m1:
        await has_state(m1, "standby")
        value, _, _ = await go.get(bucket, static.key)
        await go.put(bucket, static.key, value.replace(b'"m2"', b'"m9"'))
        with pytest.raises(BadGroupError, match="never may"):
            await m1.ended()
    assert await consumer(natty, static, "m1")


async def test_deleting_a_static_group_ends_its_members_and_their_consumers(natty, static, notes, go):
    async with static.join("m1", notes.handler(), **LONG) as m1:
        await has_state(m1, "standby")
        await go.delete("static-consumer-groups", static.key)
        await m1.ended()
        assert not await exists(natty, static)


async def test_metrics_and_lag_show_a_member_at_work(natty, group, notes):
    notes.gate.clear()
    await publish(natty, group.stream, range(2))
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await until(lambda: notes.begun == 4)
        assert sum((await lag(natty.jetstream, group)).values()) == 16
        labels = f'{{group="g",member="m1",stream="{group.stream}"}}'
        assert figures(natty)[f"natty_group_pinned{labels}"] == 1
        assert figures(natty)[f"natty_group_partitions{labels}"] == 4
        notes.gate.set()
        await notes.have(16)
        await group.drop("m1")
        await has_state(m1, "outside")
        assert figures(natty)[f"natty_group_rebalances_total{labels}"] == 1
        assert figures(natty)[f"natty_group_hand_overs_total{labels}"] == 1
        assert figures(natty)[f"natty_group_hand_over_seconds_total{labels}"] > 0
    assert set((await lag(natty.jetstream, group)).values()) == {0}


async def test_the_lag_of_a_static_group_is_what_is_behind_its_members(natty, static, notes):
    await publish(natty, static.stream, range(2))
    assert sum((await lag(natty.jetstream, static)).values()) == 16
    async with static.join("m1", notes.handler(), **LONG):
        await until(lambda: notes.count and notes.count == sum(map(len, notes.done.values())))

        async def caught_up():
            return (await lag(natty.jetstream, static))[0] == 0

        await until(caught_up)
    assert (await lag(natty.jetstream, static))[1] == 16 - notes.count


def figures(natty):
    """Return what a scrape shows, by name and labels."""
    registry = CollectorRegistry()
    registry.register(collector(natty))
    lines = generate_latest(registry).decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}
