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
from electing import LONG, Work, outlasting, renewals, vacated
from patient import PATIENCE, PATIENT, until

from natty import KeyNotFoundError, LeadershipLostError, Natty, StaleTokenError, UnsupportedError
from natty.elections import clock

pytestmark = pytest.mark.usefixtures("released_without_hurry")

ROOT = Path(__file__).parents[4]
SHORT = 1.0  # seconds: the lease of those whose end others wait for; a stall may end it, too
BUCKET = "test_leaders"


@pytest.fixture
async def nodes(nats_server, natty_proxy, natty_name):
    """Make elections of one name, each with a connection of its own; what runs is cancelled after the test."""
    clients, tasks, name = [], [], natty_name("job")

    async def node(work=None, server=nats_server, **more):
        options = server.options if server is natty_proxy else server.connect_options()
        client = await Natty.connect(**options, **PATIENT)
        clients.append(client)
        if len(clients) == 1:
            await vacated(client, name, BUCKET)
        settings = {"lease": LONG, "node_name": f"node-{len(clients)}", "bucket": BUCKET} | more
        election = client.election(name, **settings)
        if work is not None:
            tasks.append(asyncio.create_task(election.run(work)))
        return election, tasks[-1] if work is not None else None

    yield node
    natty_proxy.release()
    await natty_proxy.restore()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()


async def node_leading(nodes, work, *server, **more):
    election, task = await nodes(work, *server, **more)
    await until(lambda: work.terms)
    return election, task


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_one_of_two_candidates_leads_and_hands_over_when_done(nodes, request, where):
    server, first, second = request.getfixturevalue(where), Work(), Work()
    await node_leading(nodes, first, server, lease=SHORT)
    await nodes(second, server, lease=SHORT)
    await until(lambda: outlasting(first, SHORT) or outlasting(second, SHORT))
    leader, other = (first, second) if outlasting(first, SHORT) else (second, first)
    token = outlasting(leader, SHORT)[-1]
    leader.end.set()
    await until(lambda: other.terms and other.terms[-1].token > token)


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_a_lease_that_was_left_is_not_waited_for(nodes, request, where):
    server, first, second, seen = request.getfixturevalue(where), Work(), Work(), []
    one, done = await node_leading(nodes, first, server)
    await nodes(second, server, on_new_leader=seen.append)
    await until(lambda: seen)
    assert second.terms == []
    token = first.terms[0].token
    assert repr(one.term).startswith(f"Term('{one.options.name}', node-1, token={token}, 5")
    first.end.set()
    assert await done == token
    await until(lambda: second.terms)
    assert second.terms[0].token > token


async def test_one_replica_in_a_cluster_is_a_warning(nats_cluster, natty_name, caplog):
    bucket = natty_name("leaders")
    async with Natty(**nats_cluster.connect_options(), **PATIENT) as client:
        await client.election("any", bucket=bucket, replicas=1).prepare()
        await client.delete_bucket(bucket)
    text = f"the elections of bucket {bucket} have 1 replica: while its server is down no leader is elected, and if"
    assert [one.levelname for one in caplog.records if one.getMessage().startswith(text)] == ["WARNING"]


async def test_tokens_rise_from_term_to_term(nodes):
    tokens = []
    for _ in range(4):
        work = Work()
        work.end.set()
        _, task = await nodes(work)
        tokens.append(await task)
    assert tokens == sorted(set(tokens))


async def test_an_error_of_the_work_releases_the_lease_and_is_raised(nodes):
    async def fails(term):
        raise ValueError("broken")

    _, task = await nodes(fails)
    with pytest.raises(ValueError, match="broken"):
        await task
    await node_leading(nodes, Work())


async def test_cancelling_joins_the_work_and_releases_the_lease(nodes, renewed_often):
    work, second, seen = Work(stubborn=True), Work(), []
    _, task = await node_leading(nodes, work)
    await nodes(second, on_new_leader=seen.append)
    await until(lambda: seen)
    task.cancel()
    await until(lambda: work.left)
    await renewals(work.terms[0])  # it is renewed until the work has ended
    assert second.terms == []
    work.let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: second.terms)
    assert second.begun_at[0] > work.ended_at[0]


async def test_work_is_cancelled_before_the_deadline_when_no_server_answers(nodes, natty_proxy, told_early):
    work = Work()
    await nodes(work, natty_proxy, lease=60.0)
    await until(lambda: work.in_office)
    natty_proxy.half_open()
    await until(lambda: not work.in_office)
    assert work.left[-1] > 0


async def test_work_is_cancelled_before_the_deadline_when_the_link_comes_back_half_way(nodes, natty_proxy, told_early):
    """A request that waits for the connection, then for the answer, may take no longer than either alone."""
    work = Work()
    await nodes(work, natty_proxy, lease=60.0)
    await until(lambda: work.in_office)
    natty_proxy.hold()
    await natty_proxy.cut()
    await natty_proxy.restore()
    await until(lambda: not work.in_office)
    assert work.left[-1] > 0


