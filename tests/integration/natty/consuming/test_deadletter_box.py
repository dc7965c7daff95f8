import asyncio
import itertools

import pytest
from patient import NEVER, PATIENCE

from natty import DeadLetterOptions, DeadLetters, JetStreamError, LetterFilter, LetterNotFoundError, StreamNotFoundError
from natty.config.units import parse_time
from natty.consuming.dead_letters.box import headers_again
from natty.consuming.dead_letters.letter import Original


class Box:
    """A stream, letters of its own, and their box."""

    def __init__(self, natty, name):
        self.natty, self.name = natty, name
        self.dead = DeadLetters(natty.jetstream, DeadLetterOptions(letters=f"L_{name}"))
        self.box = natty.dead_letters(f"L_{name}")

    async def make(self, **settings):
        """Make the streams."""
        await self.dead.ensure()
        await self.natty.ensure_stream(self.name, subjects=[f"{self.name}.>"], **settings)
        return self

    async def bury(self, *payloads, consumer="c", reason="why", headers=None):
        """Publish messages, each with a message id, and bury them."""
        for payload in payloads:
            all_headers = {"Nats-Msg-Id": [f"id-{payload.hex()}"], **(headers or {})}
            ack = await self.natty.jetstream.publish(f"{self.name}.eu", payload, headers=all_headers)
            await self.invent(payload, ack.seq, consumer=consumer, reason=reason, headers=all_headers)

    async def invent(self, data, sequence, *, consumer="c", reason="why", stream=None, subject=None, headers=None):
        """Store a letter about a message that there may never have been."""
        original = Original(
            stream or self.name, sequence, subject or f"{self.name}.eu", headers, data, time_ns=sequence, deliveries=1
        )
        return await self.dead.store(original, consumer, reason)

    async def found(self, *, limit=None, newest_first=False, **wanted):
        """Return the payloads of the letters that fit."""
        letters = self.box.ls(LetterFilter(**wanted), newest_first=newest_first, limit=limit)
        return [letter.data async for letter in letters]

    async def stored(self):
        """Return the messages of the stream."""
        last = (await self.natty.jetstream.request(f"STREAM.INFO.{self.name}"))["state"]["last_seq"]
        found = [await self.natty.jetstream.read(self.name, sequence=one) for one in range(1, last + 1)]
        return [message for message in found if message]


@pytest.fixture
async def box(natty, natty_name):
    return await Box(natty, natty_name("BOX")).make()


# ls and show


async def test_letters_are_listed_oldest_or_newest_first(box):
    await box.bury(b"1", b"2", b"3")
    assert await box.found() == [b"1", b"2", b"3"]
    assert await box.found(newest_first=True) == [b"3", b"2", b"1"]
    assert await box.found(limit=2) == [b"1", b"2"]
    assert await box.found(newest_first=True, limit=2) == [b"3", b"2"]
    assert await box.found(limit=3) == [b"1", b"2", b"3"]


async def test_letters_are_listed_by_stream_consumer_and_reason(box):
    await box.invent(b"1", 1, consumer="mailer", reason="max deliveries: 3")
    await box.invent(b"2", 2, consumer="biller", reason="terminated: no such customer")
    await box.invent(b"3", 3, consumer="mailer", reason="Terminated by hand", stream="OTHER")
    assert await box.found(consumer="mailer") == [b"1", b"3"]
    assert await box.found(stream="OTHER") == [b"3"]
    assert await box.found(stream="OTHER", consumer="biller") == []
    assert await box.found(reason="terminated") == [b"2", b"3"]
    assert await box.found(reason="terminated", consumer="mailer", newest_first=True) == [b"3"]


