"""Members beside those written in Go: raw requests as the appendix of the protocol records them."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from consuming import until
from go_groups import ELASTIC, pinned_by
from group_members import LONG, QUICK, consumer, has_state, publish

from natty.errors import BadGroupError

AS_CG = {"ack_wait": 2.0, "max_ack_pending": 1, "dead_letters": False}


def filters_of(group, *partitions):
    return [f"{partition}.{group.stream}.*" for partition in partitions]


async def test_what_an_instance_sends_is_as_the_protocol_says(natty, group, notes):
    sent = {}
    subjects = {name: f"$JS.API.{name}.{group.consumed_stream}.m1" for name in ("CONSUMER.CREATE", "CONSUMER.MSG.NEXT")}
    for name, subject in {**subjects, "ACK": f"$JS.ACK.{group.consumed_stream}.m1.>"}.items():
        sent[name] = []
        natty.connection.subscribe(subject, lambda batch, name=name: sent[name].extend(batch.raw))
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


@pytest.mark.long
async def test_the_partitions_of_a_dropped_member_that_nobody_runs_come_when_the_server_has_removed_its_consumer(
    natty, group, notes, go
):
    await group.add("m2")
    await go.make_consumer(group.stream, "g", "m2", filters_of(group, 2, 3), ack_wait=1)
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await publish(natty, group.stream, range(1))
        await until(lambda: m1.partitions == (0, 1))
        await group.drop("m2")
        await notes.have(8)
        assert m1.partitions == (0, 1, 2, 3)
    assert notes.count == 8


async def parts(group, member):
    return (await group.read()).partitions_of(member)


@pytest.mark.parametrize("operation", ["DEL", "PURGE"])
async def test_a_group_that_is_deleted_or_purged_by_others_ends_its_members(natty, group, notes, go, operation):
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await group.add("m2")
        await until(lambda: m1.partitions == (0, 1))  # it follows the record
        await go.delete(ELASTIC, group.key, operation)
        await m1.wait_until_ended()
    assert m1.state == "ended"


async def test_members_end_with_the_reason_when_what_is_fixed_was_changed(natty, group, notes, go):
    async with group.join("m1", notes.handler(), **LONG) as m1:
        value, _, _ = await go.get(ELASTIC, group.key)
        await go.put(ELASTIC, group.key, value.replace(b'"max_members":4', b'"max_members":5'))
        with pytest.raises(BadGroupError, match=r"fixed settings of group g of .* were changed"):
            await m1.wait_until_ended()
