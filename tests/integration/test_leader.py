import asyncio
import contextlib
import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from deposed import believing

from natty import LeadershipLost, Natty, StaleToken, UnsupportedError
from natty.leader import clock

ROOT = Path(__file__).parents[2]
LEASE = 1.0  # seconds


class Work:
    """Notes its terms; `end` lets it return. `stubborn` seconds: for how long it swallows its cancellation."""

    def __init__(self, *, stubborn=0.0):
        self.terms, self.begun_at, self.ended_at, self.left = [], [], [], []
        self.stubborn = stubborn
        self.end = asyncio.Event()

    async def __call__(self, term):
        self.terms.append(term)
        self.begun_at.append(clock())
        try:
            await self.end.wait()
        finally:
            self.left.append(term.remaining())
            until = clock() + self.stubborn
            while clock() < until:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(until - clock())
            self.ended_at.append(clock())
        return term.token


async def until(condition, within=30.0):
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
async def nodes(nats_server, natty_name):
    """Make elections of one name, each with a connection of its own; what runs is cancelled after the test."""
    clients, tasks, name = [], [], natty_name("job")

    async def node(work=None, server=nats_server, options=None, **more):
        client = await Natty.connect(
            **{"ping_interval": 0.3, "connect_timeout": 0.5} | (options or server.connect_options())
        )
        clients.append(client)
        settings = {"lease": LEASE, "node_name": f"node-{len(clients)}", "bucket": "test_leaders"} | more
        election = client.election(name, **settings)
        if work is not None:
            tasks.append(asyncio.create_task(election.run(work)))
        return election, tasks[-1] if work is not None else None

    yield node
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_one_of_two_candidates_leads_and_hands_over_at_once_when_done(nodes, request, where):
    server, first, second = request.getfixturevalue(where), Work(), Work()
    one, done = await node_leading(nodes, first, server)
    await nodes(second, server)
    await asyncio.sleep(1.5 * LEASE)  # renewed meanwhile
    assert (len(first.terms), len(second.terms)) == (1, 0)
    assert first.terms[0].remaining() > 0
    assert repr(one.term).startswith(f"Term('{one.options.name}', node-1, token={first.terms[0].token}, 0.")
    first.end.set()
    assert await done == first.terms[0].token
    await until(lambda: second.terms)
    assert second.terms[0].token > first.terms[0].token


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_a_lease_that_was_left_is_not_waited_for(nodes, request, where):
    server, first, second = request.getfixturevalue(where), Work(), Work()
    await node_leading(nodes, first, server, lease=30.0)
    seen = []
    await nodes(second, server, lease=30.0, on_new_leader=seen.append)
    await until(lambda: seen)
    deadline = first.terms[0]._tenure.deadline
    first.end.set()
    await until(lambda: second.terms)
    assert second.begun_at[0] < deadline - 10


async def node_leading(nodes, work, server, **more):
    election, task = await nodes(work, server, **more)
    await until(lambda: work.terms)
    return election, task


async def test_tokens_rise_from_term_to_term(nodes, nats_server):
    tokens = []
    for _ in range(4):
        work = Work()
        work.end.set()
        _, task = await nodes(work)
        tokens.append(await task)
    assert tokens == sorted(set(tokens))


async def test_an_error_of_the_work_releases_the_lease_and_is_raised(nodes, nats_server):
    async def fails(term):
        raise ValueError("broken")

    _, task = await nodes(fails, lease=60.0)
    with pytest.raises(ValueError, match="broken"):
        await task
    await node_leading(nodes, Work(), nats_server, lease=60.0)  # long before that lease would have ended


async def test_cancelling_joins_the_work_and_releases_the_lease(nodes, nats_server):
    work = Work(stubborn=1.3 * LEASE)  # longer than a lease: it is renewed until the work has ended
    _, task = await node_leading(nodes, work, nats_server)
    second = Work()
    await nodes(second)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: second.terms)
    assert second.begun_at[0] > work.ended_at[0]


async def test_work_is_cancelled_before_the_deadline_when_no_server_answers(nodes, natty_proxy, nats_server):
    work = Work()
    await node_leading(nodes, work, nats_server, options=natty_proxy.options)
    natty_proxy.half_open()
    await until(lambda: work.left)
    assert work.left[0] > 0
    second = Work()
    await nodes(second)
    await until(lambda: second.terms)
    assert second.terms[0].token > work.terms[0].token


