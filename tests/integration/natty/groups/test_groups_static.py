"""Static groups on a real server, beside what Go's library writes."""

import asyncio

import pytest
from go_groups import STATIC

from natty import BadGroupError, GroupExistsError, GroupNotFoundError, JetStreamError, NattyError, StreamNotFoundError
from natty.groups import StaticAdmin, list_groups
from natty.groups.settings import static_member_consumer
from natty.names import BadNameError


@pytest.fixture
async def stream(natty, natty_name):
    """A stream whose subjects begin with one of four partitions."""
    name = natty_name("orders")
    transform = {"src": f"{name}.*", "dest": f"{{{{partition(4,1)}}}}.{name}.{{{{wildcard(1)}}}}"}
    await natty.create_stream(name, subjects=[f"{name}.*"], subject_transform=transform)
    return name


@pytest.fixture
async def group(natty, go, stream):
    await go.make_bucket(STATIC)
    return StaticAdmin(natty.jetstream, stream, "cg")


async def consumer(natty, group, member):
    config = static_member_consumer(group.name, member, (await group.read()).filters_of(member))
    body = {"stream_name": group.stream, "config": config, "action": "create"}
    await natty.jetstream.request(f"CONSUMER.CREATE.{group.stream}.{config['name']}", body)


async def consumers(natty, stream):
    answer = await natty.jetstream.request(f"CONSUMER.NAMES.{stream}")
    return sorted(answer["consumers"] or [])


async def test_a_group_is_made_as_go_makes_it_and_making_it_again_changes_nothing(go, group):
    for _ in range(2):
        await group.create(4, ["foo.*", "bar.>"], members=["m1", "m2"])
        value, revision, _ = await go.get(STATIC, group.key)
        assert value == b'{"max_members":4,"filters":["foo.*","bar.\\u003e"],"members":["m1","m2"]}'
    await group.create(4, ["foo.*", "bar.>"], members=["m2", "m1"])
    assert (await go.get(STATIC, group.key))[1] == revision
    with pytest.raises(GroupExistsError, match=r"members is \['m1', 'm2'\], wanted \['m1'\]"):
        await group.create(4, ["foo.*", "bar.>"], members=["m1"])
    assert (await go.get(STATIC, group.key))[1] == revision


async def test_mappings_are_written_as_go_writes_them(go, group):
    await group.create(4, mappings={"a": (0, 2), "b": [3, 1]})
    assert (await go.get(STATIC, group.key))[0] == (
        b'{"max_members":4,"member_mappings":[{"member":"a","partitions":[0,2]},{"member":"b","partitions":[3,1]}]}'
    )


async def test_a_group_that_go_has_made_is_the_same_whether_empty_lists_are_there_or_not(go, group):
    written = b'{"max_members":4,"filters":null,"members":["m1"],"member_mappings":[]}'
    await go.put(STATIC, group.key, written)
    assert (await group.create(4, members=["m1"])).members == ("m1",)
    assert (await go.get(STATIC, group.key))[0] == written


@pytest.mark.parametrize(
    ("arguments", "options", "error", "why"),
    [
        ((0,), {}, BadGroupError, "0 partitions"),
        ((4, ["a b"]), {"members": ["m"]}, BadGroupError, "is not a subject"),
        ((4, ["foo.*", "foo.>"]), {"members": ["m"]}, BadGroupError, "take the same subjects"),
        ((4,), {"members": ["a", "b", "c", "d", "e"]}, BadGroupError, "5 members can't share 4"),
        ((4,), {"members": ["a", "a"]}, BadGroupError, "named twice"),
        ((4,), {"members": ["a.b"]}, BadNameError, "'.' at character 2"),
        ((4,), {"mappings": {"a b": range(4)}}, BadNameError, "' ' at character 2"),
        ((4,), {"mappings": {"a": [0]}}, BadGroupError, "no member has partition 1, 2, 3"),
        ((4,), {"members": ["a"], "mappings": {"a": range(4)}}, BadGroupError, "either members or mappings"),
        ((4, ["foo.*"]), {"mappings": {"a": range(4)}}, BadGroupError, "read their partitions whole"),
        ((3,), {"members": ["a"]}, BadGroupError, "has 4 partitions and the group would have 3"),
    ],
)
async def test_what_can_not_work_is_refused_and_not_written(group, arguments, options, error, why):
    with pytest.raises(error, match=why):
        await group.create(*arguments, **options)
    with pytest.raises(GroupNotFoundError, match="there is no static group cg of stream"):
        await group.read()


