"""What becomes of a message when something goes wrong on its way; test_publish.py has the rest."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from patient import PATIENT, until
from publishing import LASTING, UNHURRIED, make_stream

from natty import Natty, NattyError, OutboxOptions, PublishError
from natty.errors import AuthorizationError, UnsupportedError
from natty.testing import NatsServer, ServerOptions

PATHS = pytest.mark.parametrize("path", ["fast", "window"])


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that offers fast ingest, `<name>.>`."""
    return await make_stream(natty, natty_name("PUB"))


async def state(natty, stream):
    return (await natty.jetstream.request(f"STREAM.INFO.{stream}"))["state"]


async def until_stored(natty, stream, count):
    """Wait until a stream holds so many messages."""
    async with asyncio.timeout(PATIENT["timeout"]):
        while (await state(natty, stream))["messages"] != count:
            await asyncio.sleep(0.02)


async def payloads(natty, stream):
    """Every payload the stream holds, in order."""
    count, last = (await state(natty, stream))["messages"], (await state(natty, stream))["last_seq"]
    assert count == last  # nothing is deleted in these streams
    return [(await natty.jetstream.read(stream, sequence=sequence)).data for sequence in range(1, last + 1)]


async def publish_all(publisher, messages, leaving=None):
    """Publish (subject, data)s and leave, by an exception if one is given."""
    async with publisher:
        for subject, data in messages:
            await publisher.publish(subject, data)
        if leaving is not None:
            raise leaving


async def test_a_message_with_a_ttl_is_removed_by_the_stream(natty, natty_name):
    stream = await make_stream(natty, natty_name("TTL"), allow_msg_ttl=True)
    await natty.publish(f"{stream}.a", b"", ttl=3599.2)
    assert (await natty.jetstream.read(stream, sequence=1)).headers["Nats-TTL"] == ["3600"]
    await natty.publish(f"{stream}.a", b"", ttl=0.2)
    await until_stored(natty, stream, 1)
    assert (await natty.jetstream.read(stream, sequence=1)) is not None


async def test_a_ttl_that_the_stream_or_the_server_does_not_know_is_refused(natty, stream):
    with pytest.raises(PublishError, match="per-message TTL is disabled; set allow_msg_ttl on the stream"):
        await natty.publish(f"{stream}.a", b"", ttl=5)
    with pytest.raises(ValueError, match="ttl is 0 s"):
        await natty.publish(f"{stream}.a", b"", ttl=0)
    natty.connection._session.info = natty.connection.server_info | {"version": "2.10.29"}
    with pytest.raises(UnsupportedError, match=r"a message's ttl needs nats-server 2\.11 or later"):
        await natty.publish(f"{stream}.a", b"", ttl=5)
    assert (await state(natty, stream))["messages"] == 0


async def test_a_thousand_awaited_publishes_share_a_few_writes(natty, stream, monkeypatch):
    writes, link = [], natty.connection._session
    real_publish = link.publish

    def publish(messages):
        writes.append(len(messages))
        real_publish(messages)

    monkeypatch.setattr(link, "publish", publish)
    acks = await asyncio.gather(*(natty.publish(f"{stream}.a", b"") for _ in range(1000)))
    assert len({ack.seq for ack in acks}) == sum(writes) == 1000
    assert len(writes) == 1


async def test_a_message_with_an_id_is_sent_again_by_itself_when_its_ack_is_lost(natty_proxy, natty, stream):
    async with Natty(**natty_proxy.options, **PATIENT) as far:

        async def publish_unheard(data, number, **options):
            natty_proxy.mute()
            publishing = asyncio.create_task(far.publish(f"{stream}.a", data, **options))
            await until_stored(natty, stream, number)
            await natty_proxy.cut()
            await natty_proxy.restore()
            return await publishing

        ack = await publish_unheard(b"1", 1, msg_id="1")
        assert (ack.seq, ack.duplicate) == (1, True)
        await far.connection.ready()
        with pytest.raises(NattyError):  # without one, nobody can know
            await publish_unheard(b"2", 2)
    assert await payloads(natty, stream) == [b"1", b"2"]


