"""A stream of one server is restored as three replicas, and the other way round; the server's disk is lost for good."""

import asyncio
import shutil

import pytest
from patient import NEVER, PATIENCE, PATIENT
from restoring import Capturing, configured, dumped, planned, positions, read_some, restored, send

from capture.errors import RestoreError
from natty import Natty, StreamNotFoundError
from natty.testing import NatsServer

COUNT = 300


async def filled(natty, name, **settings):
    await natty.ensure_stream(name, subjects=[f"{name}.*"], **settings)
    for number in range(COUNT):
        await send(
            natty, f"{name}.{number % 3}", b"%d" % number, b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n" if number % 2 else b""
        )
    await natty.ensure_consumer(name, "reader", ack_wait=NEVER)
    assert await read_some(natty, name, "reader", 7) == list(range(1, 8))


async def until_it_has(natty, stream, durable, count):
    """Wait until a consumer is on so many servers, one of which leads it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            cluster = (await natty.jetstream.request(f"CONSUMER.INFO.{stream}.{durable}")).get("cluster", {})
            if cluster.get("leader") and 1 + len(cluster.get("replicas", ())) == count:
                return
            await asyncio.sleep(0.05)


async def test_a_stream_whose_server_lost_its_disk_is_restored_as_three_replicas(
    nats_cluster, natty_tls, nats_server_binary, natty_name, tmp_path
):
    name = natty_name("replicated")
    with NatsServer(folder=tmp_path / "lost", tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await filled(natty, name)
            captured = Capturing(natty, name, tmp_path)
            await captured.capture()
            before, config, places = (
                await dumped(natty, name),
                await configured(natty, name),
                await positions(natty, name),
            )
        server.kill()
        shutil.rmtree(tmp_path / "lost" / "jetstream")
        server.start()
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await restored(natty, captured)
            assert await dumped(natty, name) == before
            with pytest.raises(RestoreError, match="replicas"):
                await restored(natty, captured, name=f"{name}_copy", detached=True, replicas=3)
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as natty:
        for replicas in (1, 3):
            done = await restored(natty, captured, replicas=replicas)
            assert (done.messages, done.kept) == (COUNT, COUNT)
            assert await dumped(natty, name) == before
            assert await configured(natty, name) == config | {"num_replicas": replicas}
            assert (await positions(natty, name)).keys() == places.keys()
            assert {one: place for one, (_, place) in (await positions(natty, name)).items()} == {
                one: place for one, (_, place) in places.items()
            }
            assert await read_some(natty, name, "reader", 2) == [8, 9]
            await natty.delete_stream(name)


@pytest.mark.long
async def test_consumers_of_three_replicas_are_where_they_were_time_after_time(
    nats_cluster, natty, natty_name, tmp_path
):
    """One of 30 streams lost its consumers' places before, and one of 50 was not taken in at all."""
    name = natty_name("again")
    await filled(natty, name)
    await natty.ensure_consumer(name, "three", ack_wait=NEVER)
    captured = Capturing(natty, name, tmp_path)
    await captured.capture()
    places = await positions(natty, name)
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as many:
        for _ in range(20):
            await restored(many, captured, replicas=3)
            assert await positions(many, name) == places
            assert (await many.publish(f"{name}.new", b"after", timeout=5.0)).seq == COUNT + 1
            await many.delete_stream(name)


async def test_a_consumer_has_the_replicas_that_it_had(nats_cluster, natty_name, tmp_path):
    name = natty_name("own")
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as many:
        await filled(many, name, num_replicas=3)
        for durable, replicas in (("one", 1), ("three", 3)):
            await many.ensure_consumer(name, durable, ack_wait=NEVER, num_replicas=replicas)
            assert await read_some(many, name, durable, 7) == list(range(1, 8))
        captured = Capturing(many, name, tmp_path)
        await captured.capture()
        await many.delete_stream(name)
        done = await restored(many, captured)
        assert not [text for text in done.not_kept if "replicas" in text]
        for durable, replicas in (("one", 1), ("three", 3), ("reader", 0)):
            await until_it_has(many, name, durable, replicas or 3)
            info = await many.jetstream.request(f"CONSUMER.INFO.{name}.{durable}")
            assert info["config"]["num_replicas"] == replicas
            assert await read_some(many, name, durable, 1) == [8]
        await many.delete_stream(name)


async def test_replicas_that_can_not_be_had_are_refused_before_a_message_is_sent(nats_cluster, natty_name, tmp_path):
    name = natty_name("five")
    sent = []
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as many:
        await filled(many, name)
        captured = Capturing(many, name, tmp_path)
        await captured.capture()
        await many.delete_stream(name)
        with pytest.raises(RestoreError, match="does not take stream"):
            await restored(many, captured, replicas=5, on_progress=lambda *_: sent.append(1))
        assert not sent
        with pytest.raises(StreamNotFoundError):
            await many.jetstream.request(f"STREAM.INFO.{name}")


@pytest.mark.long
async def test_a_replicated_stream_is_restored_on_one_server_with_replicas_1(nats_cluster, natty, natty_name, tmp_path):
    name = natty_name("fromthree")
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as many:
        await filled(many, name, num_replicas=3)
        captured = Capturing(many, name, tmp_path)
        await captured.capture()
        before = await dumped(many, name)
        await many.delete_stream(name)
    plan = await planned(natty, captured)
    assert plan.config["num_replicas"] == 3
    with pytest.raises(RestoreError, match="replicas"):
        await restored(natty, captured)
    await restored(natty, captured, replicas=1)
    assert await dumped(natty, name) == before
    assert await read_some(natty, name, "reader", 1) == [8]
