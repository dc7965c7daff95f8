"""Mirrors and disaster recovery: a cluster is lost for good, and the other one goes on with the same messages."""

import asyncio

import pytest
from patient import PATIENCE, PATIENT
from restoring import Capturing, dumped, positions, read_some, restored
from servers import old_server
from two_clusters import two_clusters

from natty import ConfigError, Natty, StreamNotFoundError, UnsupportedError
from natty.streams.mirror import Origin, PromotionRefusedError, copies, create_mirror, create_sourced, promote
from natty.testing import NatsServer


async def has(natty, stream, count, within=PATIENCE):
    """Wait until a stream holds so many messages; return what the server tells of it."""
    async with asyncio.timeout(within):
        while True:
            info = await natty.jetstream.request(f"STREAM.INFO.{stream}")
            if info["state"]["messages"] >= count:
                return info
            await asyncio.sleep(0.05)


@pytest.fixture
async def origin(natty, natty_name):
    """A stream with ten messages."""
    name = natty_name("origin")
    await natty.ensure_stream(name, subjects=[f"{name}.>"], max_age=3600.0, allow_atomic=True, duplicate_window=60.0)
    for number in range(10):
        await natty.publish(f"{name}.{number % 2}", b"%d" % number)
    return name


async def test_a_mirror_has_the_messages_the_sequences_and_the_limits_of_its_origin(natty, origin):
    config = await create_mirror(natty.jetstream, f"{origin}_M", Origin(stream=origin))
    assert config["max_age"] == 3600 * 10**9
    await has(natty, f"{origin}_M", 10)
    assert (await dumped(natty, f"{origin}_M"))[1] == (await dumped(natty, origin))[1]
    (found,) = [one for one in await copies(natty.jetstream) if one.stream == f"{origin}_M"]
    assert (found.kind, found.origin, found.lag) == ("mirror", origin, 0)


async def test_a_mirror_is_promoted_with_the_subjects_and_the_settings_of_its_origin(natty, origin):
    mirror = f"{origin}_M"
    await create_mirror(natty.jetstream, mirror, Origin(stream=origin), {"metadata": {"who": "tests"}})
    await has(natty, mirror, 10)
    before = await dumped(natty, origin)
    with pytest.raises(PromotionRefusedError, match=f"stream {origin} takes {origin}"):
        await promote(natty.jetstream, mirror)
    await natty.delete_stream(origin)
    config = await promote(natty.jetstream, mirror)
    assert (config["subjects"], config["duplicate_window"]) == ([f"{origin}.>"], 60 * 10**9)
    assert config["allow_atomic"]
    assert {name for name in config["metadata"] if not name.startswith("_nats")} == {"who"}
    assert (await dumped(natty, mirror))[1] == before[1]
    ack = await natty.publish(f"{origin}.new", b"x")
    assert (ack.stream, ack.seq) == (mirror, 11)
    with pytest.raises(PromotionRefusedError, match=r"is not a mirror"):
        await promote(natty.jetstream, mirror)


async def test_a_mirror_begins_where_it_is_told_and_keeps_what_it_is_told(natty, origin):
    jetstream = natty.jetstream
    await create_mirror(jetstream, f"{origin}_S", Origin(stream=origin, start_sequence=6, filter_subject=f"{origin}.1"))
    await create_mirror(
        jetstream, f"{origin}_T", Origin(stream=origin, transforms=((f"{origin}.*", "elsewhere.{{wildcard(1)}}"),))
    )
    await has(natty, f"{origin}_S", 3)
    await has(natty, f"{origin}_T", 10)
    assert list((await dumped(natty, f"{origin}_S"))[1]) == [6, 8, 10]
    subjects = {message["subject"] for message in (await dumped(natty, f"{origin}_T"))[1].values()}
    assert subjects == {"elsewhere.0", "elsewhere.1"}
    await natty.delete_stream(origin)
    assert (await promote(jetstream, f"{origin}_S"))["subjects"] == [f"{origin}.1"]
    with pytest.raises(PromotionRefusedError, match="name them with --subject"):
        await promote(jetstream, f"{origin}_T")
    assert (await promote(jetstream, f"{origin}_T", ["elsewhere.*"]))["subjects"] == ["elsewhere.*"]


async def test_a_stream_gathers_what_several_hold(natty, origin, natty_name):
    other, gathered = natty_name("other"), natty_name("gathered")
    await natty.ensure_stream(other, subjects=[f"{other}.>"])
    await natty.publish(f"{other}.x", b"other")
    await create_sourced(natty.jetstream, gathered, [Origin(stream=origin), Origin(stream=other)])
    await has(natty, gathered, 11)
    assert [one.kind for one in await copies(natty.jetstream) if one.stream == gathered] == ["source", "source"]


async def test_a_source_as_gos_json_has_it_is_the_same_source(natty, origin, natty_name):
    """Zero values of Go's JSON are those that a server leaves out."""
    gathered, copy = natty_name("GATHERED"), natty_name("COPY")
    same = {"name": origin, "opt_start_seq": 0, "opt_start_time": None, "filter_subject": "", "subject_transforms": []}
    for _ in range(2):
        await natty.create_stream(gathered, sources=[same])
        await natty.ensure_stream(gathered, sources=[same])
        await natty.create_stream(copy, mirror=same)


