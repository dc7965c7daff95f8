"""Changes of who is in an elastic group, beside a Go library that writes at the same time, and in its own way."""

import asyncio

import pytest
from go_groups import ELASTIC

from natty import BadGroupError
from natty.groups import ElasticAdmin, PartitioningFilter
from natty.names import BadNameError

FOO = PartitioningFilter("foo.*", (1,))


@pytest.fixture
async def group(natty, go, natty_name):
    """A group that is not there yet, of a stream that is."""
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    await go.make_bucket(ELASTIC)
    return ElasticAdmin(natty.jetstream, name, "cg")


async def record_of(go, group):
    return (await go.get(ELASTIC, group.key))[0]


FILTERS = [
    b"null",
    b"[]",
    b'[{"filter":"foo.*","partitioning_wildcards":null}]',
    b'[{"filter":"foo.*","partitioning_wildcards":[]}, {"filter":"bar.*","partitioning_wildcards":[1]}]',
]


@pytest.mark.parametrize("filters", FILTERS)
async def test_changes_carry_through_what_go_has_written(go, group, filters):
    await go.put(ELASTIC, group.key, b'{"max_members":4,"partitioning_filters":' + filters + b',"x":{"y": 1.0}}')
    head, tail = b'{"max_members":4,"partitioning_filters":' + filters, b',"x":{"y": 1.0}}'
    await group.add("m2", "m1", "m2")
    assert await record_of(go, group) == head + b',"members":["m2","m1"]' + tail
    await group.drop("m2")
    assert await record_of(go, group) == head + b',"members":["m1"]' + tail
    await group.set_mappings({"a": [3, 0], "b": [1, 2]})
    mapped = b',"member_mappings":[{"member":"a","partitions":[3,0]},{"member":"b","partitions":[1,2]}]'
    assert await record_of(go, group) == head + mapped + tail
    await group.delete_mappings()
    assert await record_of(go, group) == head + tail


async def test_what_changes_nothing_is_not_written(go, group):
    await group.create(2, [FOO])
    await group.add("b", "a")
    revision = (await go.get(ELASTIC, group.key))[1]
    for change in (group.add("a"), group.add("a", "b"), group.drop("x"), group.delete_mappings()):
        done = await change
        assert (done.added, done.dropped, done.before) == ([], [], done.after)
    assert (await go.get(ELASTIC, group.key))[1] == revision
    await group.set_mappings({"a": [0, 1]})
    revision = (await go.get(ELASTIC, group.key))[1]
    await group.set_mappings({"a": [1, 0]})
    assert (await go.get(ELASTIC, group.key))[1] == revision


async def test_what_go_has_written_in_its_own_way_is_not_rewritten_for_nothing(go, group):
    written = b'{ "partitioning_filters": null, "members": ["a"], "member_mappings": [], "max_members": 2 }'
    revision = (await go.put(ELASTIC, group.key, written))["seq"]
    for change in (group.add("a"), group.drop("b"), group.delete_mappings()):
        assert (await change).after.members == ("a",)
    assert (await go.get(ELASTIC, group.key))[:2] == (written, revision)


async def test_members_keep_their_order_and_the_change_tells_who_came_and_went(group):
    await group.create(2, [FOO])
    assert (await group.add("c", "a")).added == ["c", "a"]
    change = await group.add("b", "a")
    assert (change.added, change.after.members) == (["b"], ("c", "a", "b"))
    assert change.after.without_partition == ("c",)
    change = await group.drop("a", "nobody")
    assert (change.dropped, change.after.members) == (["a"], ("c", "b"))


async def test_mapped_and_listed_members_exclude_each_other(group):
    await group.create(2, [FOO])
    await group.add("m1")
    change = await group.set_mappings({"m2": [0], "m3": [1]})
    assert (change.dropped, change.added, change.after.members) == (["m1"], ["m2", "m3"], ())
    for edit in (group.add("m1"), group.drop("m2")):
        with pytest.raises(BadGroupError, match="has its partitions mapped"):
            await edit
    await group.delete_mappings()
    assert (await group.add("m1")).after.partitions_of("m1") == (0, 1)


async def test_what_no_group_can_be_is_not_written(go, group):
    await group.create(2, [FOO])
    before = await record_of(go, group)
    for edit, error in [
        (group.set_mappings({"a": [0]}), BadGroupError),
        (group.set_mappings({"a": [0, 2]}), BadGroupError),
        (group.set_mappings({}), BadGroupError),
        (group.set_mappings({"a.b": [0, 1]}), BadNameError),
        (group.add(), BadGroupError),
        (group.drop(), BadGroupError),
        (group.add("ok", "not ok"), BadNameError),
    ]:
        with pytest.raises(error):
            await edit
    assert await record_of(go, group) == before


async def test_changes_at_the_same_time_lose_nothing(natty, group):
    await group.create(2, [FOO])
    names = [f"m{number}" for number in range(8)]
    other = ElasticAdmin(natty.jetstream, group.stream, group.name)
    changes = await asyncio.gather(*((group, other)[number % 2].add(name) for number, name in enumerate(names)))
    assert sorted((await group.read()).members) == names
    assert sorted(name for change in changes for name in change.added) == names


async def test_gos_write_between_reading_and_writing_wins_and_stays(go, group):
    await group.create(2, [FOO])
    revision = (await go.get(ELASTIC, group.key))[1]
    theirs = (await record_of(go, group))[:-1] + b',"members":["go"]}'
    await group.add("m1")
    assert (await go.put(ELASTIC, group.key, theirs, expected=revision))["error"]["err_code"] == 10071
    assert (await group.read()).members == ("m1",)
    await go.put(ELASTIC, group.key, theirs)
    assert (await group.add("m1")).after.members == ("go", "m1")
