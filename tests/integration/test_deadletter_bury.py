import asyncio
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress

import pytest

from natty import DeadLetterOptions, DeadLetters, Natty, PublishError, StreamExistsError, StreamNotFoundError
from natty.deadletter import BURIED
from natty.deadletter.letter import nanoseconds
from natty.deadletter.watch import Watch, durable_of
from natty.testing import NatsServer

DEADLINE = 30.0  # seconds


class Scene:
    """A stream with a consumer `c`, and letters of its own."""

    def __init__(self, natty, name, **options):
        self.natty, self.name = natty, name
        self.dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}", **options))
        self.box = natty.dead_letters(f"L_{name}")

    async def make(self, retention="limits", **consumer):
        """Make the streams and the consumer."""
        await self.dead.ensure()
        await self.natty.ensure_stream(self.name, subjects=[f"{self.name}.>"], retention=retention)
        settings = {"ack_wait": 30.0, "max_deliver": 2} | consumer
        await self.natty.ensure_consumer(self.name, "c", **settings)
        return self

    async def publish(self, *payloads, headers=None):
        """Publish messages in order, each with a message id."""
        for payload in payloads:
            await self.natty.publish(f"{self.name}.eu", payload, headers=headers, msg_id=f"id-{payload[:8].hex()}")

    async def take(self, count=1):
        """Return so many messages, unsettled."""
        taken, pull = [], self.natty.pull(self.name, "c", max_messages=count)
        async with asyncio.timeout(DEADLINE):
            async for batch in pull:
                taken += batch
                if len(taken) >= count:
                    pull.stop()
        return taken

    @asynccontextmanager
    async def handler(self, settle=lambda message: None, consumer="c"):
        """Meanwhile, pull and do so with each message; by default nothing, as a handler that hangs."""
        pull = self.natty.pull(self.name, consumer)

        async def run():
            async for batch in pull:
                for message in batch:
                    settle(message)
                pull.finished(len(batch))

        task = asyncio.create_task(run())
        yield
        pull.stop()
        await task

    async def letters(self, count=None):
        """Return the letters, when there are `count` of them."""
        async with asyncio.timeout(DEADLINE):
            while True:
                found = [letter async for letter in self.box.ls()]
                if count is None or len(found) >= count:
                    return found
                await asyncio.sleep(0.02)

    async def all_looked_at(self):
        """Return when every advisory about the consumer has been looked at."""
        subject = f"CONSUMER.INFO.{self.dead.options.advisories}.{durable_of(self.name, 'c')}"
        async with asyncio.timeout(DEADLINE):
            while True:
                state = await self.natty.jetstream.request(subject)
                if state["num_pending"] == state["num_ack_pending"] == 0 and state["delivered"]["consumer_seq"]:
                    return
                await asyncio.sleep(0.02)

    async def advisories(self, count):
        """Return when so many advisories about the stream wait for somebody to look at them."""
        wanted = {"subjects_filter": f"$JS.EVENT.ADVISORY.CONSUMER.*.{self.name}.*"}
        async with asyncio.timeout(DEADLINE):
            while True:
                with suppress(StreamNotFoundError):
                    answer = await self.natty.jetstream.request(f"STREAM.INFO.{self.dead.options.advisories}", wanted)
                    if sum((answer["state"].get("subjects") or {}).values()) >= count:
                        return
                await asyncio.sleep(0.02)


@pytest.fixture
def scene(natty, natty_name):
    return Scene(natty, natty_name("DEAD"))


def broken():
    try:
        raise LookupError("no such customer")
    except LookupError as error:
        return error


# bury


async def test_a_buried_message_is_whole_and_says_why_it_died(scene):
    await scene.make()
    await scene.publish(b"first", b"second \x00\xff", headers={"Colour": "red", "Natty-Nonce": "theirs"})
    _, message = await scene.take(2)
    sequence = await scene.dead.bury(message, consumer="c", reason="retries exhausted", error=broken())
    letter = await scene.box.show(sequence)
    assert (letter.stream, letter.consumer, letter.original_sequence) == (scene.name, "c", 2)
    assert (letter.subject, letter.data) == (f"{scene.name}.eu", b"second \x00\xff")
    assert letter.headers == message.headers
    assert (letter.reason, letter.error) == ("retries exhausted", "LookupError: no such customer")
    assert (letter.deliveries, letter.complete) == (1, True)
    assert nanoseconds(letter.time) == message.time_ns
    assert letter.traceback[-1] == "LookupError: no such customer"


async def test_a_message_buried_again_is_one_letter(scene):
    await scene.make()
    await scene.publish(b"once")
    [message] = await scene.take()
    again = DeadLetters(scene.natty.jetstream, scene.dead.options)
    sequences = await asyncio.gather(
        *(dead.bury(message, consumer="c", reason=f"try {i}") for i in range(5) for dead in (scene.dead, again))
    )
    assert set(sequences) == {1}
    assert [letter.sequence for letter in await scene.letters()] == [1]
    assert await scene.dead.bury(message, consumer="other", reason="died there too") == 2


