import asyncio
import subprocess
import sys

import pytest
from patient import NEVER, PATIENCE, PATIENT, turns, until
from publishing import LASTING, UNHURRIED, make_stream, payloads

from natty import Natty, OutboxOptions, PublishError
from natty.errors import BadSubjectError, ConnectionClosedError
from natty.testing import NatsServer

PATHS = pytest.mark.parametrize("path", ["fast", "window"])


@pytest.fixture
async def stream(natty, natty_name):
    """A stream that offers fast ingest, `<name>.>`."""
    return await make_stream(natty, natty_name("OUT"))


def patient(options, **settings):
    """Return a client whose background publishers take a stall for nothing worse."""
    natty = Natty(**options, **PATIENT)
    natty.outbox.configure(OutboxOptions(**UNHURRIED | settings))
    return natty


@pytest.fixture
def natty(natty):
    """The client of all tests, its background publishers patient, too."""
    natty.outbox.configure(OutboxOptions(**UNHURRIED))
    return natty


@pytest.mark.long
async def test_a_burst_of_100_000_in_the_background_is_stored_whole_and_in_order(nats_server, natty, stream):
    """The ancestor loses what comes after the first 256 of a burst."""
    expected = [b"%d" % i for i in range(100_000)]
    async with patient(nats_server.connect_options()) as client:
        for data in expected:
            await client.publish_async(f"{stream}.a", data)
    assert await payloads(natty, stream) == expected


@pytest.mark.parametrize("leaving", [RuntimeError, asyncio.CancelledError, None])
async def test_closing_drains_whatever_the_way_out(nats_server, natty, stream, leaving):
    async def work():
        async with patient(nats_server.connect_options()) as client:
            for i in range(5000):
                await client.publish_async(f"{stream}.a", b"%d" % i)
            if leaving is not None:
                raise leaving

    task = asyncio.create_task(work())
    await asyncio.wait({task})
    assert leaving is None or task.cancelled() or isinstance(task.exception(), leaving)
    assert await payloads(natty, stream) == [b"%d" % i for i in range(5000)]


@pytest.mark.parametrize("leaving", [RuntimeError, asyncio.CancelledError, None])
async def test_closing_waits_for_what_could_not_be_sent_yet(natty_proxy, natty, stream, leaving):
    async def work():
        async with patient(natty_proxy.options) as far:
            clients.append(far)
            await far.publish_async(f"{stream}.a", b"0")
            await far.flush_publishers()
            await natty_proxy.cut()
            await until(lambda: not far.connection.connected)
            await far.publish_async(f"{stream}.a", b"1")
            if leaving is not None:
                raise leaving

    clients, working = [], asyncio.create_task(work())
    await until(lambda: working.done() or (clients and clients[0].outbox._closed))
    assert not working.done()
    await natty_proxy.restore()
    await asyncio.wait({working})
    assert await payloads(natty, stream) == [b"0", b"1"]