async def test_many_letters_with_gaps_are_listed_completely_both_ways(box):
    await asyncio.gather(*(box.invent(b"%d" % i, i, consumer=f"c{i % 2}") for i in range(1, 351)))
    everything = await box.found()
    assert sorted(everything, key=int) == [b"%d" % i for i in range(1, 351)]
    assert await box.found(newest_first=True) == everything[::-1]
    for sequence in (1, *range(40, 290), 350):
        await box.natty.jetstream.request(f"STREAM.MSG.DELETE.{box.box.stream}", {"seq": sequence})
    left = await box.found()
    assert left == everything[1:39] + everything[289:349]
    assert await box.found(newest_first=True) == left[::-1]
    odd = await box.found(consumer="c1")
    assert odd == [data for data in left if int(data) % 2]
    assert await box.found(consumer="c1", newest_first=True, limit=40) == odd[::-1][:40]


async def test_letters_that_come_while_they_are_listed_are_not_among_them(box):
    await box.bury(b"1", b"2")
    seen = []
    async for letter in box.box.ls():
        seen.append(letter.data)
        await box.bury(b"later %d" % len(seen))
    assert seen == [b"1", b"2"]


async def test_one_letter_is_shown_and_a_missing_one_is_an_error(box):
    await box.bury(b"1")
    assert (await box.box.show(1)).data == b"1"
    for missing in (0, -1, 2):
        with pytest.raises(LetterNotFoundError, match=f"no dead letter {missing} in {box.box.stream}"):
            await box.box.show(missing)


async def test_without_the_letters_stream_every_method_says_so(natty, natty_name):
    box = natty.dead_letters(natty_name("NONE"))
    for work in (anext(box.ls()), box.show(1), box.retry(), box.purge(), box.purge(LetterFilter(reason="x"))):
        with pytest.raises(StreamNotFoundError, match="no dead letter was stored yet in this account"):
            await work


# retry


async def test_a_retry_reaches_the_consumer_that_failed_with_all_that_the_message_had(box, natty):
    await natty.ensure_consumer(box.name, "c", filter_subjects=[f"{box.name}.eu"], ack_wait=NEVER)
    await natty.publish(f"{box.name}.eu", b"order", headers={"Colour": "red"}, msg_id="order-1")
    seen = []
    pull = natty.pull(box.name, "c")
    async with asyncio.timeout(PATIENCE):
        async for batch in pull:
            for message in batch:
                seen.append(message)
                if len(seen) == 1:
                    await box.dead.bury(message, consumer="c", reason="why")
                    result = await box.box.retry()
                else:
                    pull.stop()
                message.ack()
            pull.finish(len(batch))
    first, again = seen
    assert (result.published, result.refused) == (1, {})
    assert (again.subject, again.data, again.sequence) == (first.subject, b"order", 2)
    assert again.headers["Colour"] == ["red"]
    assert again.headers["Natty-Retried-Msg-Id"] == ["order-1"]
    assert again.headers["Natty-Retry-For"] == ["c"]
    assert await box.found() == []


async def test_a_handler_that_was_repaired_gets_its_dead_letters_again(box, natty):
    repaired, handled = asyncio.Event(), asyncio.Queue()

    async def handler(message):
        if not repaired.is_set():
            raise LookupError("no such customer")
        await handled.put(message.data)

    options = {"retries": (0.01,), "dead_letters": box.dead.options, "consumer": {"ack_wait": NEVER}}
    consumption = natty.consume(box.name, "c", handler, **options)
    running = asyncio.create_task(consumption.run())
    await natty.publish(f"{box.name}.eu", b"order", msg_id="order-1")
    async with asyncio.timeout(PATIENCE):
        while await box.found(consumer="c", reason="no such customer") != [b"order"]:
            await asyncio.sleep(0.02)
        repaired.set()
        assert (await box.box.retry()).published == 1
        assert await handled.get() == b"order"
    consumption.stop()
    await running
    assert await box.found() == []


async def test_a_retry_takes_what_is_asked_for_and_no_more(box):
    await box.bury(b"1", b"2", b"3", consumer="mailer")
    await box.bury(b"4", consumer="biller")
    await box.bury(b"5", consumer="mailer", reason="another")
    assert (await box.box.retry(LetterFilter(consumer="mailer", reason="why"), limit=2)).published == 2
    assert await box.found() == [b"3", b"4", b"5"]
    assert (await box.box.retry(LetterFilter(consumer="nobody"))).published == 0
    assert [message.data for message in await box.stored()] == [b"1", b"2", b"3", b"4", b"5", b"1", b"2"]


