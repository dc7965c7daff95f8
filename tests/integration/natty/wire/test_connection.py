import asyncio
import contextlib
import socket

import pytest
from patient import NEVER, PATIENCE, PATIENT, jump, reconfigure, turns, until

from natty import AuthorizationError, Natty, NotConnectedError, RequestTimeoutError
from natty.errors import BadSubjectError, ConnectionClosedError, NoRespondersError, PayloadTooLargeError
from natty.testing import NatsServer, Proxy, ServerOptions
from natty.wire import connection

PING = 0.3  # seconds: a client that is to notice a silent link
SERVER_OPTIONS = ServerOptions(max_payload_bytes=100_000)  # of `own_server`


@contextlib.asynccontextmanager
async def connected(options, **more):
    async with Natty(**PATIENT | options | more) as natty:
        yield natty


def events(natty):
    """Collect what the connection tells its listeners."""
    told = []
    natty.connection.listeners.append(told.append)
    return told


def inbox(natty, subject):
    """Subscribe, and collect the payloads."""
    got = []
    natty.connection.subscribe(subject, lambda batch: got.extend(batch.payloads))
    return got


async def test_a_flush_that_times_out_does_not_harm_the_connection(natty_proxy, natty_name):
    async with connected(natty_proxy.options) as natty:
        told, got, subject = events(natty), inbox(natty, name := natty_name("flush")), name
        natty_proxy.hold()
        with pytest.raises(RequestTimeoutError, match="did not answer a ping in time"):
            await natty.connection.flush(0.1)
        cancelled = asyncio.create_task(natty.connection.flush())
        await asyncio.sleep(0)  # it has sent its ping
        cancelled.cancel()
        natty.connection.send(subject, b"held")
        natty_proxy.release()
        await natty.connection.flush()  # its own answer, not the one of a flush that was given up
        assert got == [b"held"]
        assert (told, natty.connection.connected) == ([], True)


async def test_a_sink_or_a_listener_that_raises_does_not_stop_the_reading(natty, natty_name, caplog):
    subject = natty_name("boom")

    def fails(*_):
        raise RuntimeError("boom")

    natty.connection.subscribe(subject, fails)
    natty.connection.listeners.append(fails)
    got = inbox(natty, subject)
    for payload in (b"1", b"2"):
        natty.connection.send(subject, payload)
        await natty.connection.flush()
    natty.connection._report("anything")
    assert got == [b"1", b"2"]
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3


async def test_a_half_open_link_is_noticed_by_its_silence_and_replaced(natty_proxy, natty_name):
    async with connected(natty_proxy.options, ping_interval=PING) as natty:
        told, got = events(natty), inbox(natty, name := natty_name("half"))
        natty_proxy.half_open()
        await until(lambda: told == ["disconnected"])
        reconfigure(natty, ping_interval=NEVER)
        await natty_proxy.restore()
        await until(lambda: "connected" in told)
        natty.connection.send(name, b"after")
        await natty.connection.flush()
        assert got == [b"after"]


async def test_a_server_that_stands_still_is_noticed_and_answers_again_when_resumed(victim):
    async with connected(victim.connect_options(), ping_interval=PING) as natty:
        told = events(natty)
        victim.pause()
        waiting = asyncio.create_task(natty.connection.request("$JS.API.INFO"))
        await until(lambda: told == ["disconnected"])
        reconfigure(natty, ping_interval=NEVER)
        with pytest.raises(NotConnectedError, match="lost before the answer came: the server does not answer"):
            await waiting
        victim.resume()
        await natty.connection.ready()
        assert (await natty.jetstream.request("INFO"))["type"] == "io.nats.jetstream.api.v1.account_info_response"


@pytest.mark.parametrize("unsent", [b"", b"x" * 90_000 * 20])
async def test_closing_a_half_open_connection_does_not_wait_for_an_answer(natty_proxy, monkeypatch, unsent):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.5)
    async with connected(natty_proxy.options, timeout=NEVER) as natty:
        natty_proxy.half_open()
        for start in range(0, len(unsent), 90_000):
            natty.connection.send("nobody", unsent[start : start + 90_000])
        async with asyncio.timeout(PATIENCE):
            await natty.close()
        with pytest.raises(ConnectionClosedError):
            natty.connection.send("any")


