"""Elections among strangers: what they publish where the server republishes, and damaged records in the bucket."""

import asyncio
import logging

import msgspec
import pytest
from electing import LONG, Work, forever, renewals, vacated
from patient import PATIENCE, PATIENT, until

from capture.node import campaign
from natty import Election, Natty
from natty.elections import leadership, trail
from natty.elections.driver import Driver
from natty.elections.record import Lease
from natty.testing import NatsServer, ServerOptions
from natty.wire.message import encode_headers

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "hostile_leaders"}
USERS = """authorization { users: [
  {user: node, password: x},
  {user: blind, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.>"]}}},
  {user: deaf, password: x, permissions: {subscribe: {deny: ["el.obs.>"]}}},
  {user: guest, password: x, permissions: {publish: {deny: ["$JS.API.STREAM.CREATE.>"]}}},
  {user: barred, password: x, permissions: {publish: {deny: ["$KV.>"]}}},
  {user: stranger, password: x, permissions: {publish: {allow: ["orders.>", "el.obs.>"]}, subscribe: "_INBOX.>"}}
] }"""
DAMAGED = {
    "not UTF-8": b'{"id":"\xff"}',
    "nested": b"[" * 100_000,
    "text": b"not JSON",
    "a huge term": b'{"id":"x","inc":"x","term":9000000000000000000,"state":"held","L":2,"nonce":"x"}',
}


@pytest.fixture(scope="module")
def shared_server(natty_tls, nats_server_binary, tmp_path_factory):
    folder = tmp_path_factory.mktemp("strangers")
    options = ServerOptions(authorization=USERS)
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


def user(server, name):
    return Natty(**server.connect_options() | {"user": name, "password": "x"}, **PATIENT)


@pytest.fixture
async def node(shared_server):
    async with user(shared_server, "node") as natty:
        yield natty


@pytest.fixture
async def stranger(shared_server):
    async with user(shared_server, "stranger") as natty:
        yield natty


@pytest.fixture
async def name(node, natty_name):
    return await vacated(node, natty_name("job"), **BUCKET)


class Forger:
    """Publishes what the server would republish if somebody had stored it, until the block ends."""

    def __init__(self, stranger, name):
        self._connection = stranger.connection
        self._subject = f"el.obs.{BUCKET['bucket']}.{name}"
        self.sent = 0

    async def __aenter__(self):
        self._task = asyncio.create_task(self._forge())
        await until(lambda: self.sent > 0)
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _forge(self):
        held = Lease(id="stranger", inc="stranger", term=2**51, state="held", L=1e12, nonce="s", addr="a")
        records = [held, msgspec.structs.replace(held, state="released"), None]
        while True:
            for record in records:
                headers = encode_headers({"Nats-Sequence": str(9_999_999_999_999_999 + self.sent)})
                data = b"\xff" if record is None else msgspec.json.encode(record)
                self._connection.send(self._subject, data, headers=headers)
            self._connection.send(self._subject, b"without headers")
            self._connection.send(self._subject.encode() + b".\xff", b"on a subject that is not text")
            await self._connection.flush(PATIENCE)
            self.sent += 1
            await asyncio.sleep(0.002)


async def test_who_may_publish_where_the_server_republishes_deposes_nobody_and_keeps_nobody_out(
    shared_server, node, stranger, name, running
):
    first, second = Work(), Work()
    leading = running(node.election(name, lease=1.0, node_name="first", **BUCKET).run(first))
    await until(lambda: first.in_office)
    async with Forger(stranger, name) as forger, user(shared_server, "node") as other:
        waiting = running(other.election(name, lease=1.0, node_name="second", **BUCKET).run(second))
        seen = []
        watching = running(watched(other, name, seen))
        await until(lambda: seen)
        before = first.terms[-1].token
        sent = forger.sent
        await renewals(first.terms[-1], count=6)
        await until(lambda: forger.sent > sent + 20)
        if first.terms[-1].token == before:  # a stall of a second would have cost the office, too
            assert (first.in_office, second.terms) == (True, [])
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        await until(lambda: second.in_office)
        await until(lambda: seen[-1] == "second")
        assert "stranger" not in seen
        waiting.cancel()
        watching.cancel()
        await asyncio.gather(waiting, watching, return_exceptions=True)