async def test_closing_that_is_cancelled_reports_what_has_no_outcome(natty_proxy, stream):
    far = await patient(natty_proxy.options).__aenter__()
    told = []
    far.on_publish_error(told.append)
    await far.publish_async(f"{stream}.a", b"0")
    await far.flush_publishers()
    await natty_proxy.cut()
    await until(lambda: not far.connection.connected)
    await far.publish_async(f"{stream}.a", b"1")
    closing = asyncio.create_task(far.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert [error.data for error in told] == [b"1"]
    assert far.connection.state == "closed"


async def test_a_process_that_ends_has_published_everything(nats_server, natty, stream):
    code = """
import asyncio, sys
from natty import Natty, OutboxOptions
async def main(stream, server, ca, cert, key):
    patience = dict(connect_timeout=60, timeout=60, ping_interval=60)
    async with Natty(server, tls_ca=ca, tls_cert=cert, tls_key=key, **patience) as natty:
        natty.outbox.configure(OutboxOptions(ack_timeout=60, give_up=60))
        for i in range(3000):
            await natty.publish_async(f"{stream}.a", b"%d" % i)
        sys.exit(7)
asyncio.run(main(*sys.argv[1:]))
"""
    options = nats_server.connect_options()
    arguments = [stream, options["servers"][0], options["tls_ca"], options["tls_cert"], options["tls_key"]]
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert (ran.returncode, ran.stderr) == (7, "")
    assert len(await payloads(natty, stream)) == 3000


@pytest.mark.parametrize("reader", ["callback", "iterator"])
@pytest.mark.parametrize("lag", ["before", "after"])
async def test_every_refused_message_is_told_exactly_once(natty, natty_name, reader, lag):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=60, discard="new")
    told = []

    async def read():
        async for error in natty.publish_errors():
            told.append(error)

    def listen():
        if reader == "callback":
            natty.on_publish_error(told.append)
            return None
        return asyncio.create_task(read())

    task = listen() if lag == "before" else None
    for i in range(3000):
        await natty.publish_async(f"{stream}.a", b"%d" % i, msg_id=f"id-{i}")
    await natty.flush_publishers()
    task = task or listen()
    await until(lambda: len(told) >= 2940)
    await natty.close()
    if task is not None:
        async with asyncio.timeout(PATIENCE):
            await task
    assert [error.data for error in told] == [b"%d" % i for i in range(60, 3000)]
    assert [error.msg_id for error in told] == [f"id-{i}" for i in range(60, 3000)]
    assert {error.subject for error in told} == {f"{stream}.a"}
    assert not any(error.in_doubt for error in told)
    assert "maximum messages exceeded" in str(told[0])


async def test_closing_raises_what_nobody_has_read_unless_the_body_raised(nats_server, natty, natty_name, caplog):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=1, discard="new")
    clients = []

    async def work(leaving):
        async with patient(nats_server.connect_options()) as client:
            clients.append(client)
            for _ in range(3):
                await client.publish_async(f"{stream}.a", b"x")
            if leaving:
                raise leaving

    for leaving, expected in ((None, PublishError), (KeyError, KeyError)):
        with pytest.raises(expected) as caught:
            await work(leaving)
        assert clients[-1].connection.state == "closed"
        if leaving is None:
            assert "2 messages published in the background were not stored; the first: " in str(caught.value)
    assert "3 messages published in the background were not stored" in caplog.text


async def test_nothing_more_is_taken_while_too_many_errors_are_unread(natty, natty_name):
    stream = await make_stream(natty, natty_name("FULL"), max_msgs=1, discard="new")
    natty.outbox.configure(OutboxOptions(max_errors=10, **UNHURRIED))
    for i in range(11):
        await natty.publish_async(f"{stream}.a", b"%d" % i)
    await natty.flush_publishers()
    with pytest.raises(PublishError, match=r"10 publish errors are unread: read publish_errors\(\)"):
        await natty.publish_async(f"{stream}.a", b"11")
    errors = natty.publish_errors()
    assert [(await anext(errors)).data for _ in range(10)] == [b"%d" % i for i in range(1, 11)]
    await natty.publish_async(f"{stream}.a", b"11")
    await natty.flush_publishers()
    assert (await anext(errors)).data == b"11"


async def test_bad_input_is_told_at_once_and_not_taken(natty, stream, natty_name):
    nowhere = natty_name("nowhere")
    with pytest.raises(PublishError, match=f"no stream takes '{nowhere}': create one"):
        await natty.publish_async(nowhere, b"")
    with pytest.raises(BadSubjectError):
        await natty.publish_async("a b", b"")
    await natty.publish_async(f"{stream}.a", b"")
    with pytest.raises(RuntimeError, match="before the first publish_async"):
        natty.outbox.configure(OutboxOptions())
    await natty.close()
    with pytest.raises(ConnectionClosedError):
        await natty.publish_async(f"{stream}.a", b"")
    await natty.close()


