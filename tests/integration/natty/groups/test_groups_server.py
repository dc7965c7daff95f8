"""The server's share: its partitions are the ones computed here, and it takes the consumers of members."""

import asyncio
import json

import pytest
from go_groups import ELASTIC, pinned_by
from patient import PATIENCE, until

from natty import BadGroupError, ConsumerNotFoundError
from natty.groups import ElasticAdmin, PartitioningFilter, StaticAdmin
from natty.groups.partitions import key_of, partition_of
from natty.groups.settings import elastic_consumer, static_member_consumer
from natty.pulling.pin import PIN_HEADER


async def buffered(group, count):
    """Wait until so many messages have come into the work queue."""
    async with asyncio.timeout(PATIENCE):
        while await group.count_buffered() != count:
            await asyncio.sleep(0.02)


async def test_the_server_partitions_as_is_computed_here(natty, natty_name):
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    filters = [
        PartitioningFilter(f"{name}.foo.>"),
        PartitioningFilter(f"{name}.bar.*.*", (2, 1)),
        PartitioningFilter(f"{name}.one.*.*.>", (2,)),
        PartitioningFilter(f"{name}.tail.*", ()),
    ]
    group = ElasticAdmin(natty.jetstream, name, "cg")
    await group.create(7, filters)
    tails = ["foo.a", "foo.a.b", "foo.x.y.z", "bar.aa.b", "bar.a.ab", "bar.k1.k2", "one.é.日.x.y", "tail.q", "bar.x"]
    tails += [f"one.{number}.{number * number}.z" for number in range(30)]
    for tail in tails:
        await natty.publish(f"{name}.{tail}", b"")
    taken = [tail for tail in tails if tail != "bar.x"]
    await buffered(group, len(taken))
    for sequence in range(1, len(taken) + 1):
        message = await natty.jetstream.read(f"{name}-cg", sequence=sequence)
        token, _, subject = message.subject.partition(".")
        (one,) = [one for one in filters if matches(one.filter.split("."), subject.split("."))]
        assert int(token) == partition_of(key_of(subject, one), 7), subject
        stream, origin, *_ = message.headers["Nats-Stream-Source"][0].split(" ")
        assert (stream, subject) == (name, f"{name}.{tails[int(origin) - 1]}")


def matches(pattern, tokens):
    paired = zip(pattern, tokens, strict=False)
    whole = len(pattern) == len(tokens) or (pattern[-1] == ">" and len(tokens) >= len(pattern))
    return whole and all(one in ("*", ">", token) for one, token in paired)


async def consumer(natty, stream, config):
    """Make a member's consumer and return how many messages wait for it."""
    body = {"stream_name": stream, "config": config, "action": "create"}
    made = await natty.jetstream.request(f"CONSUMER.CREATE.{stream}.{config['name']}", body)
    return made["num_pending"]


async def test_members_of_an_elastic_group_have_the_counts_of_gos_test_and_never_overlap(natty, natty_name):
    name = natty_name("test")
    await natty.create_stream(name, subjects=[f"{name}.*.*"])
    filters = [PartitioningFilter(f"{name}.{one}.*", (1,)) for one in ("foo", "bar")]
    group = ElasticAdmin(natty.jetstream, name, "group")
    await group.create(2, filters, max_messages=-1, max_bytes=-1)
    for kind in ("foo", "bad", "bar"):
        for number in range(10):
            await natty.publish(f"{name}.{kind}.{number}", b"")
    await buffered(group, 20)
    record = (await group.add("m1")).after
    assert await consumer(natty, f"{name}-group", elastic_consumer("m1", record.filters_of("m1"))) == 20
    record = (await group.add("m2")).after
    with pytest.raises(Exception, match="10100"):
        await consumer(natty, f"{name}-group", elastic_consumer("m2", record.filters_of("m2")))
    await natty.delete_consumer(f"{name}-group", "m1")
    counts = [
        await consumer(natty, f"{name}-group", elastic_consumer(one, record.filters_of(one))) for one in ("m1", "m2")
    ]
    assert counts == [10, 10]
    whole = ElasticAdmin(natty.jetstream, name, "group2")
    await whole.create(2, [])
    record = (await whole.add("m1", "m2")).after
    await buffered(whole, 30)
    counts = [
        await consumer(natty, f"{name}-group2", elastic_consumer(one, record.filters_of(one))) for one in ("m1", "m2")
    ]
    subjects = [f"{name}.{kind}.{number}" for kind in ("foo", "bar", "bad") for number in range(10)]
    assert counts == [[partition_of(one, 2) for one in subjects].count(number) for number in range(2)]


