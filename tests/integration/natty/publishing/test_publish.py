import asyncio
import contextlib
from dataclasses import replace

import pytest
from patient import NEVER, PATIENT, jump, until
from publishing import LASTING, UNHURRIED, make_stream, payloads

from natty import Natty, PublishError, StreamNotFoundError, WrongLastSequenceError, jetstream
from natty.errors import BadSubjectError, PayloadTooLargeError, UnsupportedError

PATHS = pytest.mark.parametrize("path", ["fast", "window"])
LOST = 5_000  # messages published while the server is killed


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that offers fast ingest, `<name>.>`."""
    return await make_stream(natty, natty_name("PUB"))


async def publish_all(publisher, messages):
    """Publish (subject, data, message id)s; return what the publisher said in the end."""
    try:
        async with publisher:
            for subject, data, msg_id in messages:
                await publisher.publish(subject, data, msg_id=msg_id)
    except PublishError as error:
        return str(error)
    return ""


async def give_up_when_stored(publisher, count):
    """Let a publisher give up at once when so many are stored, and what is left was refused."""
    await until(lambda: publisher.stored == count and all(one.refused for one in publisher._waiting.values()))
    publisher.options = replace(publisher.options, give_up=0.0)


@PATHS
async def test_a_burst_of_100_000_is_stored_whole_and_in_order(natty, stream, path):
    expected = [b"%d" % i for i in range(100_000)]
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for data in expected:
            await publisher.publish(f"{stream}.a", data)
    assert publisher.stored == 100_000
    assert await payloads(natty, stream) == expected
    assert repr(publisher).startswith(f"Publisher({stream}, {'fast ingest' if path == 'fast' else 'window'}, 100000 ")


@PATHS
async def test_a_message_id_is_stored_once(natty, stream, path):
    for _ in range(2):
        async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
            for i in range(100):
                await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
        assert (publisher.stored, publisher.failures) == (100, [])
    assert len(await payloads(natty, stream)) == 100


async def test_concurrent_publishes_of_500_tasks_each_get_their_own_ack(natty, stream):
    acks = await asyncio.gather(*(natty.publish(f"{stream}.a", b"%d" % i) for i in range(500)))
    assert sorted(ack.seq for ack in acks) == list(range(1, 501))
    stored = await payloads(natty, stream)
    assert all(stored[ack.seq - 1] == b"%d" % i for i, ack in enumerate(acks))
    assert not natty.connection._requests


async def test_a_message_id_and_an_expectation_of_a_single_publish(natty, stream, monkeypatch):
    monkeypatch.setattr(jetstream, "SEND_AGAIN", NEVER)  # a late ack must not make a duplicate of the first
    first = await natty.publish(f"{stream}.a", b"1", msg_id="x")
    again = await natty.publish(f"{stream}.a", b"1", msg_id="x")
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    with pytest.raises(WrongLastSequenceError):
        await natty.publish(f"{stream}.a", b"2", expect_last_sequence=7)
    with pytest.raises(WrongLastSequenceError):
        await natty.publish(f"{stream}.a", b"2", expect_last_subject_sequence=0)
    assert (await natty.publish(f"{stream}.a", b"2", expect_last_sequence=1)).seq == 2


async def test_the_callers_headers_are_not_changed(natty, stream):
    headers = {"A": "b"}
    await natty.publish(f"{stream}.a", b"", headers=headers, msg_id="1", expect_last_sequence=0)
    async with natty.publisher(stream, **UNHURRIED) as publisher:
        await publisher.publish(f"{stream}.a", b"", headers=headers, msg_id="2")
    assert headers == {"A": "b"}
    stored = await natty.jetstream.read(stream, sequence=2)
    assert stored.headers["A"] == ["b"]


async def test_a_subject_that_no_stream_takes_is_named(natty, natty_name, monkeypatch):
    monkeypatch.setattr(jetstream, "RETRY_DELAY", NEVER)  # so the first answer is the last that can be waited for
    subject = natty_name("nowhere")
    with pytest.raises(PublishError, match=f"no stream takes '{subject}': create one") as caught:
        await natty.publish(subject, b"")
    assert caught.value.subject == subject


@PATHS
@pytest.mark.parametrize("places", [(0, 51, 102), (100, 101, 102)])
async def test_a_burst_with_messages_for_no_stream_fails_those_alone(natty, stream, natty_name, path, places):
    nowhere = natty_name("nowhere")
    messages = [(f"{stream}.a", b"%d" % i, "") for i in range(100)]
    for place in places:
        messages.insert(place, (nowhere, b"lost", ""))
    publisher = natty.publisher(stream, path=path, **UNHURRIED)
    giving_up = asyncio.create_task(give_up_when_stored(publisher, 100))
    text = await publish_all(publisher, messages)
    await giving_up
    assert text.startswith("3 of 103 messages were not stored; the first: a message of 4 bytes on " + nowhere)
    assert "no stream takes this subject" in text
    assert {error.subject for error in publisher.failures} == {nowhere}
    assert sorted(map(int, await payloads(natty, stream))) == list(range(100))


@PATHS
@pytest.mark.parametrize("with_ids", [True, False])
async def test_a_full_stream_rejects_messages_that_are_named(natty, natty_name, path, with_ids):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=60, discard="new")
    messages = [(f"{stream}.{i}", b"%d" % i, f"id-{i}" if with_ids else "") for i in range(100)]
    publisher = natty.publisher(stream, path=path, **UNHURRIED)
    text = await publish_all(publisher, messages)
    assert text.startswith("40 of 100 ")
    assert "maximum messages exceeded" in text
    assert publisher.stored == 60
    assert [error.subject for error in publisher.failures] == [f"{stream}.{i}" for i in range(60, 100)]
    assert {error.msg_id for error in publisher.failures} == ({f"id-{i}" for i in range(60, 100)} if with_ids else {""})
    assert await payloads(natty, stream) == [b"%d" % i for i in range(60)]


async def test_a_publisher_is_fast_again_after_a_refusal_was_reported(natty, natty_name):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=2, discard="new")
    publisher = natty.publisher(stream, **UNHURRIED)
    with contextlib.suppress(PublishError):
        async with publisher:
            for _ in range(3):
                await publisher.publish(f"{stream}.a", b"")
            with pytest.raises(PublishError, match="1 of 3"):
                await publisher.flush()
            await natty.jetstream.request(f"STREAM.PURGE.{stream}")
            assert "fast ingest" in repr(publisher)
            await publisher.publish(f"{stream}.a", b"")
    assert (publisher.stored, len(publisher.failures)) == (3, 1)


@PATHS
async def test_a_payload_over_the_servers_limit_is_refused_alone(natty, stream, path, caplog):
    with pytest.raises(PayloadTooLargeError, match="max_payload of 1048576"):
        await natty.publish(f"{stream}.big", b"x" * 2_000_000)
    messages = [(f"{stream}.a", b"%d" % i, "") for i in range(20)]
    messages.insert(10, (f"{stream}.big", b"x" * 2_000_000, ""))
    publisher = natty.publisher(stream, path=path, **UNHURRIED)
    text = await publish_all(publisher, messages)
    assert text.startswith("1 of 21 ")
    assert "max_payload" in text
    assert [error.subject for error in publisher.failures] == [f"{stream}.big"]
    assert "again after" not in caplog.text  # the others were sent once, without a gap
    assert await payloads(natty, stream) == [b"%d" % i for i in range(20)]


async def test_bad_input_is_refused_before_anything_is_sent(natty, stream):
    with pytest.raises(StreamNotFoundError):
        await natty.publisher("NO_SUCH").__aenter__()
    async with natty.publisher(stream, **UNHURRIED) as publisher:
        with pytest.raises(BadSubjectError):
            await publisher.publish("a b", b"")
        with pytest.raises(ValueError, match="line break"):
            await publisher.publish(f"{stream}.a", b"", headers={"A": "x\r\ny"})
        await publisher.publish(f"{stream}.a", b"fine")
    assert publisher.stored == 1


async def test_fast_ingest_is_refused_clearly_where_it_is_not_offered(natty, natty_name):
    await natty.ensure_stream(name := natty_name("SLOW"), subjects=[name])
    with pytest.raises(PublishError, match="set allow_batched on it"):
        await natty.publisher(name, path="fast").__aenter__()
    async with natty.publisher(name, **UNHURRIED) as publisher:
        await publisher.publish(name, b"")
        assert "window" in repr(publisher)
    natty.connection._session.info = natty.connection.server_info | {"version": "2.12.4"}
    with pytest.raises(
        UnsupportedError, match=r"fast ingest needs nats-server 2\.14 or later and this one is 2\.12\.4"
    ):
        await natty.publisher(name, path="fast").__aenter__()


async def test_a_pause_longer_than_the_server_keeps_a_batch_loses_nothing(natty, stream):
    async with natty.publisher(stream, path="fast", **UNHURRIED) as publisher:
        for i in range(10):  # too few for the server to ack them by itself
            await publisher.publish(f"{stream}.a", b"%d" % i)
        await until(lambda: publisher.stored == 10)
        await publisher.publish(f"{stream}.a", b"10")
    assert publisher.stored == 11
    assert await payloads(natty, stream) == [b"%d" % i for i in range(11)]


@PATHS
async def test_publishing_goes_on_while_others_flush(natty, stream, path):
    async with natty.publisher(stream, path=path, window=64, **UNHURRIED) as publisher:

        async def some(task):
            for i in range(200):
                await publisher.publish(f"{stream}.{task}", b"%d" % i)
                if i % 20 == task:
                    await publisher.flush()

        await asyncio.gather(*(some(task) for task in range(5)))
    assert publisher.stored == 1000
    assert len(await payloads(natty, stream)) == 1000


async def test_what_is_published_while_another_flushes_a_full_stream_is_rejected_by_name(natty, natty_name):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=50, discard="new")
    publisher = natty.publisher(stream, path="fast", **UNHURRIED)
    with contextlib.suppress(PublishError):
        async with publisher:
            for i in range(60):
                await publisher.publish(f"{stream}.a", b"%d" % i)
            flushing = asyncio.create_task(publisher.flush())
            await asyncio.sleep(0)
            await publisher.publish(f"{stream}.a", b"60")
            await asyncio.gather(flushing, return_exceptions=True)
    assert (publisher.stored, len(publisher.failures)) == (50, 11)
    assert all("maximum messages exceeded" in str(error) for error in publisher.failures)


@PATHS
async def test_what_was_taken_without_a_connection_is_sent_when_it_is_back(natty_proxy, natty, stream, path):
    far = Natty(**natty_proxy.options, **PATIENT)
    async with far, far.publisher(stream, path=path, **UNHURRIED) as publisher:
        await natty_proxy.cut()
        await until(lambda: not far.connection.connected)
        await publisher.publish(f"{stream}.a", b"0")
        await natty_proxy.restore()
        await until(lambda: publisher.stored)  # and nobody has called flush
    assert await payloads(natty, stream) == [b"0"]


async def burst(server, natty, stream, path, *, ids):
    """Publish, with the server killed and started again in the middle; return the publisher."""
    publisher = natty.publisher(stream, path=path, window=512, **UNHURRIED)  # it hears of the lost connection

    async def accident():
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)

    with contextlib.suppress(PublishError):
        async with publisher:
            for i in range(LOST):
                await publisher.publish(f"{stream}.{i}", b"%d" % i, msg_id=str(i) if ids else "")
                if i == LOST // 2:
                    killing = asyncio.create_task(accident())
                    await asyncio.sleep(0.001)
            await killing
    return publisher


@PATHS
async def test_with_message_ids_a_killed_server_stores_each_exactly_once(victim, natty_name, path):
    async with Natty(**victim.connect_options(), **PATIENT) as natty:
        stream = await make_stream(natty, natty_name("KILL"))
        publisher = await burst(victim, natty, stream, path, ids=True)
        assert publisher.failures == []
        assert publisher.stored == LOST
        assert sorted(map(int, await payloads(natty, stream))) == list(range(LOST))


@PATHS
async def test_without_ids_every_message_is_stored_or_reported_and_few_are(victim, natty_name, path):
    async with Natty(**victim.connect_options(), **PATIENT) as natty:
        stream = await make_stream(natty, natty_name("KILL"))
        publisher = await burst(victim, natty, stream, path, ids=False)
        stored = list(map(int, await payloads(natty, stream)))
        assert len(stored) == len(set(stored))
        reported = {int(error.subject.rpartition(".")[2]) for error in publisher.failures}
        assert set(stored) | reported == set(range(LOST))
        assert len(reported) <= 512  # what was under way: not what came while the server was down
        assert publisher.stored + len(publisher.failures) == LOST
        assert all("in doubt" in str(error) for error in publisher.failures)


@PATHS
async def test_a_cut_link_in_mid_burst_loses_nothing(natty_proxy, natty, stream, path):
    far = Natty(**natty_proxy.options, **PATIENT)
    async with far, far.publisher(stream, path=path, window=256, **UNHURRIED) as publisher:
        for i in range(3000):
            await publisher.publish(f"{stream}.a", b"%d" % i, msg_id=str(i))
            if i in (1000, 2000):
                await natty_proxy.cut()
                await natty_proxy.restore()
    assert sorted(map(int, await payloads(natty, stream))) == list(range(3000))


@PATHS
async def test_lost_acks_are_noticed_and_the_messages_sent_again(natty_proxy, natty, stream, path):
    far = Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.7})
    async with far, far.publisher(stream, path=path, ack_timeout=0.5, **LASTING) as publisher:
        await publisher.publish(f"{stream}.a", b"0", msg_id="0")
        natty_proxy.half_open()
        await publisher.publish(f"{stream}.a", b"1", msg_id="1")
        await until(lambda: not far.connection.connected)
        await natty_proxy.restore()
    assert sorted(await payloads(natty, stream)) == [b"0", b"1"]


@PATHS
async def test_a_publisher_gives_up_in_time_and_names_what_is_left(natty_proxy, stream, path):
    async with Natty(**natty_proxy.options, **PATIENT) as far:
        publisher = await far.publisher(stream, path=path, ack_timeout=0.1, give_up=1000.0).__aenter__()
        await natty_proxy.cut()
        for name in ("a", "b"):
            await publisher.publish(f"{stream}.{name}", b"", msg_id=name)
        repair, tries = publisher._repair, []
        publisher._repair = lambda: tries.append(None) or repair()
        leaving = asyncio.create_task(publisher.__aexit__(None, None, None))
        await until(lambda: tries)
        jump(500)
        tries.clear()
        await until(lambda: leaving.done() or len(tries) >= 2)
        assert not leaving.done()
        jump(500)
        with pytest.raises(PublishError, match=r"2 of 2 .* given up after 1000 s"):
            await leaving
        assert [error.msg_id for error in publisher.failures] == ["a", "b"]