async def test_silence_deposes_a_leader_whom_no_server_answers(nodes, natty_proxy):
    work, second = Work(), Work()
    await node_leading(nodes, work, natty_proxy, lease=SHORT)
    natty_proxy.half_open()
    await nodes(second)
    await until(lambda: second.terms)
    assert work.terms[-1].remaining() == 0
    assert second.terms[0].token > work.terms[-1].token
    await until(lambda: not work.in_office)


async def test_work_that_swallows_its_cancellation_is_joined_before_another_term(nodes, natty_proxy):
    work = Work(stubborn=True)
    _, task = await node_leading(nodes, work, natty_proxy, lease=SHORT)
    natty_proxy.half_open()
    await until(lambda: work.left)
    await natty_proxy.restore()
    await asyncio.sleep(1.5 * SHORT)  # time enough to be elected again
    assert len(work.terms) == 1
    work.let_go.set()
    await until(lambda: len(work.terms) > 1)
    assert not task.done()


async def test_a_foreign_write_on_the_lease_deposes_the_leader(nodes, natty):
    work, lost = Work(), []
    one, _ = await node_leading(nodes, work, lease=60.0, on_lost=lost.append)
    await natty.bucket(BUCKET).put(one.options.name, b"not a lease")
    await until(lambda: lost)
    assert lost == ["superseded"]
    with pytest.raises(LeadershipLostError, match=r"node-1 does not lead .* any more \(token \d+, superseded"):
        work.terms[0].check()


async def test_after_a_foreign_write_on_the_lease_nobody_leads_for_the_distance_of_a_lease(nodes, natty):
    work = Work()
    one, _ = await node_leading(nodes, work, lease=SHORT)
    before = clock()
    revision = await natty.bucket(BUCKET).put(one.options.name, b"not a lease")
    await until(lambda: work.begun_under(revision))
    assert work.begun_under(revision) - before > SHORT


async def lose_the_ack(proxy, stored):
    """Cut the link when a write is stored whose ack can't come; `stored` is asked whether there is one."""
    proxy.mute()
    async with asyncio.timeout(PATIENCE):
        while not await stored():
            await asyncio.sleep(0.01)
    await proxy.cut()
    await proxy.restore()


async def test_a_renewal_whose_ack_was_lost_is_found_to_be_ours(nodes, natty_proxy, natty, renewed_often):
    work, lost = Work(), []
    one, _ = await node_leading(nodes, work, natty_proxy, on_lost=lost.append)
    known = one.driver.candidate.revision

    async def stored():
        return (await natty.jetstream.read(one.stream, subject=one.subjects.lease)).sequence > known

    await lose_the_ack(natty_proxy, stored)
    await renewals(work.terms[0])
    assert (len(work.terms), work.left, lost) == (1, [], [])


async def test_a_compare_and_set_whose_ack_was_lost_is_adopted_by_its_nonce(natty_proxy, natty, natty_name):
    bucket = await natty.create_bucket(natty_name("cas"))

    async def stored():
        with contextlib.suppress(KeyNotFoundError):
            return await bucket.get("k")

    async with Natty(**natty_proxy.options, **PATIENT) as far:
        losing = asyncio.create_task(lose_the_ack(natty_proxy, stored))
        await asyncio.sleep(0)  # the link is mute from here on
        where = bucket.stream, f"$KV.{bucket.name}.k"
        revision = await far.jetstream.compare_and_set(*where, b"v", expected=0, nonce="n", timeout=PATIENCE)
        await losing
        assert (await bucket.status())["bytes"] > 0
        assert (await bucket.get("k")).revision == revision == 1


async def test_a_commit_is_refused_once_another_term_has_read_it(nodes):
    first, second = Work(), Work()
    _, task = await node_leading(nodes, first)
    await first.terms[0].commit("head", b"1")
    await first.terms[0].commit("head", b"2")
    first.end.set()
    await task
    two, _ = await node_leading(nodes, second)
    assert await second.terms[0].read("head") == b"2"
    old = believing(first.terms[0])  # a node whose clock stood still: only the server can tell
    with pytest.raises(StaleTokenError, match="taken over by another term"):
        await old.commit("head", b"late")
    with pytest.raises(StaleTokenError, match="by a later term"):
        await old.commit("head", b"late again")
    with pytest.raises(StaleTokenError, match="taken over by another term"):
        await old.commit("unread", b"late")
    await second.terms[0].commit("head", b"3")
    assert (await two.last_commit("head")).data == b"3"


async def test_a_commit_in_doubt_can_be_repeated(nodes):
    work = Work()
    one, _ = await node_leading(nodes, work)
    term = work.terms[0]
    await term.commit("head", b"1")
    writing = asyncio.create_task(term.commit("head", b"2"))
    await asyncio.sleep(0)
    writing.cancel()  # nobody knows whether it was stored
    await asyncio.gather(writing, return_exceptions=True)
    await term.commit("head", b"3")
    assert (await one.last_commit("head")).data == b"3"