async def test_a_retry_that_was_interrupted_before_it_removed_the_letter_stores_the_message_once(box, natty):
    await box.bury(b"1")
    letter = await box.box.show(1)
    await natty.jetstream.publish(letter.subject, letter.data, headers=headers_again(letter))  # and no more
    assert (await box.box.retry()).published == 1
    assert [message.data for message in await box.stored()] == [b"1", b"1"]
    assert await box.found() == []


@pytest.mark.parametrize("sent", [True, False])
async def test_a_retry_cancelled_at_any_moment_loses_nothing_and_stores_nothing_twice(box, natty, monkeypatch, sent):
    """Each try is cut at another request: before it is sent, or while its answer is waited for."""
    await box.bury(*(b"%d" % i for i in range(20)))
    request, cut_short, left = natty.connection.request, 0, 0

    async def request_until_cut(*arguments, **options):
        nonlocal left
        left -= 1
        if left == 0:
            asyncio.current_task().cancel()
            if not sent:
                await asyncio.sleep(0)
        return await request(*arguments, **options)

    for place in itertools.count(1):
        if not await box.found():
            break
        with monkeypatch.context() as patch:
            patch.setattr(natty.connection, "request", request_until_cut)
            left = place
            [outcome] = await asyncio.gather(asyncio.create_task(box.box.retry()), return_exceptions=True)
        cut_short += isinstance(outcome, asyncio.CancelledError)
    assert cut_short > 5
    again = [message.data for message in (await box.stored())[20:]]
    assert again == [b"%d" % i for i in range(20)]


async def test_retries_at_the_same_time_store_each_message_once(box):
    await box.bury(*(b"%d" % i for i in range(20)))
    results = await asyncio.gather(*(box.box.retry() for _ in range(3)))
    assert all(result.refused == {} for result in results)
    assert len(await box.stored()) == 40
    assert await box.found() == []


async def test_a_letter_stays_until_its_message_is_stored(natty, natty_name):
    box = await Box(natty, natty_name("FULL")).make(max_msgs=2, discard="new")
    await box.bury(b"1", b"2")
    result = await box.box.retry()
    assert result.published == 0
    assert [(letter, "maximum messages" in why) for letter, why in result.refused.items()] == [(1, True), (2, True)]
    assert await box.found() == [b"1", b"2"]
    await natty.jetstream.request(f"STREAM.MSG.DELETE.{box.name}", {"seq": 1})
    result = await box.box.retry()
    assert (result.published, list(result.refused)) == (1, [2])
    assert await box.found() == [b"2"]


async def test_a_letter_whose_stream_is_gone_is_kept_and_the_others_are_retried(box):
    await box.invent(b"lost", 1, stream=f"{box.name}_GONE", subject=f"{box.name}_GONE.eu")
    await box.bury(b"found")
    result = await box.box.retry()
    assert (result.published, list(result.refused)) == (1, [1])
    assert await box.found() == [b"lost"]


async def test_a_retry_ends_though_its_messages_fail_again_at_once(box, natty):
    await natty.ensure_consumer(box.name, "c", ack_wait=NEVER)
    await box.bury(b"1", b"2", b"3")
    pull = natty.pull(box.name, "c")

    async def fail():
        async for batch in pull:
            for message in batch:
                if message.sequence > 3:
                    await box.dead.bury(message, consumer="c", reason="again")
                message.ack()
            pull.finish(len(batch))

    failing = asyncio.create_task(fail())
    result = await box.box.retry(rate=20)
    assert result.published == 3
    async with asyncio.timeout(PATIENCE):
        while await box.found() != [b"1", b"2", b"3"]:
            await asyncio.sleep(0.02)
    pull.stop()
    await failing
    assert await box.found(reason="again") == [b"1", b"2", b"3"]
    assert [letter.headers["Natty-Retried-Msg-Id"] async for letter in box.box.ls()] == [
        ["id-31"], ["id-32"], ["id-33"]
    ]  # fmt: skip


