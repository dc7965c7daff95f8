"""What the server gives up on becomes a letter, whoever is away meanwhile."""

import asyncio
import signal
import subprocess
import sys

import pytest
from burying import Scene, broken
from patient import PATIENCE, PATIENT, until

from natty import DeadLetters, Natty
from natty.consuming.dead_letters import BURIED
from natty.testing import NatsServer


@pytest.fixture
def scene(natty, natty_name):
    return Scene(natty, natty_name("DEAD"))


@pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
async def test_what_a_handler_never_settles_is_buried_with_its_payload(scene, natty, retention):
    await scene.make(retention, ack_wait=0.3)
    async with scene.dead.watch(scene.name, "c"), scene.handler():
        await scene.publish(b"hangs", headers={"Colour": "red"})
        [letter] = await scene.letters(1)
    assert (letter.data, letter.headers["Colour"], letter.deliveries) == (b"hangs", ["red"], 2)
    assert letter.reason == "max deliveries: the server gave up after 2"
    assert (letter.stream, letter.consumer, letter.subject) == (scene.name, "c", f"{scene.name}.eu")
    assert (await natty.jetstream.read(scene.name, sequence=1)).data == b"hangs", "it stays in its stream"


async def test_what_a_handler_terminates_is_buried_with_its_payload_where_the_stream_still_has_it(scene):
    await scene.make()
    async with scene.dead.watch(scene.name, "c"):
        await scene.publish(b"bad")
        [message] = await scene.take()
        message.term("no such customer")
        [letter] = await scene.letters(1)
    assert (letter.data, letter.reason, letter.deliveries) == (b"bad", "terminated: no such customer", 1)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_terminated_message_that_its_stream_deleted_is_buried_without_payload_and_says_so(scene, retention):
    await scene.make(retention)
    async with scene.dead.watch(scene.name, "c"):
        await scene.publish(b"bad")
        [message] = await scene.take()
        message.term("no such customer")
        [letter] = await scene.letters(1)
    assert (letter.has_payload, letter.data, letter.subject) == (False, b"", "")
    assert (letter.stream, letter.original_sequence) == (scene.name, 1)
    assert letter.reason == "terminated: no such customer"
    stored = await scene.natty.jetstream.read(scene.dead.options.letters, sequence=1)
    assert stored.headers["Natty-Dead-Payload"][0].startswith("gone")
    result = await scene.box.retry()
    assert (result.published, list(result.refused)) == (0, [1])
    assert "without its payload" in result.refused[1]
    assert len(await scene.letters()) == 1


async def test_a_stream_that_is_gone_makes_a_letter_without_payload(scene, natty):
    await scene.make(ack_wait=0.3)
    await scene.publish(b"hangs")
    async with scene.handler():
        await scene.advisories(1)
    await natty.jetstream.request(f"STREAM.DELETE.{scene.name}")
    async with scene.dead.watch(scene.name, "c"):
        [letter] = await scene.letters(1)
    assert (letter.has_payload, letter.original_sequence) == (False, 1)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@pytest.mark.parametrize("reason", [BURIED, "the handler's own words"])
async def test_a_message_terminated_after_it_was_buried_is_one_letter(scene, retention, reason):
    await scene.make(retention)
    async with scene.dead.watch(scene.name, "c"):
        await scene.publish(b"bad")
        [message] = await scene.take()
        await scene.dead.bury(message, consumer="c", reason="retries exhausted", error=broken())
        message.term(reason)
        await scene.all_looked_at()
    [letter] = await scene.letters()
    assert (letter.data, letter.reason) == (b"bad", "retries exhausted")


async def test_our_own_termination_makes_no_letter_after_the_first_was_purged(scene, natty):
    await scene.make("workqueue")
    await scene.publish(b"bad", b"worse")
    first, second = await scene.take(2)
    await scene.dead.bury(first, consumer="c", reason="retries exhausted")
    first.term(BURIED)
    second.term("for another reason")
    await scene.advisories(2)
    await scene.box.purge()
    async with scene.dead.watch(scene.name, "c"):
        [letter] = await scene.letters(1)
        await scene.all_looked_at()
    assert letter.original_sequence == 2
    assert len(await scene.letters()) == 1


# nothing is missed


async def test_what_the_server_gave_up_on_while_nobody_watched_is_buried_later(scene):
    await scene.make(ack_wait=0.3)
    await scene.publish(b"one", b"two")
    async with scene.dead.watch(scene.name, "c"):
        pass
    async with scene.handler():
        await scene.advisories(2)
    async with scene.dead.watch(scene.name, "c"):
        assert {letter.data for letter in await scene.letters(2)} == {b"one", b"two"}
    async with scene.dead.watch(scene.name, "c"):
        await scene.all_looked_at()
    assert len(await scene.letters()) == 2


async def restart(server, natty):
    server.kill()
    await until(lambda: not natty.connection.connected)
    server.start()
    await natty.connection.ready(PATIENCE)