async def test_a_commit_waits_for_a_server_that_is_silent_for_longer_than_one_question(nodes, natty_proxy, monkeypatch):
    work = Work()
    one, _ = await node_leading(nodes, work, natty_proxy)
    monkeypatch.setattr("natty.elections.term.READ_TIMEOUT", 0.05)
    natty_proxy.hold()
    writing = asyncio.create_task(work.terms[0].commit("head", b"1"))
    await asyncio.wait({writing}, timeout=0.3)
    natty_proxy.release()
    await writing
    assert (await one.last_commit("head")).data == b"1"


async def test_an_empty_commit_is_refused(nodes):
    work = Work()
    await node_leading(nodes, work)
    with pytest.raises(ValueError, match="a commit must not be empty"):
        await work.terms[0].commit("head", b"")
    assert await work.terms[0].read("head") is None


async def test_who_leads_can_be_asked(nodes, natty):
    work = Work()
    one, task = await node_leading(nodes, work)
    name = one.options.name
    assert await natty.get_leader(name, bucket=BUCKET) == "node-1"
    assert await natty.have_leader(name, "node-1", bucket=BUCKET)
    work.end.set()
    await task
    assert await natty.get_leader(name, bucket=BUCKET) is None


async def test_a_server_that_is_too_old_is_refused_by_version(nodes):
    election, _ = await nodes()
    connection = election.jetstream.connection
    connection._session.info = connection.server_info | {"version": "2.14.3"}
    with pytest.raises(UnsupportedError, match=r"leader election needs nats-server 2\.14\.4 or later .* is 2\.14\.3"):
        await election.run(Work())


def test_a_lease_that_is_too_short_is_refused(natty_name):
    with pytest.raises(ValueError, match=r"a lease of 0\.1 s is too short"):
        Natty().election("x", lease=0.1)


SCRIPT = textwrap.dedent("""
    import asyncio, json, sys
    from natty import LeadershipLostError, Natty

    async def main(settings, name, lease):
        terms, committing = [], []

        async def commits():  # whenever told to, under the newest term, whether or not its work was cancelled
            while line := await asyncio.to_thread(sys.stdin.readline):
                term = terms[-1]
                try:
                    await term.commit("head", line.strip().encode())
                    say("committed", term.token)
                except LeadershipLostError as error:
                    say(type(error).__name__, term.token)

        async def work(term):
            terms.append(term)
            say("leads", term.token)
            if not committing:
                committing.append(asyncio.create_task(commits()))
            await asyncio.sleep(3600)

        async with Natty(**settings) as natty:
            await natty.election(name, lease=lease, node_name="child", bucket="test_leaders").run(work)

    def say(*words):
        print(json.dumps(words), flush=True)

    asyncio.run(main(*json.loads(sys.argv[1])))
""")


@contextlib.asynccontextmanager
async def child(server, name):
    """A process that campaigns; yields it, and a function that reads what it says next, of some words only."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT,
        json.dumps([server.connect_options() | PATIENT, name, SHORT]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    async def says(*words):
        while True:
            async with asyncio.timeout(PATIENCE):
                word, token = json.loads(await process.stdout.readline())
            if word in words:
                return word, token

    try:
        yield process, says
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        await process.communicate()


@pytest.mark.parametrize("where", ["nats_server", "nats_cluster"])
async def test_when_the_leaders_process_is_killed_another_takes_over(nodes, request, where):
    server, second, seen = request.getfixturevalue(where), Work(), []
    election, _ = await nodes(None, server)
    async with child(server, election.options.name) as (process, says):
        _, token = await says("leads")
        await nodes(second, server, on_new_leader=seen.append)
        await until(lambda: seen or second.terms)
        process.kill()
        await until(lambda: second.terms)
        assert second.terms[0].token > token


async def test_a_leader_that_was_frozen_past_its_lease_can_not_commit(nodes, nats_server):
    second = Work()
    election, _ = await nodes()
    async with child(nats_server, election.options.name) as (process, says):
        word = ""
        while word != "committed":  # again, if a stall has ended that term
            process.stdin.write(b"first\n")
            word, token = await says("committed", "StaleTokenError", "LeadershipLostError")
        process.send_signal(signal.SIGSTOP)
        process.stdin.write(b"from the grave\n")
        two, _ = await node_leading(nodes, second)
        await second.terms[0].commit("head", b"second")
        process.send_signal(signal.SIGCONT)
        word, said = await says("committed", "StaleTokenError", "LeadershipLostError")
        assert word != "committed"
        assert token <= said < second.terms[0].token
        assert (await two.last_commit("head")).data == b"second"
        assert second.ended_at == []
