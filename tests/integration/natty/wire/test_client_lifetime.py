"""A client is opened once and closed once; whatever runs on it ends when it is closed. Elections: see below."""

import asyncio
import time
from contextlib import suppress

import pytest
from consuming import fill
from electing import LONG, Work, forever, vacated
from patient import NEVER, PATIENCE, PATIENT, until

from natty import LeadershipLostError, Natty, NattyError, NotConnectedError, PublishError
from natty.errors import ConnectionClosedError
from natty.pulling import pull as pulling
from natty.pulling.ordered import Ordered
from natty.wire import connection
from natty.wire.connection import Connection

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "lifetime_leaders"}


@pytest.fixture(autouse=True)
def time_to_leave(monkeypatch):
    """A machine that stands still must not use up the time for leaving."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", PATIENCE)
    monkeypatch.setattr(pulling, "DRAIN_TIMEOUT", PATIENCE)


@pytest.fixture
async def client(nats_server):
    """A client to be closed by the test."""
    client = await Natty.connect(**PATIENT | nats_server.connect_options())
    yield client
    await client.connection.close()


@pytest.fixture
async def name(natty, natty_name):
    """An election whose last leader has left."""
    return await vacated(natty, natty_name("job"), **BUCKET)


async def ended(awaitable):
    async with asyncio.timeout(PATIENCE):
        return await awaitable


def supervisors():
    return [task for task in asyncio.all_tasks() if task.get_name() == "natty connection"]


async def test_a_block_around_a_client_that_connect_has_opened_opens_nothing_more(nats_server):
    before = len(supervisors())
    client = await Natty.connect(**PATIENT | nats_server.connect_options())
    link = client.connection._session
    async with client as same:
        assert same is client
        assert client.connection._session is link
        assert len(supervisors()) == before + 1
        await client.connection.flush()
    assert (client.connection.state, len(supervisors())) == ("closed", before)
    assert link._over


async def test_a_client_that_several_open_at_the_same_time_has_one_session(nats_server):
    before, client = len(supervisors()), Natty(**PATIENT | nats_server.connect_options())
    try:
        assert await asyncio.gather(*(client.connection.open() for _ in range(3))) == [client.connection] * 3
        assert len(supervisors()) == before + 1
        assert len(client.connection._subscriptions) == 1
    finally:
        await client.close()


async def test_the_first_block_that_is_left_closes_the_client(client):
    async with client:
        async with client:
            assert client.connection.connected
        assert client.connection.state == "closed"
    assert client.connection.state == "closed"


async def test_a_closed_client_is_not_opened_again(client, nats_server):
    await client.close()
    with pytest.raises(ConnectionClosedError, match="was closed and can't be opened again: create another one"):
        await client.connection.open()
    with pytest.raises(ConnectionClosedError, match="create another one"):
        await client.__aenter__()
    never_opened = Natty(**PATIENT | nats_server.connect_options())
    await never_opened.close()
    with pytest.raises(ConnectionClosedError, match="create another one"):
        await never_opened.__aenter__()


async def test_a_client_that_is_closed_while_it_connects_stays_closed(natty_proxy):
    before, client = len(supervisors()), Natty(**PATIENT | natty_proxy.options)
    natty_proxy.hold()
    opening = asyncio.create_task(client.connection.open())
    await until(lambda: client.connection.state == "opening")
    await asyncio.sleep(0)
    await ended(client.close())
    natty_proxy.release()
    with pytest.raises(ConnectionClosedError, match="was closed while it connected"):
        await ended(opening)
    assert (client.connection.state, len(supervisors())) == ("closed", before)


async def test_a_client_that_could_not_connect_may_try_again(nats_server):
    client = Natty(**PATIENT | nats_server.connect_options() | {"servers": ["tls://127.0.0.1:1"]})
    with pytest.raises(NattyError, match="nothing listens there"):
        await client.connection.open()
    with pytest.raises(NotConnectedError, match=r"no server answers: .*nothing listens there"):
        await client.connection.ready(0.01)
    client.connection._servers = [nats_server.url]
    async with client:
        await client.connection.flush()


async def test_what_is_asked_of_a_client_that_nobody_has_opened_says_so_at_once(nats_server):
    client = Natty(**PATIENT | nats_server.connect_options() | {"timeout": NEVER})
    text = "this client was not opened: use `async with Natty"
    with pytest.raises(NotConnectedError, match=text):
        await ended(client.publish("a", b""))
    with pytest.raises(NotConnectedError, match=text):
        await ended(client.get("bucket", "key"))
    with pytest.raises(NotConnectedError, match=text):
        client.connection.send("a")


async def test_who_waits_for_a_session_hears_of_the_end(natty_proxy):
    client = await Natty.connect(**PATIENT | natty_proxy.options)
    await natty_proxy.cut()
    await until(lambda: not client.connection.connected)
    waiting = asyncio.create_task(client.connection.ready(NEVER))
    await asyncio.sleep(0)
    await ended(client.close())
    with pytest.raises(ConnectionClosedError):
        await ended(waiting)


async def test_what_runs_once_says_so_the_second_time(natty, natty_name):
    stream = await fill(natty, natty_name("ONCE"), 3)
    seen = []
    consumption = natty.consume(stream, "d", lambda message: (seen.append(message.sequence), consumption.stop()))
    await ended(consumption.run())
    with pytest.raises(RuntimeError, match=r"can be used only once: call consume\(\) or pull\(\) again"):
        await consumption
    with pytest.raises(RuntimeError, match="can be used only once"):
        await anext(aiter(consumption))
    assert seen == [1]
    stopped = natty.consume(stream, "e", lambda message: None)
    stopped.stop()
    await ended(stopped.run())
    bucket = await natty.create_bucket(natty_name("once"))
    await bucket.put("k", b"")
    for once in (natty.pull(stream, "d"), bucket.watch(), Ordered(natty.jetstream, stream)):
        steps = aiter(once)
        await ended(anext(steps))
        with pytest.raises(RuntimeError, match=r"only once: c(all .* again|reate another one)"):
            await anext(aiter(once))
        await steps.aclose()
        with pytest.raises(RuntimeError, match=r"only once: c(all .* again|reate another one)"):
            await anext(aiter(once))


async def iterate(steps, begun):
    async for _ in steps:
        begun.set()


async def publish_and_wait(client, stream, begun):
    publisher = client.publisher(stream, path="window", ack_timeout=NEVER, give_up=NEVER)
    await publisher.__aenter__()
    client.connection.put = lambda message: begun.set()  # nobody will answer
    await publisher.publish(f"{stream}.a", b"")
    with pytest.raises(PublishError, match="given up because the client was closed: no ack yet"):
        await publisher.flush()
    publisher.abandon()
    with pytest.raises(ConnectionClosedError, match="publishes nothing more"):
        await publisher.publish(f"{stream}.a", b"")


async def handled(client, stream, begun):
    await client.consume(stream, "handled", lambda message: begun.set(), dead_letters=True)


async def templates(client, stream, begun):
    task = asyncio.create_task(client.stream_templates().run(lease=LONG))
    await until(lambda: client.connection.lifetime.running)
    begun.set()
    await task


RUNS = {
    "a consumption": handled,
    "a consumption that is iterated over": lambda client, stream, begun: iterate(client.consume(stream, "i"), begun),
    "a bare pull": lambda client, stream, begun: iterate(client.pull(stream, "p"), begun),
    "an ordered reader": lambda client, stream, begun: iterate(Ordered(client.jetstream, stream), begun),
    "a watch": lambda client, stream, begun: iterate(client.watch("lifetime"), begun),
    "a look at who leads": lambda client, stream, begun: iterate(client.observe("nobody", **BUCKET), begun),
    "a publisher": publish_and_wait,
    "the makers of streams": templates,
}


@pytest.mark.parametrize("kind", RUNS)
async def test_whatever_runs_ends_when_its_client_is_closed(kind, natty, client, natty_name):
    stream = await fill(natty, natty_name("RUNS"), 1)
    await natty.ensure_consumer(stream, "p")
    await natty.put("lifetime", "k", b"", create_bucket=True)
    begun = asyncio.Event()
    task = asyncio.create_task(RUNS[kind](client, stream, begun))
    await ended(begun.wait())
    await ended(client.close())
    with suppress(ConnectionClosedError):  # of the makers of streams: they can't go on
        await ended(task)
    assert (client.connection.lifetime.running, client.connection.listeners) == ([], [])


# Elections.


async def leads_at_once(natty, name):
    """Another node leads though the lease would last for minutes: it was released."""
    terms = []
    task = asyncio.create_task(
        natty.election(name, lease=LONG, max_stall=LONG, node_name="next", **BUCKET).run(forever(terms))
    )
    try:
        await until(lambda: terms)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_closing_cancels_the_leaders_work_and_releases_its_lease(natty, client, name):
    work, losses = Work(), []
    election = client.election(name, lease=LONG, max_stall=LONG, on_lost=losses.append, **BUCKET)
    task = asyncio.create_task(election.run(work))
    await until(lambda: work.terms)
    await ended(client.close())
    assert (len(work.ended_at), losses, election.is_leader()) == (1, ["closed"], False)
    with pytest.raises(
        ConnectionClosedError, match=f"the client was closed: .* is not a candidate of '{name}' any more"
    ):
        await ended(task)
    assert await natty.get_leader(name, **BUCKET) is None
    await leads_at_once(natty, name)
    assert len(work.terms) == 1


async def test_closing_waits_for_work_in_a_thread_that_looks_whether_it_is_told_to_stop(natty, client, name):
    begun, left = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def work(term):
        loop.call_soon_threadsafe(begun.set)
        try:
            while True:
                term.check()
                time.sleep(0.01)
        finally:
            left.append(client.connection.state)

    task = asyncio.create_task(client.election(name, lease=LONG, max_stall=LONG, **BUCKET).run(work))
    await ended(begun.wait())
    await ended(client.close())
    assert left == ["connected"]
    with pytest.raises(ConnectionClosedError):
        await ended(task)
    await leads_at_once(natty, name)


async def test_closing_ends_a_candidacy_that_waits(natty, client, name):
    terms, seen = [], []
    leader = asyncio.create_task(natty.election(name, lease=LONG, max_stall=LONG, **BUCKET).run(forever(terms)))
    await until(lambda: terms)
    election = client.election(name, lease=LONG, max_stall=LONG, on_new_leader=seen.append, **BUCKET)
    task = asyncio.create_task(election.run(forever([])))
    await until(lambda: seen)
    await ended(client.close())
    with pytest.raises(ConnectionClosedError, match="is not a candidate"):
        await ended(task)
    with pytest.raises(ConnectionClosedError):
        await election.run(forever([]))
    assert terms[0].remaining() > 0
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


async def test_closing_cancels_a_block_that_leads(natty, client, name):
    inside = asyncio.Event()

    async def lead():
        async with client.leader(name, lease=LONG, max_stall=LONG, **BUCKET):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(lead())
    await ended(inside.wait())
    await ended(client.close())
    with pytest.raises(LeadershipLostError, match="any more: closed"):
        await ended(task)
    await leads_at_once(natty, name)


@pytest.mark.parametrize("form", ["work", "block"])
async def test_a_leader_that_closes_its_own_client_is_cancelled_and_the_lease_is_released(natty, client, name, form):
    steps = []

    async def close(term):
        await client.close()
        steps.append(client.connection.state)
        await asyncio.Event().wait()

    async def lead():
        async with client.leader(name, lease=LONG, max_stall=LONG, **BUCKET) as term:
            await close(term)

    run = client.election(name, lease=LONG, max_stall=LONG, **BUCKET).run(close) if form == "work" else lead()
    with pytest.raises(ConnectionClosedError if form == "work" else LeadershipLostError):
        await ended(run)
    assert steps == ["connected"]
    await ended(client.close())
    assert client.connection.state == "closed"
    await until(lambda: not client.connection.lifetime.closing)
    await leads_at_once(natty, name)


async def test_work_that_ignores_its_cancellation_keeps_the_lease_and_not_the_client(
    natty, client, name, monkeypatch, caplog
):
    monkeypatch.setattr("natty.consuming.closing.SPARE", 0.1)
    monkeypatch.setattr("natty.elections.candidacy.LEAVE_WITHIN", 0.1)
    work = Work(stubborn=True)
    election = client.election(name, lease=1.0, **BUCKET)
    task = asyncio.create_task(election.run(work))
    await until(lambda: work.terms)
    await ended(client.close())
    assert isinstance(client.connection, Connection)
    assert client.connection.state == "closed"
    assert "closing although 1 running parts of the client have not ended" in caplog.text
    assert work.ended_at == []
    work.let_go.set()
    with pytest.raises(ConnectionClosedError):
        await ended(task)
