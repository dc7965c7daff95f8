"""Each promised minimum version does what is promised, and so does the newest; each known fault is where we say it is.

`make test-versions` runs this. The servers come from PyPI.
"""

import asyncio
import json

import pytest
from archiving import store_all
from command_line import CommandLine
from consuming import fill, until
from forgetting import forgotten, messages_in
from group_members import LONG, Notes, make, publish
from patient import PATIENT
from restoring import Capturing
from servers import old_server
from version_trials import TRIALS

from capture.reading import stream_range
from capture.reading.direct_answers import list_sequences
from capture.verification.check import check
from natty import ConsumerNotFoundError, Natty, UnsupportedError
from natty.cli.server_checks import check_faults
from natty.groups import PartitioningFilter
from natty.groups import forgotten as members_forgotten
from natty.streams.mirror import Origin, create_sourced
from natty.streams.stranded import find_stranded
from natty.testing import NatsServer, find_server, server_version
from natty.wire.servers import FAULTS, NEEDS, text_of

pytestmark = [pytest.mark.versions, pytest.mark.long]

NEWEST = "newest"
SOME = 2000  # messages on each of three subjects


def package(version):
    """Return a version as the package on PyPI has it, with three numbers."""
    return text_of((*version, 0, 0)[:3])


@pytest.fixture(scope="module")
def servers(natty_tls, tmp_path_factory):
    """Return a function that returns the server of a version, started once."""
    running = {}

    def of(version):
        if version not in running:
            program = find_server() if version == NEWEST else old_server(version)
            folder = tmp_path_factory.mktemp(f"nats-{version}")
            running[version] = NatsServer(folder=folder, tls_files=natty_tls, binary=program).start()
        return running[version]

    yield of
    for server in running.values():
        server.stop()


def connected(server):
    return Natty(**server.connect_options(), **PATIENT)


@pytest.mark.parametrize("at", ["minimum", NEWEST])
@pytest.mark.parametrize("feature", NEEDS)
async def test_a_feature_works_on_its_minimum_version_and_on_the_newest(
    servers, feature, at, natty_name, tmp_path, released_without_hurry
):
    async with connected(servers(package(NEEDS[feature].minimum) if at == "minimum" else NEWEST)) as natty:
        natty.jetstream.require(feature)
        await TRIALS[feature](natty, natty_name("v"), tmp_path)


async def test_a_server_that_answers_with_one_message_is_read_by_a_consumer(servers, natty_name, monkeypatch):
    """As in a cluster that is being upgraded, where another server than the client's answers."""
    monkeypatch.setattr(stream_range, "BATCHES", NEEDS["streams"])
    async with connected(servers(package(NEEDS["capture"].minimum))) as natty:
        name = natty_name("old")
        await natty.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)
        for number in range(5):
            await natty.publish(f"{name}.{number}", b"")
        wanted = stream_range.StreamRange(await stream_range.stream_facts(natty, name), 1, 5)
        found = [one async for rows in stream_range.read_range(natty, wanted) for one in list_sequences(rows)]
    assert found == [1, 2, 3, 4, 5]


def test_the_newest_version_that_is_tried_has_all_features():
    version = tuple(map(int, server_version(find_server()).split(".")))
    assert all(need.is_met_by(version) for need in NEEDS.values())


async def lost_to_a_filtered_source(natty, name):
    """Return how many of 6000 acknowledged messages are nowhere, after a stream took one of three subjects."""
    await natty.create_stream(name, subjects=[f"{name}.>"], retention="workqueue")
    source = {"name": f"{name}_S", "sources": [{"name": name, "filter_subject": f"{name}.a"}], "storage": "file"}
    await natty.jetstream.request(f"STREAM.CREATE.{name}_S", source)
    await asyncio.gather(*(natty.publish(f"{name}.{key}", b"x") for _ in range(SOME) for key in "abc"))
    await until(lambda: took_all(natty, name))
    return 2 * SOME - await messages_in(natty, name)


async def took_all(natty, name):
    """Return whether the stream has its messages, and the queue has deleted at least as many."""
    return await messages_in(natty, f"{name}_S") == SOME and await messages_in(natty, name) <= 2 * SOME


async def skipped_by_a_purge(natty, name):
    """Return how many of 10 messages a consumer with two filters skips when those on the other subject are purged."""
    await natty.create_stream(name, subjects=[f"{name}.>"])
    await natty.create_consumer(name, "d", filter_subjects=[f"{name}.a", f"{name}.b"])
    for number in range(10):
        await natty.publish(f"{name}.a", b"%d" % number)
        await natty.publish(f"{name}.b", b"%d" % number)
    await natty.purge_stream(name, subject=f"{name}.a", allow_pending=True)
    return 10 - (await natty.jetstream.request(f"CONSUMER.INFO.{name}.d"))["num_pending"]


async def forgotten_by_a_purge(natty, name):
    """Return how many messages of a work queue are not delivered again."""
    return len(await find_stranded(natty.jetstream, await forgotten(natty, name), "d"))


TRIED = {
    "filtered sources of a work queue": (lost_to_a_filtered_source, ["2.14.0", "2.14.5"], ["2.12.8", "2.14.6"]),
    "purge with several filters": (skipped_by_a_purge, ["2.10.25", "2.14.6"], ["2.15.0"]),
    "purge forgets deliveries": (forgotten_by_a_purge, ["2.10.25"], []),
}


@pytest.mark.parametrize(
    ("name", "version"),
    [(name, one) for name, (_, faulty, mended) in TRIED.items() for one in [*faulty, *mended, NEWEST]],
)
async def test_a_fault_is_in_the_versions_that_the_table_names(servers, name, version, natty_name):
    trial, _, _ = TRIED[name]
    async with connected(servers(version)) as natty:
        found = await trial(natty, natty_name("f"))
        assert bool(found) == FAULTS[name].affects(natty.connection.server_version)