async def test_work_is_cancelled_before_the_deadline_when_the_link_comes_back_half_way(nodes, natty_proxy, nats_server):
    """A request that waits for the connection, then for the answer, may take no longer than either alone."""
    work = Work()
    await node_leading(nodes, work, nats_server, options=natty_proxy.options | {"ping_interval": 30})
    await natty_proxy.cut()
    natty_proxy.hold()
    await natty_proxy.restore()
    await until(lambda: work.left)
    assert work.left[0] > 0
    natty_proxy.release()


async def test_work_that_swallows_its_cancellation_is_joined_before_another_term(nodes, natty_proxy, nats_server):
    work = Work(stubborn=2 * LEASE)
    _, task = await node_leading(nodes, work, nats_server, options=natty_proxy.options)
    natty_proxy.half_open()
    await until(lambda: work.left)
    await natty_proxy.restore()
    await until(lambda: len(work.terms) == 2)
    assert work.ended_at
    assert not task.done()


async def test_a_foreign_write_on_the_lease_deposes_the_leader(nodes, nats_server, natty):
    work = Work()
    one, _ = await node_leading(nodes, work, nats_server)
    started = clock()
    await natty.bucket("test_leaders").put(one.options.name, b"not a lease")
    await until(lambda: work.ended_at)
    with pytest.raises(LeadershipLost, match=r"node-1 does not lead .* any more \(token"):
        work.terms[0].check()
    await until(lambda: len(work.terms) == 2)  # after the distance of one lease
    assert clock() - started > LEASE


async def lose_the_ack(proxy, natty, subject):
    """Cut the link when the next write of `subject` has reached the server and its ack is still on the way."""
    landed = asyncio.Event()
    subscription = natty.connection.subscribe(subject, lambda raw: landed.set())
    await natty.connection.flush()
    proxy.delay(0.2)
    async with asyncio.timeout(30):
        await landed.wait()
    await proxy.cut()
    proxy.delay(0)
    await proxy.restore()
    subscription.close()


async def test_a_renewal_whose_ack_was_lost_is_found_to_be_ours(nodes, natty_proxy, natty, nats_server):
    work, options = Work(), natty_proxy.options | {"ping_interval": 30}
    one, _ = await node_leading(nodes, work, nats_server, options=options, lease=2.0)
    await lose_the_ack(natty_proxy, natty, one.subjects.lease)
    await asyncio.sleep(2.5)
    assert len(work.terms) == 1
    assert work.ended_at == []


async def test_a_compare_and_set_whose_ack_was_lost_is_adopted_by_its_nonce(natty_proxy, natty, natty_name):
    bucket = await natty.create_bucket(natty_name("cas"))
    async with Natty(**natty_proxy.options, ping_interval=30) as far:
        subject = f"$KV.{bucket.name}.k"
        losing = asyncio.create_task(lose_the_ack(natty_proxy, natty, subject))
        await asyncio.sleep(0.1)
        revision = await far.jetstream.compare_and_set(bucket.stream, subject, b"v", expected=0, nonce="n", timeout=3)
        await losing
        assert (await bucket.status())["bytes"] > 0
        assert (await bucket.get("k")).revision == revision == 1


async def test_a_commit_is_refused_once_another_term_has_read_it(nodes, nats_server):
    first, second = Work(), Work()
    _, task = await node_leading(nodes, first, nats_server)
    await first.terms[0].commit("head", b"1")
    await first.terms[0].commit("head", b"2")
    first.end.set()
    await task
    two, _ = await node_leading(nodes, second, nats_server)
    assert await second.terms[0].read("head") == b"2"
    old = believing(first.terms[0])  # a node whose clock stood still: only the server can tell
    with pytest.raises(StaleToken, match="taken over by another term"):
        await old.commit("head", b"late")
    with pytest.raises(StaleToken, match="by a later term"):
        await old.commit("head", b"late again")
    with pytest.raises(StaleToken, match="taken over by another term"):
        await old.commit("unread", b"late")
    await second.terms[0].commit("head", b"3")
    assert (await two.last_commit("head")).data == b"3"


