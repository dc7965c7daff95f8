import asyncio
import os

import pytest
from burying import Scene, broken
from patient import PATIENT

from natty import DeadLetters, Natty, PublishError, StreamExistsError
from natty.config.units import parse_time
from natty.consuming.dead_letters.bury import Watch
from natty.testing import NatsServer


@pytest.fixture
def scene(natty, natty_name):
    return Scene(natty, natty_name("DEAD"))


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
    assert parse_time(letter.time) == message.time_ns
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
    with pytest.raises(StreamExistsError, match="exists without the subjects"):
        await scene.dead.ensure()
    scene = Scene(natty, f"{scene.name}_2")
    await natty.ensure_stream(f"L_{scene.name}", subjects=[f"$NATTY.L_{scene.name}.>"], retention="workqueue")
    with pytest.raises(StreamExistsError, match="does not have limits retention"):
        await scene.dead.ensure()


async def test_a_stream_of_the_users_that_has_the_advisories_already_serves(natty_tls, nats_server_binary, tmp_path):
    with NatsServer(folder=tmp_path, tls_files=natty_tls, binary=nats_server_binary) as server:
        async with Natty(**server.connect_options(), **PATIENT) as natty:
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


async def test_who_is_who(scene, natty):
    assert repr(scene.dead) == f"DeadLetters(L_{scene.name})"
    assert repr(scene.box) == f"LetterBox(L_{scene.name})"
    assert repr(Watch(natty.jetstream, scene.dead, "ORDERS", "c")) == "Watch(ORDERS/c)"
