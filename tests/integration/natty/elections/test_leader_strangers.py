"""What a stranger, who may not write the elections' bucket, can have a leader, a candidate or a consumer send."""

import asyncio

import msgspec
import pytest
from electing import LONG, Work, renewals, vacated
from patient import PATIENCE, PATIENT, until

from natty import Natty, NattyError
from natty.elections import driver
from natty.elections.driver import Call
from natty.elections.record import Lease
from natty.testing import NatsServer, ServerOptions
from natty.wire.message import encode_headers

pytestmark = pytest.mark.usefixtures("released_without_hurry")

BUCKET = {"bucket": "strange_leaders"}
USERS = """authorization { users: [
  {user: node, password: x},
  {user: stranger, password: x, permissions: {publish: {deny: ["$KV.>", "$JS.API.>", "$JS.ACK.>"]}}}
] }"""
NONE, STEP_DOWN = (msgspec.json.encode(Call(do=do)) for do in ("none", "step_down"))


@pytest.fixture(scope="module")
def guarded_server(natty_tls, nats_server_binary, tmp_path_factory):
    folder, options = tmp_path_factory.mktemp("strangers"), ServerOptions(authorization=USERS)
    with NatsServer(options, folder=folder, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield server


def user(server, name):
    return Natty(**server.connect_options() | {"user": name, "password": "x"}, **PATIENT)


@pytest.fixture
async def node(guarded_server):
    async with user(guarded_server, "node") as natty:
        yield natty


@pytest.fixture
async def stranger(guarded_server):
    async with user(guarded_server, "stranger") as natty:
        yield natty


@pytest.fixture
async def name(node, natty_name):
    return await vacated(node, natty_name("job"), **BUCKET)


async def address_of(node, name):
    """Return where the leader is called: every renewal that is republished tells it."""
    entry = await node.bucket(BUCKET["bucket"]).get(name)
    return msgspec.json.decode(entry.value, type=Lease).addr


@pytest.mark.parametrize("call", [NONE, STEP_DOWN], ids=["none", "step_down"])
@pytest.mark.parametrize("key", ["", ".commit.position"], ids=["lease", "commit"])
async def test_a_leader_answers_only_in_inboxes_and_does_nothing_for_who_wants_the_answer_elsewhere(
    node, stranger, name, key, call
):
    subject = f"$KV.{BUCKET['bucket']}.{name}{key}"
    async with node.leader(name, lease=LONG, **BUCKET) as term:
        await term.commit("position", b"ours")
        before = await node.jetstream.read(f"KV_{BUCKET['bucket']}", subject=subject)
        address = await address_of(node, name)
        stranger.connection.send(address, call, reply=subject.encode())
        answer = await stranger.connection.request(address, NONE)  # it comes after the first
        assert msgspec.json.decode(answer[3]) == {"leading": True}
        after = await node.jetstream.read(f"KV_{BUCKET['bucket']}", subject=subject)
        assert (after.sequence, after.data) == (before.sequence, before.data)
        assert await term.read("position") == b"ours"
        term.check()


@pytest.mark.parametrize("addr", ["", "orders.forged", "_INBOX", "_INBOXES.a"])
async def test_nobody_is_asked_to_step_down_at_a_subject_that_is_no_inbox(node, name, addr):
    got = []
    if addr:
        node.connection.subscribe(addr, lambda batch: got.extend(batch.raw))
    held = Lease(id="stranger", inc="stranger", term=1, state="held", L=LONG, nonce="s", addr=addr)
    await node.bucket(BUCKET["bucket"]).put(name, msgspec.json.encode(held))
    with pytest.raises(NattyError, match=r"stranger can't be asked: its address .* is not below .* _INBOX"):
        await node.step_down(name, **BUCKET)
    await node.connection.flush(PATIENCE)
    assert got == []


async def test_a_candidate_asks_no_holder_at_a_subject_that_is_no_inbox(node, name, running, monkeypatch):
    asked, got, ask = [], [], driver.Driver._ask

    def noting(self, action):
        ask(self, action)
        asked.append(action.addr)

    monkeypatch.setattr(driver.Driver, "_ask", noting)
    node.connection.subscribe("orders.forged", lambda batch: got.extend(batch.raw))
    bucket = node.bucket(BUCKET["bucket"])
    held = Lease(id="s", inc="s", term=1, state="held", L=LONG, nonce="s", prio=9, addr="orders.forged")
    await bucket.put(name, msgspec.json.encode(held))
    running(node.election(name, lease=LONG, **BUCKET).run(Work()))
    async with asyncio.timeout(PATIENCE):
        while not asked:  # a holder is asked when it has renewed
            await bucket.put(name, msgspec.json.encode(held))
            await asyncio.sleep(0.05)
    await bucket.put(name, msgspec.json.encode(msgspec.structs.replace(held, term=2)))
    await node.connection.flush(PATIENCE)
    assert got == []


async def test_a_flood_of_hints_puts_no_renewal_off(node, stranger, name, running, renewed_often):
    """Every turn of the renewer's loop brings some: neither reading them nor setting timers again may end a term."""
    work = Work()
    running(node.election(name, lease=LONG, **BUCKET).run(work))
    await until(lambda: work.in_office)
    record = msgspec.json.encode(Lease(id="a", inc="b", state="held", L=1, nonce="x"))
    subject, number = f"el.obs.{BUCKET['bucket']}.{name}".encode(), 10**13

    async def flood():
        nonlocal number
        while True:
            for _ in range(500):
                number += 1
                headers = encode_headers({"Nats-Sequence": str(number)})
                stranger.connection.send(subject, record, headers=headers)
            await stranger.connection.flush(PATIENCE)

    flooding = running(flood())
    await renewals(work.terms[0], count=6)
    flooding.cancel()
    assert len(work.terms) == 1


async def test_a_consumer_settles_nothing_on_a_subject_that_is_no_ack(node, stranger, natty_name):
    """Who may publish in inboxes can forge a delivery: the answer to it must not be a write of ours."""
    stream, target = natty_name("ORDERS"), natty_name("target")
    await node.ensure_stream(stream, subjects=[f"{stream}.>"])
    await node.ensure_consumer(stream, "d")
    got, answered = [], []
    node.connection.subscribe(target + ".>", lambda batch: answered.extend(batch.raw))

    def handle(message):
        got.append(message.data)

    consumption = node.consume(stream, "d", handle)
    consuming = asyncio.create_task(consumption.run())
    await node.publish(f"{stream}.a", b"one")
    await until(lambda: got == [b"one"])
    inboxes = [
        word for word in (one.subject for one in node.connection._subscriptions.values()) if word[:7] == b"_INBOX."
    ]
    for inbox in inboxes:
        if b"*" not in inbox:
            stranger.connection.send(inbox, b"forged", reply=f"{target}.2.3.4.5.6.7.8.9".encode())
    await stranger.connection.flush(PATIENCE)
    await node.publish(f"{stream}.a", b"two")
    await until(lambda: b"two" in got)
    consumption.stop()
    await consuming
    await node.connection.flush(PATIENCE)
    assert (got, answered) == ([b"one", b"two"], [])