async def watched(natty, name, seen):
    async for now in natty.observe(name, **BUCKET):
        seen.append(now.node)


async def test_a_dead_leader_is_replaced_while_a_stranger_says_that_it_renews(shared_server, node, stranger, name):
    """Nobody released the lease: the candidate must wait for its end, and not for longer."""
    held = Lease(id="dead", inc="dead", term=1, state="held", L=0.5, nonce="dead-1")
    await node.bucket(BUCKET["bucket"]).put(name, msgspec.json.encode(held))
    async with Forger(stranger, name):
        async with asyncio.timeout(PATIENCE):
            async with node.leader(name, lease=LONG, **BUCKET) as term:
                assert term.token > 0


@pytest.mark.parametrize("kind", DAMAGED)
async def test_a_damaged_lease_counts_as_deleted_and_is_overwritten(node, name, kind, caplog):
    caplog.set_level(logging.WARNING, "natty.leader")
    await node.bucket(BUCKET["bucket"]).put(name, DAMAGED[kind])
    assert await node.get_leader(name, **BUCKET) is None
    assert await node.step_down(name, **BUCKET) == ""
    async with asyncio.timeout(PATIENCE):
        async with node.leader(name, lease=0.5, node_name="n", **BUCKET) as term:
            assert await node.get_leader(name, **BUCKET) == "n"
            assert term.number < 2**53
    told = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "bad_record"]
    assert len(told) == 1
    assert f"$KV.hostile_leaders.{name} can't be read" in told[0]


async def test_a_leader_whose_lease_is_overwritten_with_what_cannot_be_read_loses_it_and_gets_it_back(
    node, name, running
):
    work = Work()
    running(node.election(name, lease=0.5, node_name="n", **BUCKET).run(work))
    await until(lambda: work.in_office)
    token = work.terms[0].token
    await node.bucket(BUCKET["bucket"]).put(name, DAMAGED["not UTF-8"])
    await until(lambda: work.begun_under(token) is not None)


@pytest.mark.parametrize("token", ["", "x", "-1", "\u0663", "9" * 19, "9" * 5000])
async def test_a_commit_under_a_token_that_no_term_has_is_taken_over_like_any_other(node, name, token):
    """Who may write `<key>.>` can replace a commit: that must not keep every later leader from committing."""
    subject = f"$KV.{BUCKET['bucket']}.{name}.commit.position"
    async with node.leader(name, lease=LONG, **BUCKET) as term:
        await node.publish(subject, b"forged", headers={"Natty-Token": token})
        assert await term.read("position") == b"forged"
        await term.commit("position", b"ours")
        assert await term.read("position") == b"ours"


async def test_a_lease_for_ever_is_forgotten_when_somebody_deletes_it(node, name, running):
    bucket, terms = node.bucket(BUCKET["bucket"]), []
    for_ever = Lease(id="x", inc="x", term=1, state="held", L=1e12, nonce="x-1")
    revision = await bucket.put(name, msgspec.json.encode(for_ever))
    election = node.election(name, lease=0.5, **BUCKET)
    running(election.run(forever(terms)))
    await until(lambda: election.driver is not None and election.driver.candidate._known == revision)
    await bucket.delete(name)
    await until(lambda: terms)


async def test_damaged_epochs_and_notes_are_left_out_of_what_people_look_at(node, name, caplog):
    bucket = node.bucket(BUCKET["bucket"])
    election = node.election(name, lease=LONG, node_name="n", **BUCKET)
    async with election as term:
        async with asyncio.timeout(PATIENCE):
            while not await trail(node.jetstream, election.subjects):
                await asyncio.sleep(0.02)
        for key in (f"{name}.terms.7", f"{name}.terms.x", f"{name}.terms.8"):
            await bucket.put(key, b"\xff")
        await node.publish(f"$KV.{bucket.name}.{name}.epoch", b"\xff")
        assert [note.token for note in await trail(node.jetstream, election.subjects)] == [term.token]
        now = await leadership(node.jetstream, election.subjects)
        assert (now.node, now.token) == ("n", 0)
    assert len([one for one in caplog.records if getattr(one, "action", "") == "bad_record"]) == 2


