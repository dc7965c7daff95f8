"""JetStream in another domain, behind a leaf node: everything goes there, nothing to a namesake nearby."""

import asyncio
import socket

import pytest
from patient import PATIENCE, until

from natty import KeyExistsError, Natty, NattyError
from natty.errors import DomainUnreachableError
from natty.kv import PictureComplete
from natty.testing import NatsServer, ServerOptions


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.fixture(scope="module")
def leaf(tmp_path_factory):
    """A server with JetStream of its own, in domain "edge", linked to one in domain "hub"."""
    store, port = tmp_path_factory.mktemp("hub"), free_port()
    hub = ServerOptions(
        jetstream=False,
        name="hub",
        config=f'jetstream {{ store_dir: "{store}", domain: hub }}\nleafnodes {{ listen: "127.0.0.1:{port}" }}\n',
    )
    edge = ServerOptions(
        jetstream=False,
        name="edge",
        config=f'jetstream {{ store_dir: "{tmp_path_factory.mktemp("edge")}", domain: edge }}\n'
        f'leafnodes {{ remotes: [{{ url: "nats-leaf://127.0.0.1:{port}" }}] }}\n',
    )
    with NatsServer(hub), NatsServer(edge) as server:
        yield server


@pytest.fixture
async def near(leaf):
    async with Natty(**leaf.connect_options()) as natty:
        yield natty


@pytest.fixture
async def far(leaf):
    """Connected to the leaf node, at work in the hub."""
    async with Natty(**leaf.connect_options(), domain="hub") as natty:
        await linked(natty)
        yield natty


async def linked(natty):
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await natty.jetstream.request("INFO")
                return
            except NattyError:
                await asyncio.sleep(0.05)


async def test_a_bucket_is_read_and_written_where_it_is(near, far, natty_name):
    name = natty_name("kv")
    there, here = await far.create_bucket(name, ttl=60), await near.create_bucket(name, ttl=60)
    revision = await there.put("k", b"far")
    await there.update("k", b"further", revision=revision)
    with pytest.raises(KeyExistsError):
        await there.create("k", b"twice")
    await there.refresh("k")
    await there.modify("k", lambda old: old + b" away")
    assert (await there.get("k")).value == b"further away"
    assert await there.keys() == ["k"]
    assert await here.keys() == []
    await there.delete("k")
    assert await there.keys() == []


async def test_a_watch_sees_what_changes_there(far, natty_name):
    bucket = await far.create_bucket(natty_name("kv"))
    seen = []

    async def watch():
        async for event in bucket.watch():
            seen.append(event)

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch())
        await until(lambda: any(isinstance(one, PictureComplete) for one in seen))
        await bucket.put("k", b"1")
        await until(lambda: len(seen) > 1)
        watching.cancel()
    assert seen[-1].value == b"1"


async def test_messages_are_published_and_consumed_there(far, natty_name):
    stream = natty_name("far")
    await far.ensure_stream(stream, subjects=[f"{stream}.>"])
    for number in range(10):
        await far.publish(f"{stream}.a", b"%d" % number)
    await far.ensure_consumer(stream, "durable")
    got = []
    async with asyncio.timeout(PATIENCE):
        pull = far.pull(stream, "durable")
        async for batch in pull:
            got += batch.payloads
            pull.ack(batch.replies)
            if len(got) == 10:
                break
    assert got == [b"%d" % number for number in range(10)]


async def test_an_election_is_held_and_its_commits_are_fenced_there(far, natty_name):
    name, committed = natty_name("office"), asyncio.Event()

    async def work(term):
        assert await term.read("head") is None
        await term.commit("head", b"first")
        committed.set()
        await asyncio.Event().wait()

    election = far.election(name, lease=2.0, bucket=natty_name("elections"))
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        leading = tasks.create_task(election.run(work))
        await committed.wait()
        assert (await election.last_commit("head")).data == b"first"
        leading.cancel()


async def test_a_domain_that_is_not_linked_is_told_from_a_server_without_jetstream(leaf):
    async with Natty(**leaf.connect_options(), domain="nowhere") as natty:
        with pytest.raises(DomainUnreachableError, match=r"no server answers on \$JS\.nowhere\.API: check its name"):
            await natty.jetstream.request("INFO")