async def test_a_commit_in_doubt_can_be_repeated(nodes, natty_proxy, nats_server):
    work = Work()
    one, _ = await node_leading(nodes, work, nats_server, options=natty_proxy.options, lease=4.0)
    term = work.terms[0]
    await term.commit("head", b"1")
    writing = asyncio.create_task(term.commit("head", b"2"))
    await asyncio.sleep(0)
    writing.cancel()  # nobody knows whether it was stored
    await asyncio.gather(writing, return_exceptions=True)
    await term.commit("head", b"3")
    assert (await one.last_commit("head")).data == b"3"


async def test_an_empty_commit_is_refused(nodes, nats_server):
    work = Work()
    await node_leading(nodes, work, nats_server)
    with pytest.raises(ValueError, match="empty commit"):
        await work.terms[0].commit("head", b"")
    assert await work.terms[0].read("head") is None


async def test_who_leads_can_be_asked(nodes, nats_server, natty):
    work = Work()
    one, task = await node_leading(nodes, work, nats_server)
    name, bucket = one.options.name, {"bucket": "test_leaders"}
    assert await natty.get_leader(name, **bucket) == "node-1"
    assert await natty.have_leader(name, "node-1", **bucket)
    work.end.set()
    await task
    assert await natty.get_leader(name, **bucket) is None


async def test_a_server_that_is_too_old_is_refused_by_version(nodes):
    election, _ = await nodes()
    connection = election.jetstream.connection
    connection._link.info = connection.server_info | {"version": "2.14.3"}
    with pytest.raises(UnsupportedError, match=r"leader election needs nats-server 2\.14\.4 or later .* is 2\.14\.3"):
        await election.run(Work())


def test_a_lease_that_is_too_short_is_refused(natty_name):
    with pytest.raises(ValueError, match=r"a lease of 0\.1 s is too short"):
        Natty().election("x", lease=0.1)


SCRIPT = textwrap.dedent("""
    import asyncio, json, sys, time
    from natty import LeadershipLost, Natty

    async def main(settings, name, lease):
        first = None

        async def commits(term):  # whenever told to, whether or not its work was cancelled
            while line := await asyncio.to_thread(sys.stdin.readline):
                try:
                    await term.commit("head", line.strip().encode())
                    say("committed", term.token)
                except LeadershipLost as error:
                    say(type(error).__name__, term.token)

        async def work(term):
            nonlocal first
            first = first or asyncio.create_task(commits(term))
            say("leads", term.token)
            await asyncio.sleep(3600)

        async with Natty(**settings, ping_interval=0.3) as natty:
            await natty.election(name, lease=lease, node_name="child", bucket="test_leaders").run(work)

    def say(*words):
        print(json.dumps(words), flush=True)

    asyncio.run(main(*json.loads(sys.argv[1])))
""")


@contextlib.asynccontextmanager
async def child(server, name, script):
    """A process that campaigns; yields (the process, a function that reads what it says next)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        json.dumps([server.connect_options(), name, LEASE]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    async def says(within=30.0):
        return json.loads(await asyncio.wait_for(process.stdout.readline(), within))

    try:
        yield process, says
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        await process.communicate()


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_when_the_leaders_process_is_killed_another_takes_over(nodes, request, where):
    server, second = request.getfixturevalue(where), Work()
    election, _ = await nodes(None, server)
    async with child(server, election.options.name, SCRIPT) as (process, says):
        word, token = await says()
        assert word == "leads"
        await nodes(second, server)
        await asyncio.sleep(0.3)
        process.kill()
        await until(lambda: second.terms)
        assert second.terms[0].token > token


async def test_a_leader_that_was_frozen_past_its_lease_can_not_commit(nodes, nats_server):
    second = Work()
    election, _ = await nodes()
    async with child(nats_server, election.options.name, SCRIPT) as (process, says):
        _, token = await says()
        two, _ = await nodes(second)
        process.stdin.write(b"first\n")
        assert (await says())[0] == "committed"
        process.send_signal(signal.SIGSTOP)
        process.stdin.write(b"from the grave\n")
        await until(lambda: second.terms)
        await second.terms[0].commit("head", b"second")
        process.send_signal(signal.SIGCONT)
        word, said = await says()
        assert word in ("StaleToken", "LeadershipLost")
        assert said == token < second.terms[0].token
        assert (await two.last_commit("head")).data == b"second"
        assert second.ended_at == []
