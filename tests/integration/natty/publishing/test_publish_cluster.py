"""Publishing while a cluster has a new leader, or is slow to store."""

import asyncio

import pytest
from patient import PATIENT, until
from publishing import LASTING, make_stream, payloads

from natty import Natty, jetstream
from natty.errors import WrongLastSequenceError


async def test_a_leader_change_in_a_cluster_loses_nothing(nats_cluster, natty_name):
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        stream = await make_stream(natty, natty_name("R3"), num_replicas=3)
        async with natty.publisher(stream, window=512, ack_timeout=1.0, **LASTING) as publisher:
            for i in range(4000):
                await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
                if i == 2000:
                    await natty.jetstream.request(f"STREAM.LEADER.STEPDOWN.{stream}")
        assert publisher.failures == []
        assert sorted(map(int, await payloads(natty, stream))) == list(range(4000))


@pytest.mark.parametrize("path", ["fast", "window", "single"])
async def test_what_is_sent_again_while_a_cluster_still_stores_it_is_not_told_as_failed(
    nats_cluster, natty_name, path, monkeypatch
):
    """The server says so in what looks like a refusal (error 10158), and to a fast batch that it is stored."""
    monkeypatch.setattr(jetstream, "SEND_AGAIN", 0.2)
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        stream = await make_stream(natty, natty_name("R3"), num_replicas=3)
        for number in range(1, 11):  # another server may become the leader meanwhile: then nobody answers
            leader = await leader_of(natty, nats_cluster, stream)
            said_so = await publish_slowly(nats_cluster, leader, stream, path, b"%d" % number)
            if said_so:
                break
        assert said_so
        assert await payloads(natty, stream) == [b"%d" % one for one in range(1, number + 1)]


async def test_a_change_waits_for_another_write_of_its_subject_that_is_under_way(nats_cluster, natty_name, monkeypatch):
    """The server refuses it for the moment (error 10164): that is not a conflict."""
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        js, codes = natty.jetstream, set()
        bucket = await natty.create_bucket(natty_name("kv"), replicas=3)
        publish = js.publish

        async def noting(*arguments, **options):
            try:
                return await publish(*arguments, **options)
            except WrongLastSequenceError as error:
                codes.add(error.err_code)
                raise

        monkeypatch.setattr(js, "publish", noting)
        for number in range(1, 1001):  # another write at once, and a change on condition of its sequence
            key = f"$KV.{bucket.name}.k"
            write = asyncio.create_task(publish(key, b"write"))
            change = js.compare_and_set(
                bucket.stream, key, b"change", expected=2 * number - 1, nonce=str(number), timeout=30
            )
            _, sequence = await asyncio.gather(write, change)
            assert sequence == 2 * number
            if 10164 in codes:
                break
        assert 10164 in codes


async def publish_slowly(cluster, leader, stream, path, data):
    """Publish through the leader while its followers stand still; return whether it said that it is storing."""
    followers = [server for server in cluster if server is not leader]
    alone = {"servers": [leader.url], "ignore_discovered_servers": True}
    async with Natty(**cluster.connect_options() | alone, **PATIENT) as natty:
        answers = heard(natty)
        publisher = natty.publisher(stream, path="fast" if path == "fast" else "window", ack_timeout=0.2, **LASTING)
        async with publisher:
            for server in followers:
                server.pause()
            try:
                if path == "single":
                    storing = asyncio.create_task(natty.publish(f"{stream}.a", data, msg_id=data.decode()))
                else:
                    await publisher.publish(f"{stream}.a", data, msg_id=data.decode())
                    storing = asyncio.create_task(publisher.flush())
                said_so = await came(lambda: b'"err_code":10158' in b"".join(answers))
                assert not (said_so and storing.done())
            finally:
                for server in followers:
                    server.resume()
            await storing
    return said_so


async def came(condition):
    """Return whether a condition holds within some seconds."""
    try:
        await until(condition, within=5)
    except TimeoutError:
        return False
    return True


async def leader_of(natty, cluster, stream):
    """Return the server that leads a stream, when one does."""
    async with asyncio.timeout(PATIENT["timeout"]):
        while True:
            state = (await natty.jetstream.request(f"STREAM.INFO.{stream}")).get("cluster", {})
            for server in cluster:
                if server.name == state.get("leader"):
                    return server
            await asyncio.sleep(0.05)


def heard(natty):
    """Return a list to which the payloads that a client gets are added from now on."""
    payloads, dispatch = [], natty.connection._session._parser._deliver

    def note(sid, batch):
        payloads.extend(batch.payloads)
        dispatch(sid, batch)

    natty.connection._session._parser._deliver = note
    return payloads