async def test_a_killed_server_fails_requests_at_once_and_subscriptions_go_on_after_it_is_back(victim, caplog):
    async with connected(victim.connect_options()) as natty:
        got = inbox(natty, "kept.>")
        inbox(natty, "silent")  # somebody is there, and never answers
        waiting = asyncio.create_task(natty.connection.request("silent", timeout=NEVER))
        await natty.connection.flush()
        await asyncio.to_thread(victim.kill)
        with pytest.raises(NotConnectedError, match="lost before the answer came"):
            async with asyncio.timeout(PATIENCE):
                await waiting
        assert [record for record in caplog.records if record.name == "asyncio"] == []  # it has no warning to add
        with pytest.raises(NotConnectedError):
            natty.connection.send("kept.a", b"dropped")
        await until(lambda: "nothing listens there" in str(natty.connection._last_error))
        with pytest.raises(NotConnectedError, match="nothing listens there"):
            await natty.connection.request("silent", timeout=0.1)
        await asyncio.to_thread(victim.start)
        await natty.connection.ready()
        natty.connection.send("kept.b", b"after")
        await natty.connection.flush()
        assert got == [b"after"]


async def test_bytes_that_end_the_session_for_good_lead_to_a_new_one(victim):
    async with connected(victim.connect_options()) as natty:
        told, got = events(natty), inbox(natty, "again")
        natty.connection._session._write(b"NONSENSE\r\n")  # -ERR 'Unknown Protocol Operation', and the server closes
        await until(lambda: told == ["disconnected", "connected"])
        natty.connection.send("again", b"1")
        await natty.connection.flush()
        natty.connection.max_payload = 10**9  # -ERR 'Maximum Payload Violation'
        natty.connection.send("again", b"x" * 200_000)
        await until(lambda: told == ["disconnected", "connected"] * 2)
        natty.connection.send("again", b"2")
        await natty.connection.flush()
        assert got == [b"1", b"2"]


async def test_a_message_over_max_payload_is_refused_here_and_the_session_stays(victim):
    async with connected(victim.connect_options()) as natty:
        told = events(natty)
        with pytest.raises(PayloadTooLargeError, match=r"100001 bytes on big .* max_payload of 100000"):
            natty.connection.send("big", b"x" * 100_001)
        natty.connection.send("big", b"x" * 100_000)
        await natty.connection.flush()
        assert told == []


async def test_bad_servers_in_the_list_are_passed_over(nats_server, monkeypatch):
    look_up = socket.getaddrinfo

    def knows_no_such_host(host, *more, **options):  # a real name server may take long to say so
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", knows_no_such_host)
    wrong = ["tls://127.0.0.1:1", "tls://no-such-host.invalid:4222", nats_server.url]
    options = nats_server.connect_options() | {"servers": wrong}
    async with connected(options) as natty:
        assert natty.connection.connected
        assert str(nats_server.port) in repr(natty)


async def test_the_next_server_is_taken_when_one_dies(victim, nats_server):
    options = nats_server.connect_options() | {"servers": [victim.url, nats_server.url]}
    async with connected(options) as natty:
        told = events(natty)
        assert str(victim.port) in repr(natty.connection)
        await asyncio.to_thread(victim.kill)
        await until(lambda: told == ["disconnected", "connected"])
        assert str(nats_server.port) in repr(natty.connection)


async def test_a_cluster_tells_its_other_servers(nats_cluster):
    options = nats_cluster[0].connect_options()
    async with connected(options) as natty:
        await until(lambda: len(natty.connection._servers) >= 3)
        assert {server.url for server in nats_cluster} <= set(natty.connection._servers)


async def test_an_idle_client_costs_next_to_nothing(nats_server):
    async with connected(nats_server.connect_options(), ping_interval=PING) as natty:
        natty.connection.subscribe("idle", lambda raw: None)
        assert await turns(1.0) < 50


async def test_a_request_to_nobody_says_so_and_one_to_the_silent_ends_in_time(natty, natty_name):
    with pytest.raises(NoRespondersError, match="no subscriber on"):
        await natty.connection.request(natty_name("nobody"))
    inbox(natty, name := natty_name("silent"))
    with pytest.raises(RequestTimeoutError, match=r"no answer on .* within 0\.1 s"):
        await natty.connection.request(name, timeout=0.1)
    with pytest.raises(PayloadTooLargeError):
        await natty.connection.request(name, b"x" * 10**7)
    assert not natty.connection._requests