async def test_an_advisory_outlives_the_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            scene = await Scene(natty, "DEAD").make(ack_wait=0.3)
            await scene.publish(b"hangs")
            async with scene.handler():
                await scene.advisories(1)
            await restart(server, natty)
            async with scene.dead.watch("DEAD", "c"):
                [letter] = await scene.letters(1)
    assert letter.data == b"hangs"


async def test_a_watch_goes_on_when_the_server_was_killed_under_it(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            scene = await Scene(natty, "DEAD").make(ack_wait=0.3)
            async with scene.dead.watch("DEAD", "c"):
                await restart(server, natty)
                await scene.publish(b"hangs")
                async with scene.handler():
                    [letter] = await scene.letters(1)
    assert letter.data == b"hangs"


async def test_a_watch_makes_the_advisories_stream_again(natty_tls, nats_server_binary, tmp_path, caplog):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
            scene = await Scene(natty, "DEAD").make(ack_wait=0.3)
            async with scene.dead.watch("DEAD", "c"):
                await natty.jetstream.request(f"STREAM.DELETE.{scene.dead.options.advisories}")
                await until(lambda: "was interrupted" in caplog.text)
                await scene.advisories(0)
                await scene.publish(b"hangs")
                async with scene.handler():
                    [letter] = await scene.letters(1)
    assert letter.data == b"hangs"


DYING = """
import asyncio, os, signal, sys
from natty import Natty

async def main(stream, **settings):
    async with Natty(**settings) as natty:
        pull = natty.pull(stream, "c", max_messages=1)
        async for batch in pull:
            for message in batch:
                if message.data == b"poison":
                    os.kill(os.getpid(), signal.SIGKILL)
                message.ack()
            pull.finish(len(batch))

asyncio.run(main(**eval(sys.argv[1])))
"""


async def test_a_message_that_kills_its_process_again_and_again_is_buried(scene, nats_server):
    await scene.make(ack_wait=1.0, max_deliver=2)
    await scene.publish(b"first", b"poison", b"last")
    command = [sys.executable, "-c", DYING, repr({"stream": scene.name, **nats_server.connect_options(), **PATIENT})]
    async with scene.dead.watch(scene.name, "c"):
        for _ in range(2):
            ended = await asyncio.to_thread(subprocess.run, command, timeout=PATIENCE, check=False)
            assert ended.returncode == -signal.SIGKILL
        handled = []
        async with scene.handler(lambda message: (message.ack(), handled.append(message.data))):
            letter = await scene.letter_about(b"poison")
            await scene.publish(b"after")
            await until(lambda: b"after" in handled)
    assert letter.deliveries == 2
    assert b"poison" not in handled


async def test_two_who_watch_the_same_consumer_share_the_work(scene, nats_server):
    await scene.make(ack_wait=0.3)
    async with Natty(**nats_server.connect_options(), **PATIENT) as other:
        also = DeadLetters(other.jetstream, scene.dead.options)
        async with scene.dead.watch(scene.name, "c"), also.watch(scene.name, "c"), scene.handler():
            await scene.publish(*(b"%d" % i for i in range(10)))
            letters = await scene.letters(10)
            await scene.all_looked_at()
    assert sorted(letter.data for letter in letters) == [b"%d" % i for i in range(10)]
    assert len(await scene.letters()) == 10


async def test_an_advisory_comes_again_until_its_letter_is_stored(natty, natty_name, caplog):
    scene = await Scene(natty, natty_name("FULL"), max_bytes=2000).make()
    await scene.publish(b"a" * 1200, b"b" * 1200)
    for message in await scene.take(2):
        message.term("bad")
    async with scene.dead.watch(scene.name, "c"):
        await until(lambda: "could not be stored" in caplog.text)
        assert [letter.data[:1] for letter in await scene.letters()] == [b"a"]
        await scene.box.purge()
        [letter] = await scene.letters(1)
    assert letter.data == b"b" * 1200


async def test_advisories_that_make_no_sense_stop_nobody(scene, natty, caplog):
    await scene.make(ack_wait=0.3)
    async with scene.dead.watch(scene.name, "c"), scene.handler():
        await natty.publish(f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{scene.name}.c", b"[nonsense")
        await scene.publish(b"hangs")
        await scene.letters(1)
        await scene.all_looked_at()
    assert "can't be read" in caplog.text
    assert len(await scene.letters()) == 1


async def test_a_watch_leaves_other_consumers_alone(scene, natty):
    await scene.make(ack_wait=0.3)
    await natty.ensure_consumer(scene.name, "other", ack_wait=0.3, max_deliver=2)
    await scene.publish(b"hangs")
    async with scene.dead.watch(scene.name, "c"), scene.handler(), scene.handler(consumer="other"):
        await scene.letters(1)
        await scene.advisories(1)  # about the other one: those about ours are gone when they were looked at
        await scene.all_looked_at()
        assert [letter.consumer for letter in await scene.letters()] == ["c"]
        async with scene.dead.watch(scene.name, "other"):
            assert {letter.consumer for letter in await scene.letters(2)} == {"c", "other"}