@pytest.mark.parametrize(
    ("partitions", "members"), [(1, 1), (3, 2), (10, 3), (10, 4), (7, 7), (5, 9), (64, 5)], ids=str
)
async def test_the_server_takes_the_filters_of_all_members_together(natty, natty_name, partitions, members):
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.*.>"])
    group = ElasticAdmin(natty.jetstream, name, "cg")
    await group.create(partitions, [PartitioningFilter(f"{name}.a.*", (1,)), PartitioningFilter(f"{name}.b.>")])
    record = (await group.add(*(f"m{number}" for number in range(members)))).after
    for member in record.members:
        if member not in record.without_partition:
            await consumer(natty, f"{name}-cg", elastic_consumer(member, record.filters_of(member)))
    mapped = {"x": list(range(partitions))[::2], "y": list(range(partitions))[1::2]}
    if partitions > 1:
        for member in record.members:
            await natty.delete_consumer(f"{name}-cg", member)
        record = (await group.set_mappings(mapped)).after
        for member in mapped:
            await consumer(natty, f"{name}-cg", elastic_consumer(member, record.filters_of(member)))


async def test_gos_consumer_and_ours_are_one_and_any_difference_is_refused(natty, go, natty_name):
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.*"])
    group = ElasticAdmin(natty.jetstream, name, "cg")
    await group.create(3, [PartitioningFilter(f"{name}.*", (1,))])
    filters = (await group.add("m1", "m2")).after.filters_of("m1")
    assert filters == [f"0.{name}.*", f"2.{name}.*"]
    made = await go.make_consumer(name, "cg", "m1", filters)
    assert "error" not in made
    await consumer(natty, f"{name}-cg", elastic_consumer("m1", filters))
    assert (await go.ask(f"CONSUMER.INFO.{name}-cg.m1"))["created"] == made["created"]
    for other in (elastic_consumer("m1", filters[::-1]), elastic_consumer("m1", filters, {"ack_wait": 2.0})):
        with pytest.raises(Exception, match="10148"):
            await consumer(natty, f"{name}-cg", other)


async def test_a_member_is_active_if_an_instance_of_it_reads_and_not_because_another_is(natty, go, natty_name):
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.*"])
    group = ElasticAdmin(natty.jetstream, name, "cg")
    await group.create(2, [PartitioningFilter(f"{name}.*", (1,))])
    record = (await group.add("m1", "m2", "bad_name", "m3")).after
    assert record.without_partition == ("m2", "m3")
    await go.put(ELASTIC, group.key, record.encode().replace(b'"bad_name"', b'"bad name"'))
    await go.make_consumer(name, "cg", "m1", record.filters_of("m1"))
    states = {one.name: one for one in await group.members()}
    assert list(states) == ["m1", "m2", "bad name", "m3"]
    assert [one.exists for one in states.values()] == [True, False, False, False]
    assert await group.active_members() == []
    go.pull(f"{name}-cg", "m1")
    await until_active(group, "m1")
    assert await group.active_members() == ["m1"]
    state = await group.member("m1")
    assert (state.waiting, state.pinned, state.active, state.listed) == (1, "", True, True)
    stranger = await group.member("stranger")
    assert (stranger.listed, stranger.exists, stranger.active, stranger.partitions) == (False, False, False, ())


async def until_active(group, member):
    async with asyncio.timeout(PATIENCE):
        while not (await group.member(member)).waiting:
            await asyncio.sleep(0.02)


async def test_a_step_down_pins_the_standby(natty, go, natty_name):
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.*"])
    group = ElasticAdmin(natty.jetstream, name, "cg")
    await group.create(1, [PartitioningFilter(f"{name}.*", (1,))])
    await group.add("m1")
    with pytest.raises(ConsumerNotFoundError, match=r"member m1 of elastic group cg .* has no consumer"):
        await group.step_down("m1")
    with pytest.raises(BadGroupError, match="m2 is not a member"):
        await group.step_down("m2")
    await go.make_consumer(name, "cg", "m1", [f"0.{name}.*"], ack_wait=60)
    first, second = go.pull(f"{name}-cg", "m1"), go.pull(f"{name}-cg", "m1")
    await natty.publish(f"{name}.1", b"")
    await until(lambda: first)
    assert (await group.member("m1")).pinned == pinned_by(first[0])
    assert not second
    await group.step_down("m1")
    await natty.connection.request(first[0][1].decode(), b"+ACK")
    await natty.publish(f"{name}.2", b"")
    await until(lambda: second and PIN_HEADER.encode() in second[-1][2])
    assert (await group.member("m1")).pinned == pinned_by(second[-1]) != pinned_by(first[0])


async def test_members_of_a_static_group_have_the_counts_of_gos_test(natty, natty_name):
    name = natty_name("test")
    transform = {"src": f"{name}.*.*", "dest": f"{{{{partition(2,2)}}}}.{name}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"}
    await natty.create_stream(name, subjects=[f"{name}.*.*"], subject_transform=transform)
    for kind in ("foo", "bad", "bar"):
        for number in range(10):
            await natty.publish(f"{name}.{kind}.{number}", b"")
    group = StaticAdmin(natty.jetstream, name, "cg")
    record = await group.create(2, [f"{name}.foo.*", f"{name}.bar.*"], members=["m1", "m2"])
    counts = []
    for one in ("m1", "m2"):
        counts.append(await consumer(natty, name, static_member_consumer("cg", one, record.filters_of(one))))
    assert counts == [10, 10]
    assert json.loads(record.encode())["members"] == ["m1", "m2"]