@PATHS
async def test_lost_acks_store_each_message_once(natty_proxy, natty, stream, path):
    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.7}) as far:
        async with far.publisher(stream, path=path, window=64, ack_timeout=0.5, **LASTING) as publisher:
            for i in range(1000):
                await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
                if i == 500:
                    natty_proxy.mute()
        assert (publisher.stored, publisher.failures) == (1000, [])
    assert await payloads(natty, stream) == [b"%d" % i for i in range(1000)]


@pytest.mark.long
@PATHS
async def test_lost_acks_of_messages_without_an_id_are_told_as_doubt(natty_proxy, natty, stream, path):
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        with contextlib.suppress(PublishError):
            async with far.publisher(stream, path=path, window=64, **UNHURRIED) as publisher:
                await publisher.publish(f"{stream}.a", b"0")
                await publisher.flush()
                natty_proxy.mute()
                publisher.options = replace(publisher.options, ack_timeout=0.1)
                for i in range(1, 200):
                    await publisher.publish(f"{stream}.a", b"%d" % i)
    doubtful = {error.data for error in publisher.failures}
    assert doubtful
    assert all(error.in_doubt for error in publisher.failures)
    found = await payloads(natty, stream)
    assert len(found) == len(set(found))
    assert set(found) | doubtful == {b"%d" % i for i in range(200)}
    assert publisher.stored == 200 - len(doubtful)


@PATHS
async def test_a_publisher_stores_nothing_in_another_stream(natty, natty_name, stream, path):
    other = await make_stream(natty, natty_name("OTHER"))
    messages = [(f"{other}.a" if i == 50 else f"{stream}.a", b"%d" % i) for i in range(101)]
    for attempt in range(1, 21):  # the two streams' answers race
        publisher = natty.publisher(stream, path=path, **UNHURRIED)
        with pytest.raises(PublishError, match=f"1 of 101 .* on {other}.a: expected stream does not match"):
            await publish_all(publisher, messages)
        assert (await state(natty, other))["messages"] == 0
        assert publisher.stored == 100
        assert (await state(natty, stream))["messages"] == 100 * attempt


@PATHS
async def test_a_subject_that_has_moved_since_is_not_taken_for_stored(natty, natty_name, path):
    old, new = natty_name("OLD"), natty_name("NEW")
    await natty.ensure_stream(old, subjects=["moved." + old], allow_batched=True)
    publisher = await natty.publisher(old, path=path, **UNHURRIED).__aenter__()
    await natty.jetstream.request(f"STREAM.DELETE.{old}")
    await natty.ensure_stream(new, subjects=["moved." + old], allow_batched=True)
    for i in range(4):
        await publisher.publish("moved." + old, b"%d" % i)
    with pytest.raises(PublishError, match="4 of 4 messages were not stored"):
        await publisher.__aexit__(None, None, None)
    assert publisher.stored == 0
    for error in publisher.failures:
        assert "expected stream does not match" in str(error) or f"stored in stream {new}" in str(error)


async def test_the_expected_stream_goes_with_the_first_of_a_fast_batch_alone(natty, stream):
    async with natty.publisher(stream, path="fast", **UNHURRIED) as publisher:
        for i in range(3):
            await publisher.publish(f"{stream}.a", b"%d" % i, headers={"A": "b"})
    headers = [(await natty.jetstream.read(stream, sequence=number)).headers for number in (1, 2, 3)]
    assert headers == [{"A": ["b"], "Nats-Expected-Stream": [stream]}, {"A": ["b"]}, {"A": ["b"]}]


async def test_the_flow_that_the_server_lowers_is_kept_to(natty_proxy, stream):
    lowered = 8 * 500  # asked for one ack in 125 000 messages; it gives one in 500
    far = Natty(**natty_proxy.options, **PATIENT)
    async with far, far.publisher(stream, path="fast", window=1_000_000, **UNHURRIED) as publisher:

        async def publish(count):
            for i in range(count):
                await publisher.publish(f"{stream}.a", b"%d" % i)

        await publish(10_000)
        await publisher.flush()  # it has spoken by now
        natty_proxy.hold()
        publishing = asyncio.create_task(publish(20_000))
        await until(lambda: publisher.waiting >= lowered)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert publisher.waiting == lowered
        natty_proxy.release()
        await publishing
    assert publisher.stored == 30_000