@pytest.mark.parametrize("version", ["2.14.6", NEWEST])
async def test_an_automatic_member_handles_what_a_purge_of_a_partition_made_its_consumer_skip(
    servers, version, natty_name, monkeypatch
):
    monkeypatch.setattr(members_forgotten, "LOOK_EVERY", 0.1)
    notes = Notes()
    notes.gate.clear()
    async with connected(servers(version)) as natty:
        group = await make(natty, natty_name("g"))
        async with group.join(handler=notes.handler(), **LONG, max_ack_pending=4) as membership:
            await until(lambda: len(membership.partitions) == 4)
            await publish(natty, group.stream, range(3))  # three of eight keys
            consumer = f"{group.consumed_stream}.{membership.member}"
            await until(lambda: delivered(natty, consumer, 4))
            infos = [await natty.jetstream.request(f"CONSUMER.INFO.{consumer}")]
            warned = [one for one in check_faults(natty.connection.server_version, (), infos) if "filters" in one.text]
            fault = FAULTS["purge with several filters"]
            assert bool(warned) == fault.affects(natty.connection.server_version)
            purged = await natty.purge_stream(group.consumed_stream, subject="0.>", allow_pending=True)
            assert purged > 0
            notes.gate.set()
            await notes.have(24 - purged)
            await until(lambda: emptied(natty, group.consumed_stream))


async def delivered(natty, consumer, count):
    try:
        return (await natty.jetstream.request(f"CONSUMER.INFO.{consumer}"))["num_ack_pending"] == count
    except ConsumerNotFoundError:
        return False


async def emptied(natty, name):
    return await messages_in(natty, name) == 0


async def test_no_stream_takes_part_of_a_work_queue_where_the_server_would_lose_the_rest(servers, natty_name):
    async with connected(servers("2.14.5")) as natty:
        name = natty_name("q")
        await natty.create_stream(name, subjects=[f"{name}.>"], retention="workqueue")
        part = {"name": name, "filter_subject": f"{name}.a"}
        with pytest.raises(UnsupportedError, match=r"2\.14\.5 would delete messages on its other subjects.*2\.14\.6"):
            await natty.ensure_stream(f"{name}_S", sources=[part])
        with pytest.raises(UnsupportedError, match="would delete messages"):
            await create_sourced(natty.jetstream, f"{name}_S", [Origin(stream=name, filter_subject=f"{name}.a")])
        with pytest.raises(UnsupportedError, match=r"a stream template needs nats-server 2\.14\.6 or later"):
            await natty.stream_templates().add(name, subject=f"{name}.t.*", stream=f"{name}_{{1}}")
        with pytest.raises(UnsupportedError, match=r"a stream template needs nats-server 2\.14\.6 or later"):
            await natty.stream_templates().run()
        with pytest.raises(UnsupportedError, match="would delete messages"):
            await natty.group(name, "g").create(4, [PartitioningFilter(f"{name}.a.*", (1,))])
        await natty.ensure_stream(f"{name}_ALL", sources=[{"name": name}])
        await natty.ensure_stream(f"{name}_ALL2", sources=[{"name": name, "filter_subject": f"{name}.>"}])


def test_doctor_names_the_faults_of_a_server_and_the_streams_that_have_them(
    servers, natty_name, tmp_path, monkeypatch, capsys
):
    commands = CommandLine(servers("2.14.5").connect_options(), tmp_path, monkeypatch, capsys)
    name, several, queue = natty_name("q"), natty_name("s"), natty_name("forgotten")

    async def fill(natty):
        await natty.create_stream(name, subjects=[f"{name}.>"], retention="workqueue")
        source = {"name": f"{name}_S", "sources": [{"name": name, "filter_subject": f"{name}.a"}], "storage": "file"}
        await natty.jetstream.request(f"STREAM.CREATE.{name}_S", source)
        await natty.create_stream(several, subjects=[f"{several}.>"])
        await natty.create_consumer(several, "d", filter_subjects=[f"{several}.a", f"{several}.b"])
        await forgotten(natty, queue)

    commands.served(fill)
    done = commands("doctor", "--json")
    assert done.status == 1
    said = [(one["status"], one["text"]) for one in json.loads(done.out)["checks"]]
    for status, words in (
        ("fail", f"stream {name}_S sources part of work queue {name}, nats-server 2.14.5: "),
        ("warn", f"consumer d of stream {several}, nats-server 2.14.5: a purge by subject"),
        ("fail", f"consumer d of work queue {queue} does not redeliver 9 unacknowledged messages, 1 to 9"),
        ("warn", "2.14.5 is too old for a stream template (2.14.6), exact restore of streams (2.15)"),
    ):
        assert [text for found, text in said if found == status and words in text], words


async def test_verify_says_what_helps_where_the_server_is_too_old_for_a_sweep(servers, natty_name, tmp_path):
    async with connected(servers("2.10.25")) as natty:
        name = await fill(natty, natty_name("old"), 10)
        first = Capturing(natty, name, tmp_path)
        await store_all(natty, first.config, first.store, leave_out={2, 3})  # as messages that the server forgot
        found = await check(natty, first.config, first.store)
        assert (found.status, list(found.verdict.missing)) == (3, [2, 3])
        (advice,) = found.advice
        assert "no node can sweep this archive with nats-server 2.10.25: upgrade it to 2.12.14 or later" in advice
        assert "start a node with another durable" in advice
        second = Capturing(natty, name, tmp_path, durable="another")
        await store_all(natty, second.config, second.store)
        assert (await check(natty, second.config, second.store)).verdict.ok