async def test_a_mirror_that_misses_messages_is_not_promoted_unawares(natty, origin):
    mirror = f"{origin}_M"
    await create_mirror(natty.jetstream, mirror, Origin(stream=origin))
    await has(natty, mirror, 10)
    lagging = f"{origin}_L"
    request = natty.jetstream.request
    settings = {"name": lagging, "storage": "file", "retention": "limits", "num_replicas": 1}
    await request(f"STREAM.CREATE.{lagging}", settings | {"mirror": {"name": f"{origin}_NONE"}})
    with pytest.raises(PromotionRefusedError, match="name them with --subject"):
        await promote(natty.jetstream, lagging)
    with pytest.raises(PromotionRefusedError, match=rf"has not copied the messages of {origin}_NONE \(never heard\)"):
        await promote(natty.jetstream, lagging, [f"{lagging}.>"])
    assert (await promote(natty.jetstream, lagging, [f"{lagging}.>"], force=True))["subjects"] == [f"{lagging}.>"]


async def test_what_can_be_no_origin_is_told_and_nothing_is_made(natty, origin, natty_name):
    work = natty_name("work")
    await natty.ensure_stream(work, subjects=[f"{work}.>"], retention="workqueue")
    jetstream, mirror = natty.jetstream, natty_name("mirror")
    with pytest.raises(ConfigError, match="is a work queue: a mirror would take its messages"):
        await create_mirror(jetstream, mirror, Origin(stream=work))
    with pytest.raises(StreamNotFoundError, match=f"did you mean {origin}"):
        await create_mirror(jetstream, mirror, Origin(stream=origin + "x"))
    with pytest.raises(ConfigError, match=r"no server answers on \$JS\.nowhere\.API"):
        await create_mirror(jetstream, mirror, Origin(stream=origin, domain="nowhere"))
    with pytest.raises(ConfigError, match="can't mirror itself"):
        await create_mirror(jetstream, origin, Origin(stream=origin))
    with pytest.raises(StreamNotFoundError):
        await jetstream.request(f"STREAM.INFO.{mirror}")


@pytest.mark.long
async def test_a_lost_clusters_mirror_is_promoted_and_goes_on_with_consumers():
    with two_clusters() as (hub, edge):
        async with Natty(**edge.connect_options(), **PATIENT) as near:
            async with Natty(**hub.connect_options(), **PATIENT) as far:
                await far.ensure_stream("ORDERS", subjects=["orders.>"], num_replicas=3, duplicate_window=60.0)
                for number in range(100):
                    await far.publish(f"orders.{number}", b"%d" % number)
                await far.ensure_consumer("ORDERS", "billing")
                assert await read_some(far, "ORDERS", "billing", 40) == list(range(1, 41))
                config = await create_mirror(near.jetstream, "ORDERS", Origin(stream="ORDERS", domain="hub"))
                assert config["num_replicas"] == 3
                await has(near, "ORDERS", 100)
                before = (await dumped(far, "ORDERS"))[1]
                with pytest.raises(PromotionRefusedError, match="is alive, heard"):
                    await promote(near.jetstream, "ORDERS")
            for server in hub:
                await asyncio.to_thread(server.kill)
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        config = await promote(near.jetstream, "ORDERS")
                        break
                    except PromotionRefusedError:
                        await asyncio.sleep(0.5)
            assert (config["subjects"], config["duplicate_window"]) == (["orders.>"], 60 * 10**9)
            assert (await dumped(near, "ORDERS"))[1] == before
            await near.ensure_consumer("ORDERS", "billing", deliver_policy="by_start_sequence", opt_start_seq=41)
            ack = await near.publish("orders.new", b"after")
            assert ack.seq == 101
            assert await read_some(near, "ORDERS", "billing", 61) == list(range(41, 102))


@pytest.mark.long
async def test_a_lost_clusters_stream_is_restored_from_its_archive_on_the_other(tmp_path):
    with two_clusters() as (hub, edge):
        async with Natty(**hub.connect_options(), **PATIENT) as far:
            await far.ensure_stream("ORDERS", subjects=["orders.>"], num_replicas=3)
            for number in range(100):
                await far.publish(f"orders.{number % 3}", b"%d" % number, headers={"Colour": "red"})
            await far.jetstream.request("STREAM.MSG.DELETE.ORDERS", {"seq": 50})
            await far.ensure_consumer("ORDERS", "billing", ack_wait=3600.0)
            await read_some(far, "ORDERS", "billing", 40)
            captured = Capturing(far, "ORDERS", tmp_path)
            await captured.capture()
            before, consumers = await dumped(far, "ORDERS"), await positions(far, "ORDERS")
        for server in hub:
            await asyncio.to_thread(server.kill)
        async with Natty(**edge.connect_options(), **PATIENT) as near:
            await restored(near, captured)
            assert await dumped(near, "ORDERS") == before
            assert (await positions(near, "ORDERS"))["billing"] == consumers["billing"]
            assert (await near.publish("orders.new", b"after")).seq == 101
            assert (await read_some(near, "ORDERS", "billing", 1)) == [41]


@pytest.mark.long
async def test_a_server_that_can_not_promote_says_so(natty_name):
    with NatsServer(binary=old_server("2.10.25")) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await natty.ensure_stream("O", subjects=["o.>"])
            await natty.publish("o.1", b"x")
            await create_mirror(natty.jetstream, "M", Origin(stream="O"))
            await has(natty, "M", 1)
            await natty.delete_stream("O")
            with pytest.raises(UnsupportedError, match="can't promote a mirror"):
                await promote(natty.jetstream, "M")