async def test_a_stream_that_is_not_partitioned_or_not_there_is_refused(natty, natty_name):
    plain = natty_name("plain")
    group = StaticAdmin(natty.jetstream, plain, "cg")
    with pytest.raises(StreamNotFoundError, match=f"there is no stream {plain}"):
        await group.create(2, members=["m"])
    await natty.create_stream(plain, subjects=[f"{plain}.*"])
    with pytest.raises(BadGroupError, match="holds no subject of partition 0"):
        await group.create(2, members=["m"])


async def test_consumers_that_are_there_already_are_not_taken_over(natty, group):
    await natty.create_consumer(group.stream, "cg-m2")
    with pytest.raises(GroupExistsError, match=r"consumers that exist already .*: cg-m2"):
        await group.create(4, members=["m1", "m2"])
    with pytest.raises(GroupNotFoundError):
        await group.read()


async def test_two_that_make_a_group_differently_at_once_do_not_overwrite_each_other(natty, group):
    other = StaticAdmin(natty.jetstream, group.stream, group.name)
    made = await asyncio.gather(group.create(4, members=["a"]), other.create(4, members=["b"]), return_exceptions=True)
    assert sorted(type(one).__name__ for one in made) == ["GroupExistsError", "StaticRecord"]
    assert await group.read() in made


async def test_deleting_a_group_spares_consumers_that_are_only_called_alike(natty, go, group):
    other = StaticAdmin(natty.jetstream, group.stream, "cg-2")
    await group.create(4, members=["m1", "m2", "mine"])
    await other.create(4, members=["m1"])
    for owner, member in ((group, "m1"), (group, "m2"), (other, "m1")):
        await consumer(natty, owner, member)
    for durable in ("cg-mine", "cg-archive"):  # no member made them
        await natty.create_consumer(group.stream, durable)
    assert await list_groups(natty.jetstream, "static", group.stream) == ["cg", "cg-2"]
    assert await group.delete() == ["consumer cg-mine"]
    assert await consumers(natty, group.stream) == ["cg-2-m1", "cg-archive", "cg-mine"]
    assert await list_groups(natty.jetstream, "static", group.stream) == ["cg-2"]
    value, _, headers = await go.get(STATIC, group.key)
    assert (value, headers["KV-Operation"]) == (b"", ["DEL"])
    with pytest.raises(GroupNotFoundError):
        await group.delete()


async def test_a_record_that_can_not_be_read_can_be_deleted(go, group):
    await go.put(STATIC, group.key, b'{"max_members":0,"members":["m1"]}')
    with pytest.raises(BadGroupError, match=r"static group cg of stream .* 0 partitions is not possible"):
        await group.read()
    assert await group.delete() == []
    with pytest.raises(GroupNotFoundError):
        await group.read()


class Undeletable(StaticAdmin):
    """A group with a member whose consumer the server refuses to delete."""

    async def _delete_consumer(self, member):
        if member == "m1":
            raise JetStreamError("not now", code=503, err_code=10008)
        return await super()._delete_consumer(member)


async def test_consumers_that_could_not_be_deleted_are_named(natty, group):
    await group.create(4, members=["m1", "m2"])
    for member in ("m1", "m2"):
        await consumer(natty, group, member)
    with pytest.raises(NattyError, match=r"is deleted, and these consumers of stream .* are left: cg-m1 \(not now\)"):
        await Undeletable(natty.jetstream, group.stream, group.name).delete()
    assert await consumers(natty, group.stream) == ["cg-m1"]
    with pytest.raises(GroupNotFoundError):
        await group.read()


async def test_a_member_is_active_if_an_instance_reads_as_it(natty, go, group):
    await group.create(4, members=["m1", "m2"])
    for member in ("m1", "m2"):
        await consumer(natty, group, member)
    go.pull(group.stream, "cg-m2")
    await natty.connection.flush()
    assert await group.active_members() == ["m2"]
    await group.step_down("m2")
    assert (await group.member("m1")).partitions == (0, 1)