async def test_waiting_for_a_connection_counts_towards_the_timeout_of_a_request(natty_proxy, natty_name):
    async with connected(natty_proxy.options, connect_timeout=NEVER) as natty:
        inbox(natty, name := natty_name("silent"))
        await natty_proxy.cut()
        await until(lambda: not natty.connection.connected)
        asked = asyncio.create_task(natty.connection.request(name, timeout=200.0))
        await asyncio.sleep(0)
        jump(100)
        await natty_proxy.restore()
        await natty.connection.ready(PATIENCE)
        await natty.connection.flush()
        jump(100)
        async with asyncio.timeout(50):  # not all of the 200 s once more
            with pytest.raises(RequestTimeoutError):
                await asked


async def test_what_is_in_flight_to_a_closed_subscription_goes_to_its_last_sink(natty_proxy, natty, natty_name):
    async with connected(natty_proxy.options) as reader:
        got, late, subject = [], [], natty_name("late")
        subscription = reader.connection.subscribe(subject, lambda batch: got.extend(batch.raw))
        await reader.connection.flush()
        natty_proxy.hold()
        natty.connection.send(subject, b"in flight")
        await natty.connection.flush()
        subscription.close(last=lambda batch: late.extend(batch.raw))
        natty_proxy.release()
        await until(lambda: late)
        await reader.connection.flush()
        assert (got, [raw[3] for raw in late], reader.connection._last_of) == ([], [b"in flight"], {})


async def test_a_queue_group_shares_its_messages(natty, natty_name):
    subject = natty_name("queue")
    counts = [[], []]
    for got in counts:
        natty.connection.subscribe(subject, lambda batch, got=got: got.extend(batch.raw), queue="group")
    for _ in range(40):
        natty.connection.send(subject, b"")
    await natty.connection.flush()
    assert sum(map(len, counts)) == 40
    assert all(counts)


async def test_closing_fails_what_still_waits_and_may_be_done_twice(nats_server, natty_name):
    natty = await Natty.connect(**PATIENT | nats_server.connect_options())
    told = events(natty)
    inbox(natty, name := natty_name("silent"))
    waiting = asyncio.create_task(natty.connection.request(name, timeout=NEVER))
    await asyncio.sleep(0)
    await natty.close()
    await natty.close()
    with pytest.raises(ConnectionClosedError):
        await waiting
    with pytest.raises(ConnectionClosedError):
        await natty.connection.ready()
    assert set(told) == {"closed"}
    assert repr(natty).startswith("Natty(Connection(closed")