async def test_the_subjects_of_a_stream_share_a_publisher_and_few_questions_are_asked(natty, natty_name, monkeypatch):
    streams = sorted([await make_stream(natty, natty_name("OUT")) for _ in range(2)])
    questions, real_request = [], natty.jetstream.request

    async def request(subject, *arguments, **options):
        questions.append(subject)
        return await real_request(subject, *arguments, **options)

    monkeypatch.setattr(natty.jetstream, "request", request)
    for i in range(400):
        await natty.publish_async(f"{streams[i % 2]}.{i}", b"%d" % i)
    assert repr(natty.outbox).startswith(f"Outbox({streams[0]}, {streams[1]}; 400 subjects, ")
    assert len(questions) == 4  # the name and the settings of each
    await natty.flush_publishers()
    assert "0 waiting, 0 errors unread" in repr(natty.outbox)
    for place, stream in enumerate(streams):
        assert await payloads(natty, stream) == [b"%d" % i for i in range(place, 400, 2)]


async def test_tasks_that_begin_at_the_same_time_open_one_publisher(natty, stream):
    await asyncio.gather(*(natty.publish_async(f"{stream}.{i}", b"%d" % i) for i in range(200)))
    await natty.flush_publishers()
    assert repr(natty.outbox) == f"Outbox({stream}; 200 subjects, 0 waiting, 0 errors unread)"
    assert len(await payloads(natty, stream)) == 200


async def test_an_idle_publisher_is_drained_and_closed_and_opened_again_when_needed(natty, stream):
    natty.outbox.configure(OutboxOptions(idle=0.2, **UNHURRIED))
    for number in range(2):
        await natty.publish_async(f"{stream}.a", b"%d" % number)
        await until(lambda: repr(natty.outbox) == "Outbox(no stream; 0 subjects, 0 waiting, 0 errors unread)")
        assert len(natty.connection._subscriptions) == 1  # the one for requests
    assert await payloads(natty, stream) == [b"0", b"1"]


@pytest.fixture
async def reader(nats_server):
    async with patient(nats_server.connect_options()) as client:
        yield client


async def test_a_publisher_that_closes_and_opens_again_keeps_the_order_of_a_subject(natty, reader, natty_name):
    streams = [await make_stream(natty, natty_name("OUT")) for _ in range(3)]
    natty.outbox.configure(OutboxOptions(max_subjects=1, idle=0.05, **UNHURRIED))
    for i in range(900):
        await natty.publish_async(f"{streams[i % 3]}.a", b"%d" % i)
        if i % 30 == 0:
            await asyncio.sleep(0.03)
    await natty.close()
    for place, stream in enumerate(streams):
        assert await payloads(reader, stream) == [b"%d" % i for i in range(place, 900, 3)]