@PATHS
async def test_the_bytes_on_their_way_are_bounded(natty, stream, path):
    async with natty.publisher(stream, path=path, window_bytes=300_000, **UNHURRIED) as publisher:
        most = 0
        for i in range(300):
            await publisher.publish(f"{stream}.a", b"%100000d" % i)
            most = max(most, publisher.waiting)
    assert 1 <= most <= 3
    assert (await state(natty, stream))["messages"] == 300


@PATHS
async def test_stored_messages_make_room_for_others(natty, stream, path):
    async with natty.publisher(stream, path=path, window_bytes=10_000, **UNHURRIED) as publisher:
        for _ in range(3):
            for i in range(50):
                await publisher.publish(f"{stream}.a", b"%100d" % i)
            assert publisher.waiting == 50  # none was held back, none waited for an ack
            await publisher.flush()


@PATHS
async def test_leaving_by_an_exception_reports_what_has_no_outcome(natty, stream, path):
    publisher = natty.publisher(stream, path=path)
    with pytest.raises(KeyError):
        await publish_all(publisher, [(f"{stream}.{i}", b"") for i in range(10)], leaving=KeyError)
    assert [error.subject for error in publisher.failures] == [f"{stream}.{i}" for i in range(10)]
    assert all("when its publisher was closed" in str(error) and error.in_doubt for error in publisher.failures)


@pytest.fixture
async def guarded(natty_tls, nats_server_binary, tmp_path):
    """A client that may not publish on `S.secret`."""
    users = 'authorization { users: [{user: u, password: p, permissions: {publish: {deny: "S.secret"}}}] }'
    options = ServerOptions(authorization=users)
    with NatsServer(options, folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), user="u", password="p", **PATIENT) as natty:
            natty.outbox.configure(OutboxOptions(**UNHURRIED))
            await make_stream(natty, "S")
            yield natty


@PATHS
@pytest.mark.parametrize("places", [[50], [0], [99], [10, 11, 60], list(range(100))])
async def test_what_is_not_permitted_is_named_and_the_others_are_stored(guarded, path, places):
    publisher = guarded.publisher("S", path=path, **UNHURRIED)
    with pytest.raises(PublishError, match=rf"{len(places)} of 100 .* on S.secret: not permitted: .*S\.secret"):
        await publish_all(publisher, [("S.secret" if i in places else "S.a", b"%d" % i) for i in range(100)])
    assert sorted(int(error.data) for error in publisher.failures) == places
    assert not any(error.in_doubt for error in publisher.failures)
    assert sorted(map(int, await payloads(guarded, "S"))) == [i for i in range(100) if i not in places]


async def test_what_is_not_permitted_fails_a_single_and_a_background_publish(guarded):
    with pytest.raises(AuthorizationError, match=r"not permitted: .*S\.secret"):
        await guarded.publish("S.secret", b"")
    await guarded.publish_async("S.secret", b"x")
    error = await anext(guarded.publish_errors())
    assert error.subject == "S.secret"
    assert "not permitted" in str(error)


@pytest.mark.parametrize("with_ids", [True, pytest.param(False, marks=pytest.mark.long)])
async def test_a_killed_server_has_exactly_what_was_acknowledged(natty_tls, nats_server_binary, tmp_path, with_ids):
    """500 tasks await their acks; the server is killed in between and comes back."""
    acknowledged, doubtful = set(), set()
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await make_stream(natty, "S")

            async def publish(task):
                for i in range(10):
                    number = task * 10 + i
                    msg_id = str(number) if with_ids else ""
                    try:
                        await natty.publish("S.a", b"%d" % number, msg_id=msg_id, timeout=150)
                        acknowledged.add(number)
                    except NattyError:
                        doubtful.add(number)

            async def accident():
                while len(acknowledged) < 1000:
                    await asyncio.sleep(0)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

            async with asyncio.timeout(200):
                await asyncio.gather(accident(), *(publish(task) for task in range(500)))
            found = list(map(int, await payloads(natty, "S")))
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)
    assert set(found) <= acknowledged | doubtful
    assert acknowledged | doubtful == set(range(5000))
    assert with_ids <= (acknowledged == set(range(5000)))
