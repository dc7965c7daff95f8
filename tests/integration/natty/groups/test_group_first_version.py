"""Groups of pcgroups 0.1: read, refused where members would harm them, and converted without loss."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from command_line import settings_of
from consuming import until
from go_groups import ELASTIC, STATIC, Go
from group_members import LONG, QUICK, consumer, has_state, partitioned, publish
from patient import PATIENCE, PATIENT
from servers import old_server

from natty import BadGroupError, Natty
from natty.errors import ConsumerExistsError, GroupExistsError
from natty.groups import PartitioningFilter
from natty.testing import NatsServer

MEMBERS = ("m1", "m2")
BALANCED = {"members": ["m1", "m2"]}
MAPPED = {"member_mappings": [{"member": "m1", "partitions": [0]}, {"member": "m2", "partitions": [1]}]}


async def make_elastic(natty, go, stream, members=BALANCED):
    """Create a group "g" of two partitions as 0.1 does, with messages 0 and 1 of eight keys in its work queue."""
    await natty.create_stream(stream, subjects=[f"{stream}.*"])
    await go.make_bucket(ELASTIC)
    fields = {"max_members": 2, "filter": f"{stream}.*", "partitioning_wildcards": [1], **members}
    await go.put(ELASTIC, f"{stream}.g", json.dumps(fields, separators=(",", ":")).encode())
    destination = f"{{{{Partition(2,1)}}}}.{stream}.{{{{Wildcard(1)}}}}"
    assert "error" not in await go.make_work_queue(stream, "g", [(f"{stream}.*", destination)])
    await publish(natty, stream, range(2))
    group = natty.group(stream, "g")
    async with asyncio.timeout(PATIENCE):
        while await group.count_buffered() != 16:
            await asyncio.sleep(0.02)
    return group


async def make_static(natty, go, stream, *, ack_wait=60, filter_=">"):
    """Create a group "g" of two partitions and its consumers as 0.1 does, with messages 0 and 1 of eight keys."""
    await natty.create_stream(stream, **partitioned(stream, 2))
    await go.make_bucket(STATIC)
    fields = {"max_members": 2, "filter": filter_, **BALANCED}
    await go.put(STATIC, f"{stream}.g", json.dumps(fields, separators=(",", ":")).encode())
    for partition, member in enumerate(MEMBERS):
        await go.make_first_consumer(stream, f"g-{member}", member, [f"{partition}.>"], ack_wait=ack_wait, durable=True)
    await publish(natty, stream, range(2))
    return natty.static_group(stream, "g")


async def handle_some(natty, group, member, *, acked):
    """Read three messages as an instance of 0.1 that acknowledges some of them and ends; return these."""
    name = group.consumer_name(member)
    pulled = Go(natty).pull(group.consumed_stream, name, group=member, batch=3)
    await until(lambda: sum(bool(raw[1]) for raw in pulled) == 3)
    for raw in pulled[:acked]:
        await natty.connection.request(raw[1], b"+ACK")
    await natty.jetstream.request(f"CONSUMER.UNPIN.{group.consumed_stream}.{name}", {"group": member})
    return [(raw[0].decode().partition(".")[2], int(raw[3])) for raw in pulled[:acked]]


def check_continued(group, handled, notes):
    """Assert that natty handled exactly the messages that 0.1 had not handled, in order."""
    every = {(f"{group.stream}.k{key}", number) for key in range(8) for number in range(2)}
    assert {(subject, number) for subject, numbers in notes.done.items() for number in numbers} == every - {*handled}
    assert notes.ordered


async def test_an_elastic_group_is_read_and_what_would_harm_it_is_refused(natty, go, notes, natty_name):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    value, revision, _ = await go.get(ELASTIC, group.key)
    assert (await group.read()).partitioning_filters() == (PartitioningFilter(f"{group.stream}.*", (1,)),)
    assert [(one.name, one.partitions) for one in await group.members()] == [("m1", (0,)), ("m2", (1,))]
    for use in (
        group.add("m3"),
        group.drop("m1"),
        group.set_mappings({"m1": [0, 1]}),
        group.create(2, [PartitioningFilter(f"{group.stream}.*", (1,))]),
        group.join("m1", notes.handler()).__aenter__(),
        group.join(handler=notes.handler()).__aenter__(),
    ):
        with pytest.raises(
            BadGroupError, match=f"was created by pcgroups 0.1: .*group elastic upgrade {group.stream} g"
        ):
            await use
    assert (await go.get(ELASTIC, group.key))[:2] == (value, revision)


@pytest.mark.long
@pytest.mark.parametrize("members", [BALANCED, MAPPED], ids=["balanced", "mapped"])
async def test_members_of_a_converted_elastic_group_handle_what_those_before_them_left(
    natty, go, notes, natty_name, members
):
    group = await make_elastic(natty, go, natty_name("FIRST"), members)
    for partition, member in enumerate(MEMBERS):
        await go.make_first_consumer(group.consumed_stream, member, member, [f"{partition}.>"], ack_wait=2)
    handled = [one for member in MEMBERS for one in await handle_some(natty, group, member, acked=2)]
    assert await group.upgrade() == [f"record {group.key}"]
    assert await group.upgrade() == []
    fields = {
        "max_members": 2,
        "partitioning_filters": [{"filter": f"{group.stream}.*", "partitioning_wildcards": [1]}],
        **members,
    }
    assert (await go.get(ELASTIC, group.key))[0] == json.dumps(fields, separators=(",", ":")).encode()
    async with group.join("m1", notes.handler(), **LONG), group.join("m2", notes.handler(), **LONG):
        await notes.have(12)
    check_continued(group, handled, notes)
    assert await group.count_buffered() == 0


@pytest.mark.parametrize("priority_group", ["m2", "PCG"])  # of 0.1, and of what came after it before 0.2
async def test_an_elastic_group_that_0_1_still_reads_is_converted_only_by_force(natty, go, natty_name, priority_group):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    await go.make_first_consumer(group.consumed_stream, "m2", "m2", ["1.>"], ack_wait=60, priority_group=priority_group)
    pulled = go.pull(group.consumed_stream, "m2", group=priority_group)
    await until(lambda: any(raw[1] for raw in pulled))
    (state,) = [one for one in await group.members() if one.name == "m2"]
    assert (state.outdated, state.active) == (priority_group == "m2", True)
    value = (await go.get(ELASTIC, group.key))[0]
    with pytest.raises(BadGroupError, match=r"programs with pcgroups 0.1 read .* as m2: stop them"):
        await group.upgrade()
    assert (await go.get(ELASTIC, group.key))[0] == value
    assert await group.upgrade(force=True) == [f"record {group.key}"]
    assert not (await group.read()).outdated


async def test_a_member_that_0_1_adds_during_the_conversion_is_kept(natty, go, natty_name, monkeypatch):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    look = group.members

    async def add_during_look():
        value = (await go.get(ELASTIC, group.key))[0]
        await go.put(ELASTIC, group.key, value.replace(b'["m1","m2"]', b'["m1","m2","m3"]'))
        return await look()

    monkeypatch.setattr(group, "members", add_during_look)
    await group.upgrade()
    record = await group.read()
    assert (record.outdated, record.members) == (False, ("m1", "m2", "m3"))


async def test_a_record_that_0_1_cannot_have_written_is_not_converted(natty, go, natty_name):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    fields = {"max_members": 2, "filter": f"{group.stream}.*", "partitioning-wildcards": [1], "member-mappings": []}
    for wrong, named in (
        (fields, "partitioning-wildcards, member-mappings"),
        ({"max_members": 2, "filter": f"{group.stream}.*", **BALANCED}, "no partitioning_wildcards"),
    ):
        await go.put(ELASTIC, group.key, json.dumps(wrong).encode())
        before = (await go.get(ELASTIC, group.key))[:2]
        for use in (group.upgrade, group.read, lambda: group.add("m3")):
            with pytest.raises(BadGroupError, match=named):
                await use()
        assert (await go.get(ELASTIC, group.key))[:2] == before
    assert await group.delete() == []


async def test_of_two_conversions_at_once_one_says_that_it_converted(natty, go, natty_name, monkeypatch):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    look = group.members

    async def convert_during_look():
        monkeypatch.setattr(group, "members", look)
        assert await group.upgrade() == [f"record {group.key}"]
        return await look()

    monkeypatch.setattr(group, "members", convert_during_look)
    assert await group.upgrade() == []


async def test_a_group_whose_work_queue_is_another_stream_is_not_converted(natty, go, natty_name):
    group = await make_elastic(natty, go, natty_name("FIRST"))
    await natty.jetstream.request(f"STREAM.DELETE.{group.consumed_stream}")
    await natty.create_stream(group.consumed_stream, subjects=[f"other.{group.stream}"])
    with pytest.raises(GroupExistsError, match="there is another stream of that name"):
        await group.upgrade()
    assert (await group.read()).outdated


async def test_members_of_a_converted_static_group_continue_where_those_before_them_were(natty, go, notes, natty_name):
    group = await make_static(natty, go, natty_name("FIRST"), ack_wait=1)
    revision = (await go.get(STATIC, group.key))[1]
    handled = [one for member in MEMBERS for one in await handle_some(natty, group, member, acked=2)]
    assert await group.upgrade() == ["consumer g-m1", "consumer g-m2"]
    assert await group.upgrade() == []
    assert (await go.get(STATIC, group.key))[1] == revision  # a member of 0.1 deletes its consumer when it changes
    async with group.join("m1", notes.handler(), **QUICK), group.join("m2", notes.handler(), **QUICK):
        await notes.have(12)
    check_continued(group, handled, notes)


async def test_a_static_group_that_0_1_still_reads_is_converted_only_by_force(natty, go, notes, natty_name):
    group = await make_static(natty, go, natty_name("FIRST"))
    pulled = go.pull(group.stream, "g-m1", group="m1", batch=3)
    await until(lambda: any(raw[1] for raw in pulled))
    with pytest.raises(BadGroupError, match=r"programs with pcgroups 0.1 read .* as m1: stop them"):
        await group.upgrade()
    assert [one.outdated for one in await group.members()] == [True, True]
    assert await group.upgrade(force=True) == ["consumer g-m1", "consumer g-m2"]
    again = go.pull(group.stream, "g-m1", group="m1")
    await until(lambda: any(b"Invalid Priority Group" in raw[2] for raw in again))
    state = await consumer(natty, group, "m1")
    assert (state["num_ack_pending"], state["config"]["priority_groups"]) == (3, ["PCG"])


async def test_an_interrupted_conversion_of_a_static_group_is_completed_by_the_next(natty, go, notes, natty_name):
    group = await make_static(natty, go, natty_name("FIRST"))
    assert await group._convert_consumer("m1")  # and then it was interrupted
    async with group.join("m1", notes.handler(), **LONG) as m1:
        await has_state(m1, "active")
        created = (await consumer(natty, group, "m1"))["created"]
        assert await group.upgrade() == ["consumer g-m2"]
        assert (await consumer(natty, group, "m1"))["created"] == created
        async with group.join("m2", notes.handler(), **LONG):
            await notes.have(16)
        assert m1.state == "active"
    check_continued(group, [], notes)


@pytest.mark.long
async def test_a_conversion_that_is_killed_is_completed_by_the_next_with_no_position_lost(
    natty, go, nats_server, natty_name, tmp_path
):
    stream, members = natty_name("FIRST"), [f"m{number}" for number in range(40)]
    await natty.create_stream(stream, **partitioned(stream, 40))
    await go.make_bucket(STATIC)
    await go.put(STATIC, f"{stream}.g", json.dumps({"max_members": 40, "filter": ">", "members": members}).encode())
    group = natty.static_group(stream, "g")
    record = await group.read()
    for member in members:
        filters = record.filters_of(member)
        await go.make_first_consumer(stream, f"g-{member}", member, filters, ack_wait=60, durable=True)
    before = {member: await consumer(natty, group, member) for member in members}
    converted = asyncio.Event()
    natty.connection.subscribe(f"$JS.API.CONSUMER.CREATE.{stream}.>", lambda _: converted.set())
    command = [sys.executable, "-m", "natty", "group", "static", "upgrade", stream, "g"]
    environment = {**os.environ, **settings_of(nats_server.connect_options(), tmp_path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        async with asyncio.timeout(PATIENCE):
            await converted.wait()
        process.kill()
    left = [one.name for one in await group.members() if one.outdated]
    assert await group.upgrade() == [f"consumer g-{member}" for member in left]
    for member, state in before.items():
        after = await consumer(natty, group, member)
        assert after["config"] == state["config"] | {"priority_groups": ["PCG"]}
        assert (after["created"], after["delivered"]) == (state["created"], state["delivered"])


async def test_a_static_member_tells_how_to_convert_a_consumer_of_0_1_and_leaves_it(natty, go, notes, natty_name):
    group = await make_static(natty, go, natty_name("FIRST"))
    before = await consumer(natty, group, "m1")
    async with group.join("m1", notes.handler(), **LONG) as m1:
        with pytest.raises(
            ConsumerExistsError, match=f"g-m1 of {group.stream} .*group static upgrade {group.stream} g"
        ):
            await m1.wait_until_ended()
    with pytest.raises(BadGroupError, match=r"member m1 of .* was created by pcgroups 0\.1"):
        await group.step_down("m1")
    after = await consumer(natty, group, "m1")
    assert (after["created"], after["config"]) == (before["created"], before["config"])


async def test_what_was_converted_is_what_go_creates_now(natty, go, natty_name):
    group = await make_static(natty, go, natty_name("FIRST"), ack_wait=6)
    await group.upgrade()
    config = {
        "durable_name": "g-m1",
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": 6_000_000_000,
        "replay_policy": "instant",
        "max_ack_pending": 3,
        "num_replicas": 0,
        "filter_subjects": ["0.>"],
        "priority_policy": "pinned_client",
        "priority_timeout": 6_000_000_000,
        "priority_groups": ["PCG"],
    }
    body = {"stream_name": group.stream, "config": config, "action": "create"}
    assert "error" not in await go.ask(f"CONSUMER.CREATE.{group.stream}.g-m1", body)


async def test_a_group_of_0_1_is_deleted_with_its_consumers(natty, go, natty_name):
    static = await make_static(natty, go, natty_name("FIRST"))
    assert await static.delete() == []
    assert (await natty.jetstream.request(f"CONSUMER.NAMES.{static.stream}"))["consumers"] in ([], None)
    elastic = await make_elastic(natty, go, natty_name("FIRST"))
    assert await elastic.delete() == []
    assert await elastic.count_buffered() is None


@pytest.mark.long
async def test_a_static_group_is_converted_on_the_oldest_server_that_has_groups(natty_tls, tmp_path, notes):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=old_server("2.11.0")) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            group = await make_static(natty, Go(natty), "S", ack_wait=1)
            handled = await handle_some(natty, group, "m1", acked=2)
            await group.upgrade()
            async with group.join("m1", notes.handler(), **QUICK), group.join("m2", notes.handler(), **QUICK):
                await notes.have(14)
    check_continued(group, handled, notes)