async def test_a_new_publisher_waits_for_the_one_that_is_being_drained(natty_proxy, natty, stream):
    async with patient(natty_proxy.options, idle=NEVER) as far:
        await far.publish_async(f"{stream}.a", b"0")
        natty_proxy.hold()
        await far.publish_async(f"{stream}.a", b"1")
        (first,) = far.outbox._senders.values()
        far.outbox._routes.remove(f"{stream}.a")  # as if it had been idle
        far.outbox._tidy()
        await until(lambda: first.draining is not None)
        taking = asyncio.create_task(far.publish_async(f"{stream}.a", b"2"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert list(far.outbox._senders.values()) == [first]
        natty_proxy.release()
        await taking
        assert first.publisher.waiting == 0
    assert await payloads(natty, stream) == [b"0", b"1", b"2"]


async def test_delete_publisher_settles_its_messages_first(natty, stream):
    for i in range(500):
        await natty.publish_async(f"{stream}.a", b"%d" % i)
        await natty.publish_async(f"{stream}.b", b"%d" % i)
    await natty.delete_publisher(f"{stream}.a")
    assert repr(natty.outbox) == f"Outbox({stream}; 1 subjects, 0 waiting, 0 errors unread)"
    await natty.delete_publisher(f"{stream}.b")
    assert repr(natty.outbox) == "Outbox(no stream; 0 subjects, 0 waiting, 0 errors unread)"
    await natty.delete_publisher(f"{stream}.unknown")
    assert len(await payloads(natty, stream)) == 1000


@PATHS
async def test_a_subject_that_moves_to_another_stream_is_followed(natty, natty_name, path):
    old, new, subject = natty_name("OLD"), natty_name("NEW"), natty_name("moving")
    await natty.ensure_stream(old, subjects=[subject], allow_batched=True)
    told = []
    natty.on_publish_error(told.append)
    natty.outbox.configure(OutboxOptions(path=path, **UNHURRIED))
    await natty.publish_async(subject, b"0")
    await natty.flush_publishers()
    await natty.jetstream.request(f"STREAM.DELETE.{old}")
    await natty.ensure_stream(new, subjects=[subject], allow_batched=True)
    number = 0
    async with asyncio.timeout(PATIENCE):
        while f"Outbox({new}" not in repr(natty.outbox) and f", {new};" not in repr(natty.outbox):
            number += 1
            await natty.publish_async(subject, b"%d" % number)
            await natty.flush_publishers()
    assert told
    before = len(told)
    await natty.publish_async(subject, b"last")
    await natty.flush_publishers()
    assert len(told) == before
    assert (await payloads(natty, new))[-1] == b"last"


async def test_callers_wait_while_the_window_is_full(natty, stream):
    natty.outbox.configure(OutboxOptions(window=16, path="window", **UNHURRIED))
    most = 0

    async def work(task):
        nonlocal most
        for i in range(100):
            await natty.publish_async(f"{stream}.{task}", b"%d" % i)
            most = max(most, int(repr(natty.outbox).split(" subjects, ")[1].split()[0]))

    await asyncio.gather(*(work(task) for task in range(50)))
    await natty.flush_publishers()
    assert 1 <= most <= 16
    assert len(await payloads(natty, stream)) == 5000


@PATHS
async def test_lost_acks_are_noticed_though_nobody_waits(natty_proxy, natty, stream, path):
    async with Natty(**natty_proxy.options, **PATIENT | {"ping_interval": 0.7}) as far:
        far.outbox.configure(OutboxOptions(path=path, ack_timeout=0.5, **LASTING))
        await far.publish_async(f"{stream}.a", b"0", msg_id="0")
        await far.flush_publishers()
        natty_proxy.mute()
        await far.publish_async(f"{stream}.a", b"1", msg_id="1")
        await until(lambda: "0 waiting, 0 errors" in repr(far.outbox))
    assert await payloads(natty, stream) == [b"0", b"1"]


@PATHS
async def test_a_server_killed_in_mid_burst_stores_each_exactly_once(natty_tls, nats_server_binary, tmp_path, path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            await make_stream(natty, "S")
            natty.outbox.configure(OutboxOptions(path=path, **UNHURRIED))
            for i in range(4000):
                await natty.publish_async("S.a", b"%d" % i, msg_id=str(i))
                if i == 2000:
                    await asyncio.to_thread(server.kill)
                    starting = asyncio.create_task(asyncio.to_thread(server.start))
            await natty.flush_publishers()
            await starting
            assert sorted(map(int, await payloads(natty, "S"))) == list(range(4000))


async def test_a_client_at_rest_takes_no_cpu(nats_server, natty_name):
    async with patient(nats_server.connect_options()) as natty:
        stream = await make_stream(natty, natty_name("REST"))
        await natty.ensure_consumer(stream, "reader", ack_policy="none")
        pull, seen = natty.pull(stream, "reader"), []

        async def read():
            async for batch in pull:
                seen.extend(batch.payloads)
                pull.finish(len(batch))

        reading = asyncio.create_task(read())
        await natty.publish_async(f"{stream}.a", b"x")
        await natty.flush_publishers()
        await until(lambda: seen)
        assert await turns(2) < 200  # a loop that spins goes round some ten thousand times
        pull.stop()
        await reading