async def test_a_candidate_that_hears_of_no_write_is_elected_where_nothing_is(shared_server, natty_name):
    async with asyncio.timeout(PATIENCE), user(shared_server, "deaf") as deaf:
        term = await deaf.election("job", bucket=natty_name("deaf"), lease=0.5).run(token_of)
        assert term > 0


async def token_of(term):
    return term.token


async def test_a_candidate_that_may_not_write_says_so_once(shared_server, name, running, monkeypatch, caplog):
    monkeypatch.setattr("natty.elections.machine.FORBIDDEN_PAUSE", 0.05)
    async with user(shared_server, "barred") as barred:
        election = barred.election(name, lease=0.3, **BUCKET)
        running(election.run(forever([])))
        await until(lambda: election.driver is not None and election.driver.failures >= 5)
    records = [one for one in caplog.records if one.levelno >= logging.WARNING and name in one.getMessage()]
    told = [one.getMessage() for one in records]
    subject = f"$KV.{BUCKET['bucket']}.{name}"
    assert len(told) == 2
    assert told[0].startswith("the server refused")
    assert subject in told[0]
    assert told[1].startswith(f"this node may not write {subject}: ")
    assert records[1].action == "may_not_write"


async def test_a_bucket_that_was_deleted_and_cannot_be_made_again_is_told_of_once(
    shared_server, node, natty_name, running, caplog
):
    bucket = natty_name("guests")
    name = await vacated(node, "job", bucket=bucket)
    async with user(shared_server, "guest") as guest:
        election, terms = guest.election(name, bucket=bucket, lease=0.3), []
        running(election.run(forever(terms)))
        await until(lambda: terms)
        await node.delete_bucket(bucket)
        begun = election.driver.candidate._reads
        await until(lambda: election.driver.candidate._reads > begun + 3)
        told = [one.getMessage() for one in caplog.records if getattr(one, "action", "") == "not_made_again"]
        assert len(told) == 1
        assert told[0].startswith(f"bucket {bucket} was deleted and could not be created again: ")
        await vacated(node, name, bucket=bucket)
        await until(lambda: len(terms) > 1)


async def test_a_node_that_may_not_even_look_is_told_of_once(shared_server, name, running, monkeypatch, caplog):
    monkeypatch.setattr(campaign, "RETRY_DUTY", 0.01)
    async with user(shared_server, "blind") as blind:
        election, tries, run = blind.election(name, **BUCKET), [], Election.run

        async def counting(self, work):
            tries.append(work)
            return await run(self, work)

        monkeypatch.setattr(Election, "run", counting)
        running(campaign.campaign(election, forever([])))
        await until(lambda: len(tries) > 3)
    told = [one for one in caplog.records if getattr(one, "action", "") == "campaign_failed"]
    assert len(told) == 1


async def test_a_fault_of_our_own_in_a_request_is_logged_and_the_election_goes_on(node, name, monkeypatch, caplog):
    """Whatever is raised in the renewer's thread: nothing dies unseen."""
    failures, look = [], Driver._look

    async def fails_at_first(self, timeout):
        if len(failures) < 2:
            failures.append(timeout)
            raise KeyError("unforeseen")
        return await look(self, timeout)

    monkeypatch.setattr(Driver, "_look", fails_at_first)
    async with asyncio.timeout(PATIENCE):
        async with node.leader(name, lease=0.5, **BUCKET):
            pass
    told = [one for one in caplog.records if getattr(one, "action", "") == "election_failed"]
    assert len(told) == len(failures) == 2
    assert all(one.exc_info for one in told)
