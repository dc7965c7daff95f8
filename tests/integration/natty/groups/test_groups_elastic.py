"""Elastic groups on a real server: made, changed and deleted, beside a Go library that plays along by raw requests."""

import asyncio

import pytest
from go_groups import ELASTIC, Go
from patient import PATIENT

from natty import BadGroupError, GroupExistsError, GroupNotFoundError, Natty, StreamNotFoundError, UnsupportedError
from natty.groups import ElasticAdmin, PartitioningFilter, list_groups
from natty.streams import stream_state
from natty.testing import NatsServer

FOO = PartitioningFilter("foo.*", (1,))


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that takes foo.<name>.>, where other tests' streams are not in the way."""
    name = natty_name("orders")
    await natty.create_stream(name, subjects=[f"{name}.>"])
    return name


@pytest.fixture
async def group(natty, go, stream):
    await go.make_bucket(ELASTIC)
    return ElasticAdmin(natty.jetstream, stream, "cg")


async def record_of(go, group):
    return (await go.get(ELASTIC, group.key))[0]


async def refused(group, *arguments, error=BadGroupError, **options):
    """Creating a group is refused, and leaves neither record nor work queue; return why."""
    with pytest.raises(error) as caught:
        await group.create(*arguments, **options)
    with pytest.raises(GroupNotFoundError):
        await group.read()
    assert await group.count_buffered() is None
    return str(caught.value)


async def test_a_group_is_made_as_go_makes_it(go, group, stream):
    keyed = PartitioningFilter(f"{stream}.*.*.>", (2, 1))
    await group.create(4, [keyed, PartitioningFilter(f"{stream}.*")])
    filters = (
        f'[{{"filter":"{stream}.*.*.\\u003e","partitioning_wildcards":[2,1]}},'
        f'{{"filter":"{stream}.*","partitioning_wildcards":null}}]'
    )
    assert (await record_of(go, group)).decode() == f'{{"max_members":4,"partitioning_filters":{filters}}}'
    transforms = [
        (f"{stream}.*.*.>", f"{{{{Partition(4,2,1)}}}}.{stream}.{{{{Wildcard(1)}}}}.{{{{Wildcard(2)}}}}.>"),
        (f"{stream}.*", f"{{{{Partition(4)}}}}.{stream}.{{{{Wildcard(1)}}}}"),
    ]
    made = await go.ask(f"STREAM.INFO.{stream}-cg")
    again = await go.make_work_queue(stream, "cg", transforms)
    assert again["created"] == made["created"]
    assert "error" in await go.make_work_queue(stream, "cg", transforms[:1])


async def test_the_bucket_is_the_one_that_go_would_make(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            group = ElasticAdmin(natty.jetstream, "S", "cg")
            assert await list_groups(natty.jetstream, "elastic", "S") == []
            for asked in (group.read(), group.add("m"), group.delete(), group.members(), group.step_down("m")):
                with pytest.raises(GroupNotFoundError, match="there is no elastic group cg of stream S"):
                    await asked
            with pytest.raises(StreamNotFoundError, match="there is no stream S: make it first"):
                await group.create(2)
            assert not (await natty.jetstream.request("STREAM.NAMES"))["streams"]
            await natty.create_stream("S", subjects=["s.*"])
            await group.create(2)
            assert "error" not in await Go(natty).make_bucket(ELASTIC)
            assert await list_groups(natty.jetstream, "elastic", "S") == ["cg"]


async def test_a_group_that_go_has_made_is_used_as_it_is(go, group, stream):
    written = (
        b'{"max_members":2,"partitioning_filters":[],"max_buffered_msg":-1,"max_buffered_bytes":-1,"members":["m2"]}'
    )
    await go.put(ELASTIC, group.key, written)
    await go.make_work_queue(stream, "cg", [(">", "{{Partition(2)}}.>")], max_msgs=-1, max_bytes=-1)
    assert (await group.create(2)).members == ("m2",)
    assert await record_of(go, group) == written


async def test_making_a_group_again_with_other_settings_changes_nothing(go, group):
    await group.create(4, [FOO])
    await group.add("m1")
    before = await go.get(ELASTIC, group.key)
    with pytest.raises(GroupExistsError, match=r"partitions is 4, wanted 5; filters is \[\('foo\.\*', \[1\]\)\]"):
        await group.create(5)
    assert (await go.get(ELASTIC, group.key))[:2] == before[:2]
    assert (await group.create(4, [FOO])).members == ("m1",)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((0,), "0 partitions"),
        ((2, [PartitioningFilter("foo")]), "no wildcard"),
        ((2, [PartitioningFilter("foo.*", (2,))]), "no wildcard 2"),
        ((2, [PartitioningFilter("foo..*")]), "is not a subject"),
        ((2, [PartitioningFilter("foo.*"), PartitioningFilter("foo.>")]), "take the same subjects"),
        ((2, [PartitioningFilter("foo.*.b"), PartitioningFilter("foo.a.*")]), "take the same subjects"),
        ((2, [PartitioningFilter("foo.{{bar}}.*")]), "the server does not accept these filters"),
    ],
)
async def test_what_can_not_work_leaves_no_half_made_group(group, arguments, why):
    assert why in await refused(group, *arguments)
    await group.create(2, [FOO])