async def test_what_was_sent_before_closing_arrives(natty, nats_server, natty_name, monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", PATIENCE)
    got = inbox(natty, name := natty_name("last"))
    await natty.connection.flush()
    async with connected(nats_server.connect_options()) as sender:
        sender.connection.send(name, b"words")
    await natty.connection.flush()
    assert got == [b"words"]


async def test_a_server_in_lame_duck_mode_is_left_before_it_ends(natty_tls, nats_server, nats_server_binary):
    options = ServerOptions(jetstream=False, config='lame_duck_duration: "20m", lame_duck_grace_period: "10m"')
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        urls = nats_server.connect_options() | {"servers": [server.url, nats_server.url]}
        async with connected(urls) as natty:
            server.lame_duck()
            await until(lambda: str(nats_server.port) in repr(natty.connection))
            assert server.alive


async def test_a_refused_subject_fails_its_request_at_once_and_by_name(natty_tls, nats_server_binary):
    permissions = '{user: ann, password: x, permissions: {publish: {deny: "secret.>"}}}'
    options = ServerOptions(jetstream=False, authorization=f"authorization {{ users: [{permissions}] }}")
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with connected(server.connect_options(), user="ann", password="x") as natty:
            with pytest.raises(AuthorizationError, match=r"not permitted: .*secret\.plans"):
                async with asyncio.timeout(PATIENCE):
                    await natty.connection.request("secret.plans", timeout=NEVER)
            assert natty.connection.connected


async def test_each_refusal_is_logged_once_and_after_a_hundred_it_is_said_once_that_more_are_not_logged(
    natty_tls, nats_server_binary, caplog, monkeypatch
):
    monkeypatch.setattr("natty.wire.repeated.MOST_STATES", 3)
    permissions = '{user: ann, password: x, permissions: {publish: {deny: "secret.>"}}}'
    options = ServerOptions(jetstream=False, authorization=f"authorization {{ users: [{permissions}] }}")
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with connected(server.connect_options(), user="ann", password="x") as natty:
            for number in (0, 0, 1, 0, 1, 2, 3, 4, 5):
                natty.connection.send(f"secret.{number}")
            await natty.connection.flush()
    told = [record.getMessage() for record in caplog.records if getattr(record, "action", "") == "refused"]
    assert [text.split('"')[1] for text in told[:3]] == [f"secret.{n}" for n in range(3)]
    assert len(told) == 4
    assert told[3].startswith("3 different lines of this kind were logged; no further ones are logged after this one: ")


async def test_a_link_that_fails_at_a_write_is_replaced(natty, natty_name, monkeypatch):
    name, link, told = natty_name("after"), natty.connection._session, events(natty)
    got = inbox(natty, name)
    natty.connection.subscribe(silent := natty_name("silent"), print)
    request = asyncio.create_task(natty.connection.request(silent, timeout=NEVER))
    await natty.connection.flush()

    def fail(messages):
        raise OSError("the socket is gone")

    monkeypatch.setattr(link, "publish", fail)
    natty.connection.send(name, b"lost")
    with pytest.raises(NotConnectedError, match="the socket is gone"):
        async with asyncio.timeout(PATIENCE):
            await request
    await until(lambda: told == ["disconnected", "connected"])
    assert natty.connection._session is not link
    natty.connection.send(name, b"arrives")
    await until(lambda: got)
    assert got == [b"arrives"]


async def test_a_blank_in_a_subject_is_refused_before_it_ends_the_session(natty):
    told = events(natty)
    with pytest.raises(BadSubjectError, match="blank"):
        await natty.publish("orders new", b"")
    await natty.connection.flush()
    assert told == []


async def test_closing_without_a_session_does_not_wait_for_one(natty_proxy, monkeypatch):
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", NEVER)
    async with connected(natty_proxy.options, timeout=NEVER) as natty:
        await natty_proxy.cut()
        await until(lambda: not natty.connection.connected)
        async with asyncio.timeout(PATIENCE):
            await natty.close()


async def test_cancelling_the_first_connect_leaves_no_socket_behind(natty_proxy):
    natty_proxy.hold()
    task = asyncio.create_task(Natty(**PATIENT | natty_proxy.options).connection.open())
    await until(lambda: natty_proxy.connections == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    natty_proxy.release()
    await until(lambda: natty_proxy.connections == 0)


async def test_a_second_proxy_stands_in_for_a_lost_one(nats_server, natty_name):
    async with Proxy.to(nats_server) as first, Proxy.to(nats_server) as second:
        options = first.options | {"servers": [first.url, second.url]}
        async with connected(options) as natty:
            got = inbox(natty, name := natty_name("moved"))
            await first.cut()
            await until(lambda: second.connections == 1)
            await natty.connection.ready()
            natty.connection.send(name, b"x")
            await natty.connection.flush()
            assert got == [b"x"]


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.006, 0.01, 0.03])
async def test_closing_while_it_reconnects_never_hangs(natty_proxy, delay):
    client = await Natty.connect(**PATIENT | natty_proxy.options)
    await natty_proxy.cut()
    await natty_proxy.restore()
    await asyncio.sleep(delay)
    async with asyncio.timeout(PATIENCE):
        await client.close()
    assert client.connection.state == "closed"


async def test_a_dead_link_is_noticed_also_while_the_ping_interval_changes_again_and_again(natty_proxy):
    async with Natty(**natty_proxy.options) as client:
        natty_proxy.mute()
        async with asyncio.timeout(PATIENCE):
            while client.connection.connected and not client.connection.reconnects:
                for seconds in (0.5, 0.6):
                    client.connection.set_ping_interval(seconds)
                    await asyncio.sleep(0.05)
        await natty_proxy.cut()
        await natty_proxy.restore()
