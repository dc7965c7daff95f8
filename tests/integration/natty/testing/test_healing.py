"""A pull lives through everything: nothing is lost, and the pause is measured and printed (`pytest -s`)."""

import asyncio
import contextlib
import os
import signal
import time
from itertools import pairwise

import pytest
from accounts import Operator
from patient import PATIENCE, PATIENT, reconfigure, until

from natty import Natty, NattyError, Pull, PullOptions
from natty.pulling import pull as pulling
from natty.testing import NatsServer, Proxy, ServerOptions

ACK_WAIT = 1.0  # seconds
SERVER_OPTIONS = ServerOptions(config='lame_duck_duration: "30s", lame_duck_grace_period: "0.2s"')  # of `own_server`
QUICK = {"heartbeat": 0.5, "expires": 1.0}
LIVELY = PATIENT | {
    "ping_interval": 0.5
}  # notices a silent link; whether also one too many, after a stall, is no matter


class Flow:
    """Somebody publishes and we pull, all the time. Whatever happens, each sequence must be seen in the end."""

    def __init__(self, writer, reader, name):
        self.writer, self.reader, self.name = writer, reader, name
        self.pull = self.new_pull()
        self.seen, self.last, self.times, self.enough = set(), 0, [], False
        self.came = asyncio.Event()
        self.tasks = []

    def new_pull(self, recreate=None):
        self.pull = Pull(self.reader.jetstream, self.name, "d", PullOptions(**QUICK), recreate=recreate)
        return self.pull

    async def consumer(self):
        await self.writer.ensure_consumer(self.name, "d", ack_wait=ACK_WAIT, max_ack_pending=10_000)

    async def __aenter__(self):
        await self.consumer()
        self.tasks = [asyncio.create_task(self.publish()), asyncio.create_task(self.read())]
        await self.more(50)
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def publish(self):
        """Publish one after the other, each until it is stored; the message id keeps it from being stored twice."""
        stored = 0
        while not (self.enough and stored == self.last):
            with contextlib.suppress(NattyError):
                self.last = stored + 1
                ack = await self.writer.publish(f"{self.name}.x", b"x" * 200, msg_id=f"{self.last}", timeout=0.5)
                stored = ack.seq
            await asyncio.sleep(0.002)

    async def read(self):
        async for batch in self.pull:
            self.seen.update(batch.sequences)
            self.times.append(time.monotonic())
            self.came.set()
            with contextlib.suppress(NattyError):
                self.pull.ack(batch.replies)
            self.pull.finish(len(batch))

    async def more(self, count):
        """Return when so many more sequences have been seen."""
        goal = len(self.seen) + count
        async with asyncio.timeout(PATIENCE):
            while len(self.seen) < goal:
                assert not self.tasks[1].done(), self.tasks[1]
                self.came.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await self.came.wait()

    async def everything(self):
        """Stop publishing, and return when all that was stored has been seen."""
        self.enough = True
        async with asyncio.timeout(PATIENCE):
            await self.tasks[0]
        await self.more(self.last - len(self.seen))
        assert self.seen == set(range(1, self.last + 1))

    async def survives(self, what, fault):
        """Let `fault` happen, see that all comes, and print what it cost."""
        async with self:
            began = time.monotonic()
            await fault
            over = time.monotonic()
            await self.more(100)
            await self.everything()
        times = [began, *(one for one in self.times if one > began)]
        pause, end = max((after - before, after) for before, after in pairwise(times))
        counts = self.pull.counts
        print(
            f"\n{what}: nothing for {pause:.2f} s, {end - over:+.2f} s after it was over; {len(self.seen)} seen, "
            f"{counts.delivered - len(self.seen)} of them again, {counts.renewals} renewals"
        )


@contextlib.asynccontextmanager
async def flow(name, writer, reader=None, *, clients=PATIENT, **settings):
    """Make the stream and the clients of a flow, which is then started by `survives`."""
    async with Natty(**PATIENT | writer) as first, Natty(**clients | (reader or writer)) as second:
        await first.ensure_stream(name, subjects=[f"{name}.>"], **settings)
        yield Flow(first, second, name)


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_server_that_is_restarted(victim, natty_name, how):
    async with flow(natty_name("RESTART"), victim.connect_options()) as running:

        async def restart():
            await asyncio.to_thread(getattr(victim, how))
            await asyncio.to_thread(victim.start)

        await running.survives(f"server restarted ({how})", restart())


async def test_a_server_in_lame_duck_mode_and_its_successor(victim, natty_name):
    async with flow(natty_name("DUCK"), victim.connect_options()) as running:

        async def leave():
            victim.lame_duck()
            await until(lambda: not victim.alive)
            await asyncio.to_thread(victim.start)

        await running.survives("lame duck, then started again", leave())


async def test_a_server_that_stands_still_with_its_connections_open(victim, natty_name):
    async with flow(natty_name("STILL"), victim.connect_options(), clients=LIVELY) as running:

        async def stand_still():
            victim.pause()
            await asyncio.sleep(2 * ACK_WAIT)
            victim.resume()

        await running.survives("server stopped with SIGSTOP for 2 s", stand_still())