async def test_a_limit_below_none_is_refused(group):
    assert "max_messages of -2" in await refused(group, 2, max_messages=-2)


async def test_an_old_server_is_refused_before_anything_is_made(natty, group):
    for version, filters, what in (("2.10.9", [FOO], "a partitioned group"), ("2.11.9", None, "by the whole subject")):
        natty.connection._session.info = natty.connection.server_info | {"version": version}
        assert what in await refused(group, 2, filters, error=UnsupportedError)
    await group.create(2, [FOO])


async def test_another_stream_of_the_work_queues_name_is_never_touched(natty, group, stream):
    await natty.create_stream(f"{stream}-cg", subjects=[f"archive.{stream}"])
    await natty.publish(f"archive.{stream}", b"precious")
    with pytest.raises(GroupExistsError, match="there is another stream of that name: choose another name"):
        await group.create(2, [FOO])
    with pytest.raises(GroupNotFoundError):
        await group.delete()
    await Go(natty).put(ELASTIC, group.key, b'{"max_members":2,"partitioning_filters":null}')
    assert await group.delete() == [f"stream {stream}-cg"]
    assert (await stream_state(natty.jetstream, f"{stream}-cg"))["messages"] == 1


PARTITIONED = {"subject_transforms": [{"src": ">", "dest": "{{Partition(2)}}.>"}]}


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ({"retention": "limits"}, PARTITIONED),
        ({"retention": "workqueue"}, {}),
        ({"retention": "workqueue"}, {"subject_transforms": [{"src": ">", "dest": "copy.>"}]}),
        ({"retention": "workqueue", "subjects": ["own.subjects"]}, PARTITIONED),
    ],
)
async def test_what_only_resembles_a_work_queue_is_not_deleted(natty, go, group, stream, settings, source):
    made = {"name": f"{stream}-cg", "sources": [{"name": stream, **source}], **settings}
    assert "error" not in await go.ask(f"STREAM.CREATE.{stream}-cg", made)
    await go.put(ELASTIC, group.key, b'{"max_members":2,"partitioning_filters":null}')
    with pytest.raises(GroupExistsError, match="there is another stream of that name"):
        await group.create(2)
    assert await group.delete() == [f"stream {stream}-cg"]
    assert await group.count_buffered() is not None


async def test_a_record_whose_work_queue_partitions_otherwise_is_told(go, group, stream):
    await go.put(ELASTIC, group.key, b'{"max_members":2,"partitioning_filters":null}')
    await go.make_work_queue(stream, "cg", [(">", "{{Partition(3)}}.>")])
    with pytest.raises(GroupExistsError, match="there is another stream of that name"):
        await group.create(2)


async def test_groups_whose_work_queues_would_be_called_alike_do_not_share_it(natty, natty_name):
    short = natty_name("a")
    for name in (short, f"{short}-b"):
        await natty.create_stream(name, subjects=[f"{name}.*"])
    first, second = ElasticAdmin(natty.jetstream, short, "b-c"), ElasticAdmin(natty.jetstream, f"{short}-b", "c")
    await first.create(2)
    with pytest.raises(GroupExistsError):
        await second.create(2)
    with pytest.raises(GroupNotFoundError):
        await second.delete()
    assert await first.count_buffered() == 0


async def test_an_interrupted_creation_is_completed_by_the_next(go, group, stream):
    await go.make_work_queue(stream, "cg", [("foo.*", "{{Partition(2,1)}}.foo.{{Wildcard(1)}}")])
    with pytest.raises(GroupExistsError, match="natty group elastic rm"):
        await group.create(3, [FOO])
    await group.create(2, [FOO])
    await group.delete()
    await go.put(ELASTIC, group.key, b'{"max_members":2,"partitioning_filters":null}')
    await group.create(2)
    assert await group.count_buffered() == 0