async def test_one_letter_even_after_the_time_in_which_the_stream_remembers_message_ids(scene):
    await scene.make()
    config = (await scene.natty.jetstream.request(f"STREAM.INFO.{scene.dead.options.letters}"))["config"]
    shorter = config | {"duplicate_window": 100_000_000}
    await scene.natty.jetstream.request(f"STREAM.UPDATE.{scene.dead.options.letters}", shorter)
    await scene.publish(b"once")
    [message] = await scene.take()
    await scene.dead.bury(message, consumer="c", reason="why")
    await asyncio.sleep(0.4)  # longer than the window: only its length makes this test pass
    assert await scene.dead.bury(message, consumer="c", reason="why") == 1


async def test_a_stream_made_anew_has_letters_of_its_own(scene):
    for payload in (b"old", b"new"):
        await scene.make()
        await scene.publish(payload)
        [message] = await scene.take()
        assert message.sequence == 1
        await scene.dead.bury(message, consumer="c", reason="why")
        await scene.natty.jetstream.request(f"STREAM.DELETE.{scene.name}")
    assert [letter.data for letter in await scene.letters()] == [b"old", b"new"]


@pytest.mark.parametrize("below", [0, 1, 100, 250, 400, 700, 1500])
async def test_a_message_of_the_largest_size_is_buried_with_the_headers_that_fit(scene, natty, below):
    await scene.make()
    payload = os.urandom(natty.connection.server_info["max_payload"] - below)
    await natty.publish(f"{scene.name}.eu", payload)
    [message] = await scene.take()
    sequence = await scene.dead.bury(message, consumer="c", reason="too late", error=broken())
    assert await scene.dead.bury(message, consumer="c", reason="too late") == sequence
    letter = await scene.box.show(sequence)
    assert letter.data == payload
    assert (letter.stream, letter.original_sequence, letter.consumer) == (scene.name, 1, "c")
    assert letter.subject == f"{scene.name}.eu"
    assert (letter.reason == "too late") == (below >= 250)
    assert letter.complete == (below >= 1500)
    result = await scene.box.retry()
    assert (result.published, result.refused) == (1, {})
    assert (await natty.jetstream.read(scene.name, sequence=2)).data == payload


async def test_a_message_whose_headers_fill_what_a_stream_takes_is_buried(scene, natty):
    await scene.make()
    headers = {"Small": "kept", "Large": "x" * 65_000}
    await natty.publish(f"{scene.name}.eu", b"payload", headers=headers)
    [message] = await scene.take()
    letter = await scene.box.show(await scene.dead.bury(message, consumer="c", reason="why", error=broken()))
    assert (letter.data, letter.reason) == (b"payload", "why")
    assert letter.headers["Small"] == ["kept"]
    assert not letter.complete


async def test_a_message_with_a_subject_as_long_as_a_line_is_buried_and_retried(scene, natty):
    await scene.make("workqueue")
    subject = f"{scene.name}.{'x' * 3990}"
    await natty.publish(subject, b"far away")
    async with scene.dead.watch(scene.name, "c"):
        [message] = await scene.take()
        sequence = await scene.dead.bury(message, consumer="c", reason="why")
        message.term("not our words: the advisory finds the letter")
        await scene.all_looked_at()
    [letter] = await scene.letters()
    assert (letter.sequence, letter.subject, letter.data, letter.has_payload) == (sequence, subject, b"far away", True)
    assert (await scene.box.retry()).published == 1
    assert (await natty.jetstream.read(scene.name, sequence=2)).subject == subject


async def test_letters_that_find_no_room_are_an_error(natty, natty_name):
    scene = await Scene(natty, natty_name("FULL"), max_bytes=2000).make()
    await scene.publish(b"a" * 1200, b"b" * 1200)
    first, second = await scene.take(2)
    await scene.dead.bury(first, consumer="c", reason="why")
    with pytest.raises(PublishError, match="maximum bytes"):
        await scene.dead.bury(second, consumer="c", reason="why")
    assert [letter.data[:1] for letter in await scene.letters()] == [b"a"]


# the two streams


async def test_streams_that_exist_are_left_as_they_are(scene, natty):
    await asyncio.gather(*(scene.dead.ensure() for _ in range(4)))
    letters = scene.dead.options.letters
    config = (await natty.jetstream.request(f"STREAM.INFO.{letters}"))["config"]
    assert (config["retention"], config["discard"], config["max_age"]) == ("limits", "new", 0)
    await natty.jetstream.request(f"STREAM.UPDATE.{letters}", config | {"max_age": 10**15, "description": "mine"})
    await scene.dead.ensure()
    kept = (await natty.jetstream.request(f"STREAM.INFO.{letters}"))["config"]
    assert (kept["max_age"], kept["description"]) == (10**15, "mine")