async def test_a_half_open_link(nats_server, natty_proxy, natty_name):
    options = nats_server.connect_options(), natty_proxy.options
    async with flow(natty_name("HALF"), *options, clients=LIVELY) as running:

        async def vanish():
            natty_proxy.half_open()
            await asyncio.sleep(2 * ACK_WAIT)
            await natty_proxy.restore()

        await running.survives("link half-open for 2 s", vanish())


async def test_a_network_that_is_cut_for_longer_than_ack_wait(nats_server, natty_proxy, natty_name):
    async with flow(natty_name("CUT"), nats_server.connect_options(), natty_proxy.options) as running:

        async def cut():
            await natty_proxy.cut()
            await asyncio.sleep(2 * ACK_WAIT)
            await natty_proxy.restore()

        await running.survives("network cut for 2 s, twice ack_wait", cut())


async def test_a_half_open_link_to_one_server_while_another_one_is_there(nats_server, natty_name):
    async with Proxy.to(nats_server) as first, Proxy.to(nats_server) as second:
        both = first.options | {"servers": [first.url, second.url]}
        async with flow(natty_name("TWO"), nats_server.connect_options(), both, clients=LIVELY) as running:
            reconfigure(running.reader, connect_timeout=1.0)  # of each: the next one is soon tried again

            async def vanish():
                first.half_open()

            await running.survives("link half-open, another one at hand", vanish())


@pytest.mark.parametrize("who", ["somebody else", "us"])
async def test_a_consumer_that_is_deleted_and_made_again(nats_server, natty_name, monkeypatch, who):
    monkeypatch.setattr(pulling, "GONE_AFTER", PATIENCE)
    async with flow(natty_name("GONE"), nats_server.connect_options()) as running:

        async def delete():
            await running.writer.jetstream.request(f"CONSUMER.DELETE.{running.name}.d")
            if who == "somebody else":
                await until(lambda: running.pull._gone_since)
                await running.consumer()

        if who == "us":
            running.new_pull(recreate=running.consumer)
        await running.survives(f"consumer deleted, made again by {who}", delete())


@pytest.mark.parametrize("what", ["STREAM", "CONSUMER"])
async def test_a_leader_that_steps_down(nats_cluster, natty_name, what):
    options = nats_cluster.connect_options()
    async with flow(natty_name("LEADER"), options, num_replicas=3) as running:
        subject = f"{what}.LEADER.STEPDOWN.{running.name}" + (".d" if what == "CONSUMER" else "")
        question = f"{what}.INFO.{running.name}" + (".d" if what == "CONSUMER" else "")

        async def leader():
            with contextlib.suppress(NattyError):
                return (await running.writer.jetstream.request(question, timeout=1.0)).get("cluster", {}).get("leader")

        async def step_down():
            async with asyncio.timeout(PATIENCE):
                while not (before := await leader()):
                    await asyncio.sleep(0.02)
                while (await leader() or before) == before:
                    with contextlib.suppress(NattyError):  # lost, where the leader is just being elected
                        await running.writer.jetstream.request(subject, timeout=1.0)
                    await asyncio.sleep(0.1)

        await running.survives(f"{what.lower()} leader changed", step_down())


@pytest.mark.long
async def test_credentials_that_expire_and_are_renewed_in_their_file(
    natty_tls, nats_server_binary, natty_name, tmp_path
):
    operator = Operator()
    options = ServerOptions(authorization=operator.config)
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        lasting, short = tmp_path / "lasting.creds", tmp_path / "short.creds"
        for path in (lasting, short):
            operator.credentials(path, seconds=3600)
        given = server.connect_options()
        async with (
            Proxy.to(server) as proxy,
            flow(natty_name("JWT"), given | {"creds": str(lasting)}, proxy.options | {"creds": str(short)}) as running,
        ):

            async def expire():
                operator.credentials(short, seconds=2)
                await proxy.cut()  # the next session begins with these
                await proxy.restore()
                await until(lambda: "refused these credentials" in str(running.reader.connection._last_error))
                operator.credentials(short, seconds=3600)

            await running.survives("credentials expired, then renewed", expire())


async def test_a_user_who_is_revoked_and_let_in_again(natty_tls, nats_server_binary, natty_name):
    def users(**who):
        named = ", ".join(f"{{user: {name}, password: {word}}}" for name, word in who.items())
        return f"authorization {{ users: [{named}] }}"

    options = ServerOptions(authorization=users(writer="w", reader="r"))
    with NatsServer(options, tls_files=natty_tls, binary=nats_server_binary) as server:
        configuration = server.folder / "server.conf"
        welcome = configuration.read_text()
        given = server.connect_options()
        writer, reader = ({"user": name, "password": name[0]} for name in ("writer", "reader"))
        async with flow(natty_name("REVOKED"), given | writer, given | reader) as running:

            async def revoke():
                configuration.write_text(welcome.replace(options.authorization, users(writer="w")))
                os.kill(server.pid, signal.SIGHUP)
                await until(lambda: not running.reader.connection.connected)
                configuration.write_text(welcome)
                os.kill(server.pid, signal.SIGHUP)

            await running.survives("user revoked, then let in again", revoke())
