"""A stream of one server is restored as three replicas, and the other way round; the server's disk is lost for good."""

import shutil

import pytest
from patient import NEVER, PATIENT
from restoring import Capturing, configured, dumped, planned, positions, read_some, restored, send

from capture.errors import RestoreError
from natty import Natty
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