async def test_a_stream_that_holds_the_subjects_already_is_named(scene, natty):
    await natty.ensure_stream(scene.name, subjects=[f"$NATTY.L_{scene.name}.>"])
    with pytest.raises(StreamExistsError, match=f"{scene.name} takes .* already"):
        await scene.dead.ensure()


async def test_a_stream_of_the_letters_name_that_can_not_serve_is_an_error(scene, natty):
    await natty.ensure_stream(f"L_{scene.name}", subjects=[f"{scene.name}.>"])
    with pytest.raises(StreamExistsError, match="does not take"):
        await scene.dead.ensure()
    scene = Scene(natty, f"{scene.name}_2")
    await natty.ensure_stream(f"L_{scene.name}", subjects=[f"$NATTY.L_{scene.name}.>"], retention="workqueue")
    with pytest.raises(StreamExistsError, match="not of the limits kind"):
        await scene.dead.ensure()


async def test_a_stream_of_the_users_that_has_the_advisories_already_serves(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options()) as natty:
            await natty.ensure_stream("MINE", subjects=["$JS.EVENT.ADVISORY.>"], max_age=3600.0)
            with pytest.raises(StreamExistsError, match=r"MINE takes .* DeadLetterOptions"):
                await Scene(natty, "DEAD").make()
            scene = await Scene(natty, "DEAD", advisories="MINE").make()
            async with scene.dead.watch("DEAD", "c"):
                await scene.publish(b"bad")
                [message] = await scene.take()
                message.term("by hand")
                [letter] = await scene.letters(1)
            config = (await natty.jetstream.request("STREAM.INFO.MINE"))["config"]
    assert (letter.data, letter.reason) == (b"bad", "terminated: by hand")
    assert (config["subjects"], config["retention"]) == (["$JS.EVENT.ADVISORY.>"], "limits")


# what the server gives up on


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
    async with asyncio.timeout(DEADLINE):
        while natty.connection.connected:
            await asyncio.sleep(0.01)
    server.start()
    await natty.connection.ready(DEADLINE)


async def test_an_advisory_outlives_the_server(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options()) as natty:
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
        async with Natty(**server.connect_options()) as natty:
            scene = await Scene(natty, "DEAD").make(ack_wait=0.3)
            async with scene.dead.watch("DEAD", "c"):
                await restart(server, natty)
                await scene.publish(b"hangs")
                async with scene.handler():
                    [letter] = await scene.letters(1)
    assert letter.data == b"hangs"


async def test_a_watch_makes_the_advisories_stream_again(natty_tls, nats_server_binary, tmp_path, caplog):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options()) as natty:
            scene = await Scene(natty, "DEAD").make(ack_wait=0.3)
            async with scene.dead.watch("DEAD", "c"):
                await natty.jetstream.request(f"STREAM.DELETE.{scene.dead.options.advisories}")
                async with asyncio.timeout(DEADLINE):
                    while "was interrupted" not in caplog.text:
                        await asyncio.sleep(0.02)
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
            pull.finished(len(batch))

asyncio.run(main(**eval(sys.argv[1])))
"""


async def test_a_message_that_kills_its_process_again_and_again_is_buried(scene, nats_server):
    await scene.make(ack_wait=1.0, max_deliver=2)
    await scene.publish(b"first", b"poison", b"last")
    command = [sys.executable, "-c", DYING, repr({"stream": scene.name, **nats_server.connect_options()})]
    async with scene.dead.watch(scene.name, "c"):
        for _ in range(2):
            ended = await asyncio.to_thread(subprocess.run, command, timeout=DEADLINE, check=False)
            assert ended.returncode == -signal.SIGKILL
        handled = []
        async with scene.handler(lambda message: (message.ack(), handled.append(message.data))):
            [letter] = await scene.letters(1)
            await scene.publish(b"after")
            async with asyncio.timeout(DEADLINE):
                while b"after" not in handled:
                    await asyncio.sleep(0.02)
    assert (letter.data, letter.deliveries) == (b"poison", 2)
    assert b"poison" not in handled


async def test_two_who_watch_the_same_consumer_share_the_work(scene, nats_server):
    await scene.make(ack_wait=0.3)
    async with Natty(**nats_server.connect_options()) as other:
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
        async with asyncio.timeout(DEADLINE):
            while "could not be stored" not in caplog.text:
                await asyncio.sleep(0.02)
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


async def test_who_is_who(scene, natty):
    assert repr(scene.dead) == f"DeadLetters(L_{scene.name})"
    assert repr(scene.box) == f"LetterBox(L_{scene.name})"
    assert repr(Watch(natty.jetstream, scene.dead, "ORDERS", "c")) == "Watch(ORDERS/c)"
