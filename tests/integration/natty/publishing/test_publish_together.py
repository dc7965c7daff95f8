"""Messages that a publisher takes in one turn of the loop, and writes together."""

import asyncio
import threading
from collections import Counter

import pytest
from patient import PATIENT, until
from publishing import LASTING, UNHURRIED, make_stream, payloads

from natty import Natty
from natty.errors import WrongLoopError
from natty.publishing import publisher as publishing

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
    monkeypatch.setattr(publishing, "IDLE", 0.02)
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