async def test_what_an_interrupted_deletion_left_is_deleted_by_the_next(go, group, stream):
    await group.create(2, [FOO])
    await go.delete(ELASTIC, group.key)
    assert await group.delete() == []
    with pytest.raises(GroupNotFoundError):
        await group.delete()


async def test_of_two_that_make_a_group_differently_one_is_told_and_the_other_has_it(natty, group):
    other = ElasticAdmin(natty.jetstream, group.stream, group.name)
    made = await asyncio.gather(group.create(2, [FOO]), other.create(3, [FOO]), return_exceptions=True)
    assert sorted(type(one).__name__ for one in made) == ["ElasticRecord", "GroupExistsError"]
    there = await group.read()
    assert there in made
    assert await group.create(there.partitions, [FOO]) == there


class Overtaken(ElasticAdmin):
    """Somebody who writes as Go does, plainly, after our work queue is made and before our record is."""

    theirs = b'{"max_members":7,"partitioning_filters":null}'

    async def _make_work_queue(self, record, source):
        await super()._make_work_queue(record, source)
        await Go(self.natty).put(ELASTIC, self.key, self.theirs)


async def test_a_group_that_go_makes_meanwhile_is_not_overwritten_and_can_get_its_work_queue(natty, go, stream):
    group = Overtaken(natty.jetstream, stream, "cg")
    group.natty = natty
    with pytest.raises(GroupExistsError, match="partitions is 7, wanted 2"):
        await group.create(2, [FOO])
    assert await record_of(go, group) == Overtaken.theirs
    assert "error" not in await go.make_work_queue(stream, "cg", [(">", "{{Partition(7)}}.>")])


async def test_deleting_a_group_leaves_gos_marker_and_others_alone(natty, go, group, stream):
    other = ElasticAdmin(natty.jetstream, stream, "cg-2")
    await group.create(2, [FOO])
    await other.create(2, [FOO])
    assert await list_groups(natty.jetstream, "elastic", stream) == ["cg", "cg-2"]
    await group.delete()
    value, _, headers = await go.get(ELASTIC, group.key)
    assert (value, headers["KV-Operation"]) == (b"", ["DEL"])
    assert await list_groups(natty.jetstream, "elastic", stream) == ["cg-2"]
    assert await other.count_buffered() == 0
    await group.create(3)
    assert (await group.read()).partitions == 3


@pytest.mark.parametrize("operation", ["DEL", "PURGE"])
async def test_a_record_that_is_deleted_or_purged_is_a_group_that_is_gone(go, group, operation):
    await group.create(2, [FOO])
    await go.delete(ELASTIC, group.key, operation)
    with pytest.raises(GroupNotFoundError):
        await group.add("m")
    assert (await group.create(2, [FOO])).members == ()


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"{", "not a JSON object"),
        (b'{"max_members":2,"filter":"foo","partitioning_wildcards":[1]}', "has no wildcard"),
        (b'{"max_members":2,"partitioning_filters":[{"filter":"foo"}]}', "has no wildcard"),
    ],
)
async def test_a_record_that_is_none_is_told_and_can_be_deleted(go, group, record, why):
    await go.put(ELASTIC, group.key, record)
    for asked in (group.read(), group.add("m"), group.create(2), group.members()):
        with pytest.raises(BadGroupError, match=f"elastic group cg of stream {group.stream}: .*{why}"):
            await asked
    assert await record_of(go, group) == record
    assert await group.delete() == []


async def test_a_full_work_queue_takes_no_more(natty, group, stream):
    await group.create(2, max_messages=5)
    for number in range(20):
        await natty.publish(f"{stream}.{number}", b"")
    buffered = 0

    async def full():
        nonlocal buffered
        while (buffered := await group.count_buffered()) < 5:
            await asyncio.sleep(0.02)

    async with asyncio.timeout(60):
        await full()
    assert buffered == 5
    config = (await natty.jetstream.request(f"STREAM.INFO.{stream}-cg"))["config"]
    assert (config["max_msgs"], config["discard"], config["retention"]) == (5, "new", "workqueue")


@pytest.mark.long
async def test_on_a_cluster_the_records_have_three_copies_whatever_the_first_stream_has(nats_cluster, natty_name):
    name = natty_name("single")
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        await natty.create_stream(name, subjects=[f"{name}.*"], num_replicas=1)
        await ElasticAdmin(natty.jetstream, name, "cg").create(2)
        replicas = {
            stream: (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["config"]["num_replicas"]
            for stream in (f"KV_{ELASTIC}", f"{name}-cg")
        }
    assert replicas == {f"KV_{ELASTIC}": 3, f"{name}-cg": 1}
