import pytest
from consuming import until
from group_members import LONG, consumer, has_state, partitioned, publish
from hostile import MALFORMED, publish_raw

from natty import ConsumerNotFoundError
from natty.errors import BadGroupError
from natty.groups.lag import lag


@pytest.fixture
async def static(natty, natty_name):
    """A static group of two partitions, on a stream that puts the partition into its subjects."""
    name = natty_name("STATIC")
    await natty.create_stream(name, **partitioned(name, 2))
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


async def test_headers_without_an_end_do_not_stop_a_member(natty, static):
    """The server puts the pin's id in the place of their last two bytes; the first message says which id is ours."""
    found = []
    for number, block in enumerate(MALFORMED):
        await publish_raw(natty, f"{static.stream}.k".encode(), b"%d" % number, block)

    async def handle(message):
        found.append(int(message.data))

    async with static.join("m1", handle, **LONG), static.join("m2", handle, **LONG):
        await until(lambda: len(found) == len(MALFORMED))
    assert found == list(range(len(MALFORMED)))


async def test_a_static_group_does_not_take_whom_it_does_not_list(static, notes):
    with pytest.raises(BadGroupError, match="does not list member m3"):
        await static.join("m3", notes.handler()).__aenter__()


async def test_a_static_record_that_is_changed_ends_the_members_and_keeps_their_position(natty, static, notes, go):
    bucket = "static-consumer-groups"
    async with static.join("m1", notes.handler(), **LONG) as m1:
        await has_state(m1, "standby")
        value, _, _ = await go.get(bucket, static.key)
        await go.put(bucket, static.key, value.replace(b'"m2"', b'"m9"'))
        with pytest.raises(BadGroupError, match=r"fixed settings of group g of .* were changed"):
            await m1.wait_until_ended()
    assert await consumer(natty, static, "m1")


async def test_deleting_a_static_group_ends_its_members_and_their_consumers(natty, static, notes, go):
    async with static.join("m1", notes.handler(), **LONG) as m1:
        await has_state(m1, "standby")
        await go.delete("static-consumer-groups", static.key)
        await m1.wait_until_ended()
        with pytest.raises(ConsumerNotFoundError):
            await consumer(natty, static, "m1")


async def test_the_lag_of_a_static_group_is_what_is_behind_its_members(natty, static, notes):
    await publish(natty, static.stream, range(2))
    assert sum((await lag(natty.jetstream, static)).values()) == 16
    async with static.join("m1", notes.handler(), **LONG):
        await until(lambda: notes.count and notes.count == sum(map(len, notes.done.values())))

        async def caught_up():
            return (await lag(natty.jetstream, static))[0] == 0

        await until(caught_up)
    assert (await lag(natty.jetstream, static))[1] == 16 - notes.count
