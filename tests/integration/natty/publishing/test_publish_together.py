"""Messages that a publisher takes in one turn of the loop, and writes together."""

import asyncio
import threading
from collections import Counter

import pytest
from patient import NEVER, PATIENCE, PATIENT, until
from publishing import LASTING, UNHURRIED, make_stream, payloads

from natty import Natty
from natty.errors import ConnectionClosedError, PublishError, WrongLoopError
from natty.publishing import publisher as publishing
from natty.testing import NatsServer, ServerOptions

PATHS = pytest.mark.parametrize("path", ["fast", "window"])


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that offers fast ingest, `<name>.>`."""
    return await make_stream(natty, natty_name("TOGETHER"))


@pytest.fixture
def written(natty, monkeypatch):
    """How many messages each write of numbered ones had."""
    session, sizes = natty.connection._session, []
    publish = session.publish_numbered
    monkeypatch.setattr(
        session,
        "publish_numbered",
        lambda messages, reply, first: sizes.append(len(messages)) or publish(messages, reply, first),
    )
    return sizes


@PATHS
async def test_what_one_turn_takes_is_one_write(natty, stream, written, path):
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for turn in range(3):
            for i in range(20):
                await publisher.publish(f"{stream}.a", b"%d" % (20 * turn + i))
            await asyncio.sleep(0)
    assert sum(written) == 59  # the first begins the batch, and is sent alone
    assert len(written) == 3
    assert await payloads(natty, stream) == [b"%d" % i for i in range(60)]


@PATHS
@pytest.mark.parametrize("end", ["flush", "idle"])
async def test_the_batches_after_the_first_one_are_stored_without_a_second_try(
    natty, stream, path, end, monkeypatch, caplog
):
    """A batch ends with a flush, and when nothing more comes; the next one counts from 1 again."""
    for pause in ("LOOK", "IDLE"):
        monkeypatch.setattr(publishing, pause, 0.02)
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for batch in range(4):
            for i in range(20):
                await publisher.publish(f"{stream}.a", b"%d" % (20 * batch + i))
            if end == "flush":
                await publisher.flush()
            else:
                await until(lambda: not publisher.waiting)
        assert ("fast ingest" in repr(publisher)) == (path == "fast")
    assert "again after" not in caplog.text
    assert await payloads(natty, stream) == [b"%d" % i for i in range(80)]


@PATHS
async def test_a_long_turn_is_written_in_pieces_and_lets_others_run(natty, stream, written, path):
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for _ in range(2000):
            await publisher.publish(f"{stream}.a", bytes(436))  # counts for 500 bytes
        assert turns >= 15  # a piece has 64 KiB, and the message that finds it full
        assert max(written) <= 65_536 // 500 + 1
    counting.cancel()
    assert len(await payloads(natty, stream)) == 2000


@PATHS
async def test_tasks_together_never_have_more_on_the_way_than_the_window(natty, stream, path):
    most = 0

    async def publish(task):
        nonlocal most
        for i in range(20):
            await publisher.publish(f"{stream}.a", b"%d %d" % (task, i))
            most = max(most, publisher.waiting)

    async with natty.publisher(stream, path=path, window=16, **UNHURRIED) as publisher:
        await asyncio.gather(*map(publish, range(20)))
    assert most == 16
    assert publisher.stored == len(set(await payloads(natty, stream))) == 400


@PATHS
async def test_a_subject_with_headers_stands_beside_one_without(natty, stream, path):
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for i in range(6):
            headers = {"N": str(i)} if i % 2 else None
            await publisher.publish(f"{stream}.{'%d' if i % 3 else 'a'}", b"%d" * i, headers=headers)
    read = [await natty.jetstream.read(stream, sequence=number) for number in range(2, 7)]
    assert [message.data for message in read] == [b"%d" * i for i in range(1, 6)]
    assert [message.headers.get("N") for message in read] == [["1"], None, ["3"], None, ["5"]]
    assert [message.subject[len(stream) + 1 :] for message in read] == ["%d", "%d", "a", "%d", "%d"]


@PATHS
async def test_an_inbox_prefix_may_have_a_percent_sign(nats_server, natty, stream, path):
    options = nats_server.connect_options() | {"inbox_prefix": "_INBOX.100%d"}
    async with Natty(**options, **PATIENT) as other, other.publisher(stream, path=path, **UNHURRIED) as publisher:
        for i in range(10):
            await publisher.publish(f"{stream}.a", b"%d" % i)
    assert await payloads(natty, stream) == [b"%d" % i for i in range(10)]


@PATHS
async def test_another_thread_is_refused_also_in_the_middle_of_a_turn(natty, stream, path):
    refused = []

    def publish():
        try:
            publisher.publish(f"{stream}.b", b"").send(None)
        except WrongLoopError as error:
            refused.append(error)

    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        for _ in range(3):
            await publisher.publish(f"{stream}.a", b"")
        thread = threading.Thread(target=publish)
        thread.start()
        thread.join()
        await publisher.publish(f"{stream}.a", b"")
    assert len(refused) == 1
    assert publisher.stored == 4


@PATHS
async def test_a_connection_that_ends_in_the_middle_of_a_turn_leaves_no_doubt_about_what_was_not_written(
    natty, stream, path
):
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        await publisher.publish(f"{stream}.a", b"0")
        await publisher.flush()
        await publisher.publish(f"{stream}.a", b"1", msg_id="1")  # begins a batch, and is sent alone
        for i in (2, 3):
            await publisher.publish(f"{stream}.a", b"%d" % i)
        session = natty.connection._session
        session.abort()
        natty.connection._on_session_end(ConnectionResetError("cut in the middle of a turn"))
        await publisher.flush()
    assert publisher.failures == []
    assert await payloads(natty, stream) == [b"0", b"1", b"2", b"3"]


@PATHS
async def test_many_tasks_publish_each_message_once_while_links_break(natty_proxy, natty, stream, path):
    async def publish(task):
        for i in range(150):
            name = f"{task}-{i}"
            await publisher.publish(f"{stream}.{task}", name.encode(), msg_id=name)
            if i % 7 == task % 7:
                await asyncio.sleep(0.002)

    async def cut():
        for _ in range(6):
            await asyncio.sleep(0.05)
            await natty_proxy.cut()
            await natty_proxy.restore()

    far = Natty(**natty_proxy.options, **PATIENT)
    async with far, far.publisher(stream, path=path, **LASTING) as publisher:
        await asyncio.gather(cut(), *map(publish, range(20)))
        await publisher.flush()
        assert publisher.stored == 3000
    found = Counter(await payloads(natty, stream))
    assert found == Counter(f"{task}-{i}".encode() for task in range(20) for i in range(150))


@PATHS
async def test_a_few_messages_a_second_are_stored_and_none_is_reported(natty, stream, path, monkeypatch, caplog):
    """The server acknowledges them rarely, so the publisher asks before it takes them for lost."""
    for pause in ("LOOK", "IDLE"):
        monkeypatch.setattr(publishing, pause, 0.3)
    async with natty.publisher(stream, path=path, ack_timeout=2.0, give_up=PATIENCE) as publisher:
        for i in range(200):
            await publisher.publish(f"{stream}.a", b"%d" % i)
            await asyncio.sleep(0.02)
    assert "again after" not in caplog.text
    assert await payloads(natty, stream) == [b"%d" % i for i in range(200)]


@PATHS
async def test_a_flush_ends_while_other_tasks_go_on_publishing(natty, stream, path):
    stop = False

    async def publish():
        while not stop:
            await publisher.publish(f"{stream}.a", b"x")

    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        tasks = [asyncio.create_task(publish()) for _ in range(3)]
        await until(lambda: publisher.stored)
        for _ in range(5):
            async with asyncio.timeout(PATIENCE):
                await publisher.flush()
        stop = True
        await asyncio.gather(*tasks)


@PATHS
async def test_a_publisher_that_was_closed_takes_nothing_more(natty, stream, path):
    async with natty.publisher(stream, path=path, **UNHURRIED) as publisher:
        await publisher.publish(f"{stream}.a", b"1")
    with pytest.raises(ConnectionClosedError, match="the publisher or its client is closed: it publishes"):
        await publisher.publish(f"{stream}.a", b"2")
    assert await payloads(natty, stream) == [b"1"]


@PATHS
async def test_who_waits_for_room_when_a_publisher_ends_is_told(victim, natty_name, path):
    async with Natty(**victim.connect_options(), **PATIENT) as client:
        stream = await make_stream(client, natty_name("ROOM"))
        publisher = await client.publisher(stream, path=path, window=4, **UNHURRIED).__aenter__()
        victim.pause()
        try:
            waiting = [asyncio.create_task(publisher.publish(f"{stream}.a", b"%d" % i)) for i in range(8)]
            await asyncio.sleep(0.2)
            publisher.abandon()
            told = await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            victim.resume()
        refused = [one for one in told if isinstance(one, ConnectionClosedError)]
        assert len(refused) == 4
        assert publisher.failed == 4
        assert not publisher.waiting


async def test_a_batch_whose_first_message_is_too_large_begins_with_the_next_one(natty_name, caplog):
    with NatsServer(ServerOptions(max_payload_bytes=4096)) as server:
        async with Natty(**server.connect_options(), **PATIENT) as client:
            stream = await make_stream(client, natty_name("LARGE"))
            publisher = await client.publisher(stream, path="fast", **UNHURRIED).__aenter__()
            for i, size in enumerate((5000, 1, 1, 1)):
                await publisher.publish(f"{stream}.a", b"%d" % i * size)
            with pytest.raises(PublishError, match="1 of 4 messages were not stored"):
                await publisher.flush()
            publisher.abandon()
            assert await payloads(client, stream) == [b"1", b"2", b"3"]
    assert "again after" not in caplog.text


async def test_an_idle_batch_is_ended_also_when_all_of_it_is_acknowledged(natty, stream, monkeypatch, caplog):
    """The server drops an idle batch after ten seconds; a message after that would find none."""
    for pause in ("LOOK", "IDLE"):
        monkeypatch.setattr(publishing, pause, 0.1)
    async with natty.publisher(stream, path="fast", window=8, **UNHURRIED) as publisher:
        for batch in range(2):
            for i in range(20):
                await publisher.publish(f"{stream}.a", b"%d" % (20 * batch + i))
            await until(lambda: not publisher.waiting and publisher._ended)
    assert "again after" not in caplog.text
    assert await payloads(natty, stream) == [b"%d" % i for i in range(40)]


async def test_the_first_message_after_a_reconnect_does_not_wait(natty_proxy, natty, stream, caplog, monkeypatch):
    for pause in ("LOOK", "IDLE"):
        monkeypatch.setattr(publishing, pause, NEVER)
    async with Natty(**natty_proxy.options, **PATIENT) as far, far.publisher(stream, **UNHURRIED) as publisher:
        await publisher.publish(f"{stream}.a", b"1")
        await publisher.flush()
        await natty_proxy.cut()
        await natty_proxy.restore()
        await until(lambda: far.connection.reconnects == 1 and far.connection.connected)
        await publisher.publish(f"{stream}.a", b"2")
        await publisher.flush()
    assert "again after" not in caplog.text
    assert await payloads(natty, stream) == [b"1", b"2"]