async def test_a_retry_keeps_to_its_rate(box):
    await box.bury(*(b"%d" % i for i in range(6)))
    await box.box.retry(rate=10)
    times = [parse_time(message.time) / 1e9 for message in (await box.stored())[6:]]
    assert len(times) == 6
    assert times[-1] - times[0] >= 4 / 10 * 0.9  # the first one may have been stored late
    with pytest.raises(ValueError, match="a rate of 0 "):
        await box.box.retry(rate=0)


async def test_headers_that_were_instructions_to_the_server_are_not_given_again(box):
    await box.bury(b"1", headers={"Nats-Expected-Last-Sequence": ["0"]})
    assert (await box.box.retry()).refused == {}
    [_, again] = await box.stored()
    assert "Nats-Expected-Last-Sequence" not in again.headers


# purge


async def test_purge_removes_what_is_asked_for_and_counts_it(box):
    await box.bury(b"1", b"2", consumer="mailer")
    await box.bury(b"3", consumer="biller", reason="Bad address")
    await box.bury(b"4", b"5", consumer="mailer", reason="bad address")
    assert await box.box.purge(LetterFilter(reason="bad"), limit=1) == 1
    assert await box.found() == [b"1", b"2", b"4", b"5"]
    assert await box.box.purge(LetterFilter(consumer="mailer"), up_to=1) == 1
    assert await box.found() == [b"2", b"4", b"5"]
    assert await box.box.purge(LetterFilter(reason="BAD"), up_to=4) == 1
    assert await box.found() == [b"2", b"5"]
    assert await box.box.purge(LetterFilter(stream="OTHER")) == 0
    assert await box.box.purge() == 2
    assert await box.box.purge() == 0
    assert len(await box.stored()) == 5, "the messages themselves stay"


async def test_a_letter_that_somebody_else_removed_is_not_counted(box, natty):
    await box.bury(b"1")
    assert await box.box._remove(1)
    assert not await box.box._remove(1)
    config = (await natty.jetstream.request(f"STREAM.INFO.{box.box.stream}"))["config"]
    await box.bury(b"2")
    await natty.jetstream.request(f"STREAM.UPDATE.{box.box.stream}", config | {"sealed": True, "deny_delete": True})
    with pytest.raises(JetStreamError):
        await box.box.purge(LetterFilter(reason="why"))


async def test_a_letter_whose_subject_is_too_long_to_publish_on_is_refused_and_the_others_are_retried(box, natty):
    subject = f"{box.name}.{'a' * (4090 - len(box.name))}"  # a plain client can publish there, without a reply subject
    natty.connection.send(subject, b"1")
    await natty.connection.flush()
    ((sequence, long),) = [(one.sequence, one.subject) for one in await box.stored()]
    letter = await box.invent(b"1", sequence, subject=long)
    await box.bury(b"2")
    retried = await box.box.retry()
    assert retried.published == 1
    assert [*retried.refused] == [letter]
    assert "too long" in retried.refused[letter]
    assert await box.found() == [b"1"]


async def test_forged_letters_that_can_not_be_published_are_refused_and_the_others_are_retried(box, natty):
    prefix = f"$NATTY.L_{box.name}"
    facts = b"NATS/1.0\r\nNatty-Dead-Deliveries: 1\r\n"
    natty.connection.send(f"{prefix}.{box.name}.c.7.{box.name}.eu", headers=facts + b"Natty-Original-X: a\nb\r\n\r\n")
    natty.connection.send(f"{prefix}.no\\name.c.7.nobody.takes.this", headers=facts + b"\r\n")
    await box.bury(b"2")
    retried = await box.box.retry()
    assert retried.published == 1
    assert [*retried.refused] == [1, 2]
