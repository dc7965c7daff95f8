"""A subscription that the server refuses for a while works again when it is permitted, without a new session."""

import asyncio
import json
import logging
import os
import signal

import pytest
from patient import NEVER, PATIENT, until

from natty import Natty, RequestTimeoutError
from natty.metrics import telemetry
from natty.testing import NatsServer, ServerOptions
from natty.wire import refused_subscriptions
from natty.wire.connection import TOKENS, Answers

LOGIN = {"user": "u", "password": "p"}


class Guarded:
    """A server whose only user may not subscribe to some subjects."""

    def __init__(self, server):
        self.server = server

    @staticmethod
    def users(*denied):
        permissions = f"{{subscribe: {{deny: {json.dumps(denied)}}}}}"
        return f"authorization {{ users: [ {{user: u, password: p, permissions: {permissions}}} ] }}"

    def deny(self, *subjects):
        """Reload the server with these permissions."""
        file = self.server.folder / "server.conf"
        lines = file.read_text().splitlines()
        lines = [self.users(*subjects) if line.startswith("authorization {") else line for line in lines]
        file.write_text("\n".join(lines))
        os.kill(self.server.pid, signal.SIGHUP)


@pytest.fixture
def guarded(natty_tls, nats_server_binary, tmp_path):
    options = ServerOptions(authorization=Guarded.users("nothing"))
    with NatsServer(options, folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        yield Guarded(server)


@pytest.fixture
async def client(guarded, monkeypatch):
    monkeypatch.setattr(refused_subscriptions, "AGAIN_AFTER", 0.1)
    monkeypatch.setattr(refused_subscriptions, "LONGEST_PAUSE", 0.2)
    async with Natty(**PATIENT | guarded.server.connect_options() | LOGIN) as natty:
        await natty.ensure_stream("S", subjects=["s.>"])
        yield natty


async def test_answers_arrive_again_when_the_inbox_is_permitted_again(guarded, client, caplog):
    caplog.set_level(logging.INFO)
    told = []
    client.connection.listeners.append(told.append)
    assert telemetry.not_ready(client) == []
    guarded.deny("_INBOX.>")
    await until(lambda: telemetry.not_ready(client))
    assert telemetry.not_ready(client) == ["no answers arrive: the server refuses the subscription to our inbox"]
    assert "the server refused: Permissions Violation for Subscription" in caplog.text
    with pytest.raises(RequestTimeoutError, match="the server refuses the subscription to our inbox"):
        await client.publish("s.a", b"stored all the same", timeout=0.5)
    guarded.deny("nothing")
    await until(lambda: telemetry.not_ready(client) == [])
    assert (await client.publish("s.a", b"")).stream == "S"
    assert (told, client.connection._refused.ids) == ([], set())
    assert "the server accepts Subscription" in caplog.text


async def test_subscriptions_and_responders_work_again_when_they_are_permitted_again(guarded, client):
    got = []
    client.connection.subscribe("news.>", lambda batch: got.extend(batch.payloads))
    client.connection.subscribe('odd"\\.>', lambda batch: got.extend(batch.payloads))
    closed = client.connection.subscribe("news.closed", print)

    async def double(message):
        return 2 * message.data

    async with client.respond("svc", double, queue="q"):
        guarded.deny("news.>", "svc", "odd>", 'odd"\\\\.>')
        await until(lambda: len(client.connection._refused.ids) >= 3)
        assert telemetry.not_ready(client) == []
        closed.close()
        guarded.deny("nothing")
        await until(lambda: not client.connection._refused.ids)
        assert (await client.request("svc", b"ab", timeout=NEVER)).data == b"abab"
        client.connection.send("news.a", b"1")
        client.connection.send('odd"\\.a', b"2")
        await client.connection.flush()
        assert got == [b"1", b"2"]


async def test_a_leader_is_elected_when_the_inboxes_are_permitted_again(guarded, client):
    guarded.deny("_INBOX.>")
    await until(lambda: telemetry.not_ready(client))
    elected = asyncio.Event()

    async def lead(term):
        elected.set()

    election = asyncio.create_task(client.election("job").run(lead))
    await until(lambda: len(client.connection._requests))  # its first request gets no answer
    guarded.deny("nothing")
    await election
    assert elected.is_set()


async def test_a_request_shows_those_who_get_it_no_other_reply_subject(client):
    replies = []

    async def handle(message):
        replies.append(message.reply)
        return b""

    async with client.respond("svc", handle):
        for _ in range(3):
            await client.request("svc")
    inboxes, tokens = zip(*(reply.rsplit(".", 1) for reply in replies), strict=True)
    assert len(set(inboxes)) == 1
    assert len(set(tokens)) == 3
    assert all(len(bytes.fromhex(token)) == 12 for token in tokens)


async def test_no_two_requests_get_the_same_reply_subject():
    answers = Answers(b"_INBOX.x")
    replies = {answers.expect(b"svc")[0] for _ in range(3 * TOKENS + 1)}
    assert len(replies) == len(answers) == 3 * TOKENS + 1
